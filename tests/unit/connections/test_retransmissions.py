# SPDX-License-Identifier: Apache-2.0
"""Which segments are sent again, which try it is, and what became of the first."""

from __future__ import annotations

from tests.support.syns import ASKED, packet, syn, way
from tracer.connections import retransmissions
from tracer.connections.retransmissions import Retransmissions, occupies
from tracer.model.packet import Drop, Hop, Packet


def segment(flags: str, seq: int, length: int = 60) -> Packet:
    made = packet(ASKED, flags, way(), seq=seq)
    made.length = length
    return made


def test_the_first_try_is_remembered() -> None:
    of = Retransmissions()
    eaten = syn(Hop(9, "drop", "node", "FORWARD", drop=Drop("NETFILTER_DROP", "nf_hook_slow")))
    assert of.again(eaten, "->") == ""
    assert of.again(syn(), "->") == f"sent again (2. try), the first ended: {eaten.verdict}"
    assert of.again(syn(), "->") == f"sent again (3. try), the first ended: {eaten.verdict}"
    assert of.again(syn(), "<-") == "", "another direction has other numbers"


def test_only_what_takes_up_numbers() -> None:
    assert occupies(segment("SYN", 1)) and occupies(segment("FIN ACK", 1)) and occupies(segment("PSH ACK", 1))
    assert occupies(segment("ACK", 1, 1400)) and not occupies(segment("ACK", 1)) and not occupies(segment("RST", 1))
    of = Retransmissions()
    assert [of.again(segment("ACK", 1), "->") for _ in range(3)] == ["", "", ""]


def test_large_ones_that_come_again_and_again() -> None:
    of = Retransmissions()
    remarks = [of.again(segment("ACK", 9, retransmissions.LARGE + 1), "->") for _ in range(3)]
    assert ["MTU black hole" in r for r in remarks] == [False, False, True]
    assert "MTU" not in [of.again(segment("ACK", 8, retransmissions.LARGE), "->") for _ in range(3)][2]


def test_what_went_on_has_ended_later() -> None:
    of, rest = Retransmissions(), segment("SYN", 7)
    of.again(segment("SYN", 7), "->")
    rest.verdict = "DROPPED in tcp_v4_rcv: NO_SOCKET in node-2"
    of.went_on(rest, "->")
    assert of.again(segment("SYN", 7), "->").endswith("the first ended: DROPPED in tcp_v4_rcv: NO_SOCKET in node-2")
    of.went_on(segment("SYN", 99), "->")  # nobody knows it: nothing to remember
    assert of.again(segment("SYN", 99), "->") == ""


def test_what_is_remembered_is_bounded() -> None:
    of = Retransmissions()
    for n in range(500):
        of.again(segment("PSH ACK", n), "->")
    assert len(of._sent) == retransmissions.MOST and of.again(segment("PSH ACK", 499), "->")
    of.flush()
    assert len(of._sent) == retransmissions.MOST_QUIET and of.again(segment("PSH ACK", 499), "->").startswith(
        "sent again (3. try)"
    )
