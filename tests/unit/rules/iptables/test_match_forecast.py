# SPDX-License-Identifier: Apache-2.0
"""The results of matches are predicted, for the first packet of a connection."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.predicted_state import PredictedState
from tracer.model.condition import MatchResult
from tracer.rules.iptables.match_forecast import forecast
from tracer.rules.iptables.rule_parser import parse, split
from tracer.rules.packet_view import PacketView

PACKET = PacketView("ip", 0x0A000001, 0xC0A8380A, 0, 0, 6, sport=40000, dport=80)


def answer(name: str, text: str, world: PredictedState | None = None) -> MatchResult:
    return forecast(name, parse(split(text)).head, PACKET, world or PredictedState())


@pytest.mark.parametrize(
    ("name", "text", "share"),
    [
        ("addrtype", "--dst-type LOCAL", 1), ("addrtype", "! --dst-type LOCAL", 0), ("addrtype", "--src-type LOCAL", 0),
        ("addrtype", "--src-type UNICAST --dst-type LOCAL", 1), ("conntrack", "--ctstate NEW", 1),
        ("conntrack", "--ctstate RELATED,ESTABLISHED", 0), ("conntrack", "! --ctstate RELATED,ESTABLISHED,DNAT", 1),
        ("conntrack", "--ctdir REPLY", 0), ("state", "--state NEW,ESTABLISHED", 1), ("nfacct", "--nfacct-name x", 1),
        ("statistic", "--mode random --probability 0.33333333349", Fraction(1, 3)),
        ("statistic", "--mode random ! --probability 0.25", Fraction(3, 4)),
        ("set", "--match-set FULL src,dst", 1), ("set", "! --match-set FULL src,dst", 0), ("set", "--match-set FULL dst", 0),
        ("statistic", "--mode nth --every 4 --packet 0", Fraction(1, 4)),
    ],
)  # fmt: skip
def test_predicted_matches(name: str, text: str, share: Fraction | int) -> None:
    assert answer(name, text) == MatchResult(Fraction(share))


def test_after_dnat() -> None:
    assert answer(
        "conntrack", "! --ctstate RELATED,ESTABLISHED,DNAT", PredictedState(frozenset({"NEW", "DNAT"}))
    ) == MatchResult(Fraction(0))


@pytest.mark.parametrize(
    ("name", "text"),
    [("set", "--match-set A src"), ("limit", "--limit 5/sec"), ("addrtype", "--limit-iface-in"), ("conntrack", "--ctproto 6"),
     ("statistic", "--mode random")],
)  # fmt: skip
def test_a_match_that_cannot_be_predicted_is_shown_with_its_text(name: str, text: str) -> None:
    assert answer(name, text).doubt == f"-m {name} {text}"
