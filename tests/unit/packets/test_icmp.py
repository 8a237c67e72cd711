# SPDX-License-Identifier: Apache-2.0
"""Names of ICMP errors; other ICMP messages have no name."""

from __future__ import annotations

import pytest

from tests.support.builders import POD, Trail, packet
from tracer.events import record
from tracer.model.endpoints import Endpoints
from tracer.model.namespace_name import HOST
from tracer.model.packet import Packet
from tracer.packets import icmp


def message(protocol: str, kind: int, code: int) -> Packet:
    return Packet(1, 0, HOST, "", "IPv4", protocol, Endpoints("10.0.0.1", 0, "10.0.0.2", 0), icmp=(kind, code))


@pytest.mark.parametrize(
    ("protocol", "kind", "code", "name"),
    [
        ("ICMP", 3, 4, "ICMP fragmentation needed"), ("ICMP", 3, 1, "ICMP icmp-host-unreachable"),
        ("ICMP", 11, 0, "ICMP time to live exceeded"), ("ICMPv6", 2, 0, "ICMPv6 packet too big"),
        ("ICMP", 3, 99, "ICMP code 99"), ("ICMP", 8, 0, ""), ("ICMPv6", 128, 0, ""),
    ],
)  # fmt: skip
def test_names(protocol: str, kind: int, code: int, name: str) -> None:
    assert icmp.error_name(message(protocol, kind, code)) == name


def test_neighbor_discovery() -> None:
    assert icmp.is_neighbor_discovery(message("ICMPv6", 135, 0)) and icmp.is_neighbor_discovery(message("ICMPv6", 143, 0))
    assert not any(
        map(icmp.is_neighbor_discovery, (message("ICMPv6", 1, 4), message("ICMPv6", 128, 0), message("ICMP", 135, 0)))
    )


def test_other_protocols_have_no_icmp_type() -> None:
    tcp = Packet(1, 0, HOST, "", "IPv4", "TCP", Endpoints("10.0.0.1", 3 << 8, "10.0.0.2", 3 << 8 | 1))
    assert tcp.icmp is None and icmp.error_name(tcp) == ""


def test_type_and_code_come_from_the_record() -> None:
    """Type and code are in the record's port fields, but are not ports."""
    made = packet(Trail(("10.0.0.1", 77, "10.0.0.2", 3 << 8 | 3), protocol=1, tcp_flags=0).hook("OUTPUT"))
    assert made.icmp == (3, 3) and made.endpoints == Endpoints("10.0.0.1", 0, "10.0.0.2", 0)
    assert icmp.error_name(made) == "ICMP icmp-port-unreachable"
    unseen = Trail(("10.0.0.1", 77, "10.0.0.2", 3 << 8 | 3), protocol=1, netns=POD).add("DROP", flags="NO_HEADER")
    assert record.icmp(record.event(unseen.batch[0])) is None
