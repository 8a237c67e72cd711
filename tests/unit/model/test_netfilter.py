# SPDX-License-Identifier: Apache-2.0
"""Verdicts and hooks, with names of a newer kernel."""

from __future__ import annotations

import io
import json

from tests.support.builders import event
from tracer.events import record
from tracer.model.endpoints import Endpoints
from tracer.model.hop import HookHop, TableHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import KERNEL_VERDICTS, PASSES, REFUSALS, Hook, Verdict, decode_hook, decode_verdict
from tracer.model.packet import Packet
from tracer.packets.outcome import classify
from tracer.render.json import JsonOutput
from tracer.render.text import TextOutput


def test_the_text_of_a_known_name_is_that_name() -> None:
    assert all(decode_verdict(verdict.value) is verdict and f"{verdict}" == verdict.value for verdict in Verdict)
    assert all(decode_hook(hook.value) is hook and f"{hook:<12}" == f"{hook.value:<12}" for hook in Hook)


def test_an_unknown_verdict_keeps_its_text_and_equals_none() -> None:
    verdict = decode_verdict("LATER")
    assert verdict == "LATER" and verdict not in (*Verdict, *PASSES, *REFUSALS)


def test_an_unknown_hook_is_no_hook() -> None:
    assert decode_hook("LATER") is Hook.NONE


def test_numbers_of_a_newer_kernel() -> None:
    e = record.event(event("HOOK")[0])
    assert record.verdict(e._replace(verdict=len(KERNEL_VERDICTS))) == "6"
    assert record.verdict(e._replace(verdict=record.NO_VERDICT)) is Verdict.NONE
    assert record.hook(e._replace(hook=17)) is Hook.NONE
    assert record.hook(e._replace(hook=5)) is Hook.INGRESS
    assert record.hook(e._replace(hook=5, pf=record.BRIDGE)) is Hook.BROUTING
    assert record.hook(e._replace(hook=1, pf=record.NETDEV)) is Hook.EGRESS


def test_a_packet_with_an_unknown_verdict_is_shown_and_has_an_outcome() -> None:
    verdict = decode_verdict("6")
    hops = (TableHop(0, HOST, Hook.INPUT, table="filter", verdict=verdict), HookHop(1, HOST, Hook.INPUT, verdict=verdict))
    packet = Packet(1, 1, HOST, "eth0", "IPv4", "TCP", Endpoints("10.0.0.1", 5, "10.0.0.2", 80), hops=hops)
    assert all(hop.is_decisive for hop in hops)
    assert classify(packet)[0] == "accepted in INPUT, no socket took it while watched"
    out, text = io.StringIO(), io.StringIO()
    JsonOutput(out, io.StringIO()).packet(packet)
    TextOutput(text, io.StringIO()).packet(packet)
    assert [hop["verdict"] for hop in json.loads(out.getvalue())["hops"]] == ["6", "6"]
    assert text.getvalue().splitlines()[1].endswith("INPUT       filter       6")
