# SPDX-License-Identifier: Apache-2.0
"""Which segments are sent again, which try it is, and what became of the first."""

from __future__ import annotations

from tests.support.syns import ASKED, packet, syn, way
from tracer.connections import retransmissions
from tracer.connections.retransmissions import Retransmissions, occupies_sequence
from tracer.model.packet import Drop, Hop, Packet


def segment(flags: str, seq: int, length: int = 60) -> Packet:
    made = packet(ASKED, flags, way(), seq=seq)
    made.length = length
    return made


def test_the_first_try_is_remembered() -> None:
    of = Retransmissions()
    eaten = syn(Hop(9, "drop", "node", "FORWARD", drop=Drop("NETFILTER_DROP", "nf_hook_slow")))
    assert of.feed(eaten, "->") == ""
    assert of.feed(syn(), "->") == f"sent again (2. try), the first ended: {eaten.verdict}"
    assert of.feed(syn(), "->") == f"sent again (3. try), the first ended: {eaten.verdict}"
    assert of.feed(syn(), "<-") == "", "another direction has other numbers"


def test_only_what_takes_up_numbers() -> None:
    assert all(occupies_sequence(segment(flags, 1)) for flags in ("SYN", "FIN ACK", "PSH ACK"))
    assert occupies_sequence(segment("ACK", 1, 1400))
    assert not occupies_sequence(segment("ACK", 1)) and not occupies_sequence(segment("RST", 1))
    of = Retransmissions()
    assert [of.feed(segment("ACK", 1), "->") for _ in range(3)] == ["", "", ""]


def test_large_ones_that_come_again_and_again() -> None:
    of = Retransmissions()
    remarks = [of.feed(segment("ACK", 9, retransmissions.LARGE_BYTES + 1), "->") for _ in range(3)]
    assert ["MTU black hole" in r for r in remarks] == [False, False, True]
    assert "MTU" not in [of.feed(segment("ACK", 8, retransmissions.LARGE_BYTES), "->") for _ in range(3)][2]


def test_what_went_on_has_ended_later() -> None:
    of, rest = Retransmissions(), segment("SYN", 7)
    of.feed(segment("SYN", 7), "->")
    rest.verdict = "DROPPED in tcp_v4_rcv: NO_SOCKET in node-2"
    of.update(rest, "->")
    assert of.feed(segment("SYN", 7), "->").endswith("the first ended: DROPPED in tcp_v4_rcv: NO_SOCKET in node-2")
    of.update(segment("SYN", 99), "->")  # nobody knows it: nothing to remember
    assert of.feed(segment("SYN", 99), "->") == ""


def test_what_is_remembered_is_bounded() -> None:
    of = Retransmissions()
    for n in range(500):
        of.feed(segment("PSH ACK", n), "->")
    assert len(of._sent) == retransmissions.MAX_SEGMENTS and of.feed(segment("PSH ACK", 499), "->")
    of.shrink()
    assert len(of._sent) == retransmissions.MAX_SEGMENTS_IDLE and of.feed(segment("PSH ACK", 499), "->").startswith(
        "sent again (3. try)"
    )
