# SPDX-License-Identifier: Apache-2.0
"""Conditions on TCP flags."""

from __future__ import annotations

import pytest

from tracer.errors import BadOption
from tracer.events.record import TCP_FLAGS as SHOWN_FLAGS
from tracer.model.tcp_flags import TCP_FLAGS, flags_value, parse_tcp_flags

SYN, ACK, RST, ECE = 2, 16, 4, 64


def test_a_flag_is_set_whatever_the_others_are() -> None:
    found = parse_tcp_flags(["SYN"])
    assert {SYN, SYN | ACK, SYN | ECE} <= found and ACK not in found and len(found) == 128


def test_flags_that_are_set_and_flags_that_are_not() -> None:
    found = parse_tcp_flags(["syn, Not-Ack"])
    assert SYN in found and SYN | ECE in found and SYN | ACK not in found and len(found) == 64


def test_repeated_options_are_alternatives() -> None:
    assert parse_tcp_flags(["RST", "SYN"]) == parse_tcp_flags(["RST"]) | parse_tcp_flags(["SYN"])
    assert parse_tcp_flags([]) == frozenset()


@pytest.mark.parametrize("text", ["", "SYNC", "SYN,", "!ACK", "not-", "not-not-SYN", "SYN ACK", "ECE"])
def test_texts_that_are_no_flags(text: str) -> None:
    with pytest.raises(BadOption) as e:
        parse_tcp_flags([text])
    assert str(e.value) == (
        f"--tcp-flags {text!r} is no list of TCP flags: choose from FIN, SYN, RST, PSH, ACK, URG, as in SYN,not-ACK."
    )


def test_a_condition_that_no_packet_meets() -> None:
    with pytest.raises(BadOption, match=r"^--tcp-flags 'SYN,ACK,not-SYN' contradicts itself: no packet can match\.$"):
        parse_tcp_flags(["SYN,ACK,not-SYN"])


def test_the_flags_of_a_packets_text() -> None:
    assert flags_value("SYN ACK") == SYN | ACK and flags_value("") == 0
    assert {name: bit for bit, name in SHOWN_FLAGS} == TCP_FLAGS, "a packet's text has exactly these"
