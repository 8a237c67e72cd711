# SPDX-License-Identifier: Apache-2.0
"""IPVS hops in the text output."""

from __future__ import annotations

import io

from tests.support import sample_packets as samples
from tracer.model.hop import IpvsDecision, IpvsRefusalHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Verdict
from tracer.render import _ipvs
from tracer.render.text import TextOutput


def printed(number: int) -> list[str]:
    out = io.StringIO()
    TextOutput(out, io.StringIO()).packet(samples.ipvs()[number])
    return out.getvalue().splitlines()


def test_the_choice_of_a_real_server() -> None:
    line = printed(0)[1]
    assert line.split("INPUT")[1].strip() == "IPVS         192.168.56.10:30285/tcp (rr, persistent) -> 10.244.0.11:8080"


def test_a_later_packet_shows_the_earlier_choice() -> None:
    assert printed(1)[2].strip() == "existing connection: chosen earlier, the choice was not observed"


def test_no_real_server() -> None:
    line = printed(2)[1]
    assert line.endswith("192.168.56.10:30285/tcp (rr) has no real server available, REJECT with icmp-port-unreachable")


def test_unknown_fields_are_left_out() -> None:
    assert _ipvs.describe(IpvsRefusalHop(0, HOST, verdict=Verdict.DROP, decision=IpvsDecision())) == (
        "IPVS",
        "DROP, no reason given",
    )
    assert _ipvs.virtual_server(IpvsDecision("fwmark 5", 0, "tcp")) == "fwmark 5/tcp"
    assert _ipvs.virtual_server(IpvsDecision("fd00::1", 53, "udp")) == "[fd00::1]:53/udp"
