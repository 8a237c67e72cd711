# SPDX-License-Identifier: Apache-2.0
"""The headers of a packet at the borders of its node."""

from __future__ import annotations

from dataclasses import replace

from tests.support.node_views import ENDS, EPOCH, INSIDE_NS, packet
from tracer.joining.wire_headers import PAYLOAD_BYTES, WireHeader, headers_of, payload_of
from tracer.model.endpoints import Endpoints
from tracer.model.hop import HookHop, Nat, NatHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome

BEHIND = Endpoints("10.244.0.1", 23711, "10.244.2.8", 8080)


def test_a_packet_that_is_made_here_has_a_departure_only() -> None:
    assert headers_of(packet()) == (None, WireHeader(ENDS, "eth0", EPOCH + INSIDE_NS))


def test_a_forwarded_packet_has_the_header_before_and_after_its_translation() -> None:
    arrival, departure = headers_of(packet(way="through", to=BEHIND))
    assert arrival == WireHeader(ENDS, "eth0", EPOCH)
    assert departure == WireHeader(BEHIND, "eth0", EPOCH + INSIDE_NS)


def test_a_packet_that_ends_here_has_no_departure() -> None:
    for way in ("in", "drop"):
        arrival, departure = headers_of(packet(way=way, to=BEHIND))
        assert (arrival, departure) == (WireHeader(ENDS, "eth0", EPOCH), None)
    assert headers_of(packet(way="local")) == (None, None)


def test_a_packet_that_was_not_seen_to_leave_has_no_departure() -> None:
    sent = packet(way="through")
    assert headers_of(replace(sent, outcome=Outcome.UNKNOWN)).departure is None
    assert headers_of(replace(sent, hops=sent.hops[:1])).departure is None
    assert headers_of(replace(sent, hops=())) == (None, None)


def test_the_loopback_interface_is_no_border() -> None:
    hops = (
        HookHop(0, HOST, Hook.PREROUTING, in_iface="lo", verdict=Verdict.ACCEPT),
        HookHop(9, HOST, Hook.POSTROUTING, out_iface="lo", verdict=Verdict.ACCEPT),
    )
    assert headers_of(replace(packet(way="through"), hops=hops)) == (None, None)


def test_hops_of_a_copy_do_not_count() -> None:
    through = packet(way="through")
    copy = NatHop(INSIDE_NS, HOST, Hook.POSTROUTING, nat=Nat("SNAT", ENDS, BEHIND), clone=True)
    last = HookHop(INSIDE_NS, HOST, Hook.POSTROUTING, out_iface="cni0", verdict=Verdict.ACCEPT, clone=True)
    assert headers_of(replace(through, hops=(*through.hops, copy, last))) == headers_of(through)


def test_a_packet_that_continues_another_has_no_arrival_and_a_departure_only_after_a_translation() -> None:
    assert headers_of(replace(packet(way="through"), continues=EPOCH - 1)) == (None, None)
    assert headers_of(replace(packet(way="through", to=BEHIND), continues=EPOCH - 1)) == (
        None,
        WireHeader(BEHIND, "eth0", EPOCH + INSIDE_NS),
    )


def test_a_rewrite_that_is_seen_first_does_not_hide_the_arrival() -> None:
    """With legacy rules the answer to a masqueraded request is translated back before the first hook with an interface."""
    back = NatHop(0, HOST, Hook.PREROUTING, nat=Nat("reverse MASQUERADE", ENDS, BEHIND))
    rest = (
        HookHop(0, HOST, Hook.PREROUTING, in_iface="flannel.1", verdict=Verdict.ACCEPT),
        HookHop(INSIDE_NS, HOST, Hook.POSTROUTING, out_iface="ext0", verdict=Verdict.ACCEPT),
    )
    arrival, departure = headers_of(replace(packet(way="through"), hops=(back, *rest)))
    assert arrival == WireHeader(ENDS, "flannel.1", EPOCH)
    assert departure == WireHeader(BEHIND, "ext0", EPOCH + INSIDE_NS)
    # A packet that is made here, and translated, has not come by the interface of a later hook.
    made = NatHop(0, HOST, Hook.OUTPUT, nat=Nat("DNAT", ENDS, BEHIND))
    assert headers_of(replace(packet(way="through"), hops=(made, *rest))).arrival is None


def test_the_payload_is_what_no_translation_changes() -> None:
    ipv4, ipv6 = bytes((0x45, *range(19))), bytes((0x60, 0, 0, 0, 0, 0, 17, *range(33)))
    data = bytes(range(100, 200))
    assert payload_of(packet(protocol="UDP", raw=ipv4 + bytes(8) + data)) == data[:PAYLOAD_BYTES]
    assert payload_of(packet(protocol="UDP", raw=ipv6 + bytes(8) + data)) == data[:PAYLOAD_BYTES]
    options = bytes((0x46, *range(23)))
    assert payload_of(packet(protocol="UDP", raw=options + bytes(8) + data[:4])) == data[:4]
    # The sequence number of an echo, behind its identifier.
    assert payload_of(packet(protocol="ICMP", raw=ipv4 + bytes((8, 0, 1, 1, 77, 77, 0, 5)) + data[:2])) == b"\0\5" + data[:2]
    assert payload_of(packet(protocol="TCP", raw=ipv4 + data)) == b""
    assert payload_of(packet(protocol="UDP")) == b""
    extended = bytes((0x60, 0, 0, 0, 0, 0, 0, *range(33)))
    assert payload_of(packet(protocol="UDP", raw=extended + data)) == payload_of(packet(protocol="UDP", raw=b"\x60")) == b""
