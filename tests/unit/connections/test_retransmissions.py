# SPDX-License-Identifier: Apache-2.0
"""Which segments are sent again, the number of the try, and how the first one ended."""

from __future__ import annotations

from dataclasses import replace

from tests.support.syns import REQUESTED, packet, syn, way
from tracer.connections import retransmissions
from tracer.connections.retransmissions import Retransmissions, occupies_sequence
from tracer.model.hop import Drop, DropHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet


def segment(flags: str, seq: int, length: int = 60) -> Packet:
    return replace(packet(REQUESTED, flags, way(), seq=seq), length=length)


def test_the_first_try_is_remembered() -> None:
    segments = Retransmissions()
    dropped = syn(DropHop(9, HOST, Hook.FORWARD, drop=Drop("NETFILTER_DROP", "nf_hook_slow")))
    assert segments.feed(dropped, "->") == ""
    assert segments.feed(syn(), "->") == f"sent again (2. try), the first ended: {dropped.verdict}"
    assert segments.feed(syn(), "->") == f"sent again (3. try), the first ended: {dropped.verdict}"
    assert segments.feed(syn(), "<-") == "", "the other direction has its own sequence numbers"


def test_only_segments_that_occupy_sequence_numbers_count() -> None:
    assert all(occupies_sequence(segment(flags, 1)) for flags in ("SYN", "FIN ACK", "PSH ACK"))
    assert occupies_sequence(segment("ACK", 1, 1400))
    assert not occupies_sequence(segment("ACK", 1)) and not occupies_sequence(segment("RST", 1))
    segments = Retransmissions()
    assert [segments.feed(segment("ACK", 1), "->") for _ in range(3)] == ["", "", ""]


def test_large_segments_that_are_sent_again_repeatedly() -> None:
    segments = Retransmissions()
    remarks = [segments.feed(segment("ACK", 9, retransmissions.LARGE_BYTES + 1), "->") for _ in range(3)]
    assert ["MTU black hole" in r for r in remarks] == [False, False, True]
    assert "MTU" not in [segments.feed(segment("ACK", 8, retransmissions.LARGE_BYTES), "->") for _ in range(3)][2]


def test_a_packet_that_continues_has_a_later_end() -> None:
    segments, continued = Retransmissions(), segment("SYN", 7)
    segments.feed(segment("SYN", 7), "->")
    continued = replace(continued, verdict="DROPPED in tcp_v4_rcv: NO_SOCKET in node-2")
    segments.update(continued, "->")
    assert segments.feed(segment("SYN", 7), "->").endswith("the first ended: DROPPED in tcp_v4_rcv: NO_SOCKET in node-2")
    segments.update(segment("SYN", 99), "->")  # an unknown segment: nothing to remember
    assert segments.feed(segment("SYN", 99), "->") == ""


def test_remembered_segments_are_bounded() -> None:
    segments = Retransmissions()
    for n in range(500):
        segments.feed(segment("PSH ACK", n), "->")
    assert len(segments._sent) == retransmissions.MAX_SEGMENTS and segments.feed(segment("PSH ACK", 499), "->")
    segments.shrink()
    assert len(segments._sent) == retransmissions.MAX_SEGMENTS_IDLE and segments.feed(segment("PSH ACK", 499), "->").startswith(
        "sent again (3. try)"
    )


def test_the_number_of_a_try_is_not_guessed() -> None:
    """After its first transmission was given up, a segment that is sent twice more is not called the second try."""
    segments = Retransmissions()
    segments.feed(segment("PSH ACK", 1), "->")
    for n in range(2, retransmissions.MAX_SEGMENTS + 10):
        segments.feed(segment("PSH ACK", n), "->")
    assert [segments.feed(segment("PSH ACK", 1), "->") for _ in range(3)] == ["", "", ""]
    assert segments.feed(segment("PSH ACK", retransmissions.MAX_SEGMENTS), "->").startswith("sent again (2. try)")
    wrapped = Retransmissions()
    for n in range(retransmissions.MAX_SEGMENTS + 10):
        number = (0xFFFFFFF0 + n) % (1 << 32)
        assert wrapped.feed(segment("PSH ACK", number), "->") == "", "sequence numbers begin again at zero"
