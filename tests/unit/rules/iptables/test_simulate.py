# SPDX-License-Identifier: Apache-2.0
"""Rule paths through a table, computed from the packet alone."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.predicted_state import PredictedState
from tracer.model.netfilter import IP_HOOKS, Verdict
from tracer.model.rule import format_path
from tracer.rules import save_parser
from tracer.rules.iptables.assemble import assemble
from tracer.rules.iptables.simulate import IptablesSimulator
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import Rewrite, RulePath, TooManyPaths

PACKET = PacketView("ip", 0x0A000001, 0xC0A8380A, 0, 0, 6, sport=0, dport=80)


def rule_paths(
    *rules: str, table: str = "filter", hook: str = "INPUT", packet: PacketView = PACKET, sport_known: bool = False
) -> list[RulePath]:
    heads = "".join(f":{h} ACCEPT [0:0]\n" for h in IP_HOOKS) + ":A - [0:0]\n:B - [0:0]\n"
    ruleset = save_parser.parse(f"*{table}\n{heads}" + "".join(f"-A {r}\n" for r in rules))
    return IptablesSimulator(*assemble(ruleset, "ip", table)).simulate(
        IP_HOOKS.index(hook), packet, sport_known, PredictedState()
    )


def test_jump_return_goto_and_policy() -> None:
    (path,) = rule_paths(
        "INPUT -j A", "INPUT -g B", "INPUT -j DROP", "A -p udp -j DROP", "A -j RETURN", "A -j DROP", "B -p udp -j DROP"
    )
    assert [format_path(v.path) for v in path.hits] == ["INPUT 1", "INPUT 1 > A 2", "INPUT 2", "INPUT policy"]
    assert (path.verdict, path.share, path.conditions) == ("ACCEPT", Fraction(1), ())
    assert [v.rule.text if v.rule else "" for v in path.hits][1] == "-j RETURN"


def test_marks_are_carried() -> None:
    (path,) = rule_paths("INPUT -j MARK --set-xmark 0x4000/0x4000", "INPUT -m mark --mark 0x4000/0x4000 -j DROP")
    assert (path.verdict, path.mark) == ("DROP", 0x4000)


def test_random_matches_split_the_path_into_exact_shares() -> None:
    found = rule_paths(
        "A -m statistic --mode random --probability 0.33333333349 -j DNAT --to-destination 10.0.0.11:8080",
        "A -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.0.0.12:8080",
        "A -j DNAT --to-destination 10.0.0.13", "PREROUTING -j A", table="nat", hook="PREROUTING",
    )  # fmt: skip
    assert {w.rewrite: w.share for w in found} == {
        Rewrite("DNAT", "10.0.0.11", 8080): Fraction(1, 3), Rewrite("DNAT", "10.0.0.12", 8080): Fraction(1, 3),
        Rewrite("DNAT", "10.0.0.13"): Fraction(1, 3),
    }  # fmt: skip


def test_a_match_that_cannot_be_computed_splits_the_path_with_a_condition() -> None:
    found = rule_paths("INPUT -m set --match-set X src -m limit --limit 5/sec -j DROP")
    first, second = ("-m set --match-set X src", "-m limit --limit 5/sec")
    where = "in rule 1 of INPUT"
    assert {(w.verdict, tuple(d.text for d in w.conditions)) for w in found} == {
        ("ACCEPT", (f"{first} is false {where}",)),
        ("ACCEPT", (f"{first} is true {where}", f"{second} is false {where}")),
        ("DROP", (f"{first} is true {where}", f"{second} is true {where}")),
    }


def test_a_source_port_that_was_not_given() -> None:
    rule = "INPUT -p tcp -m tcp --sport 40000 -j DROP"
    for each in (rule, "INPUT -p tcp -m tcp --sport 40000:50000 -j DROP", "INPUT -p tcp -m multiport --sports 1,9 -j DROP"):
        found = rule_paths(each)
        assert sorted(w.verdict for w in found) == ["ACCEPT", "DROP"] and all(w.conditions for w in found), each
    assert [w.conditions for w in rule_paths("INPUT -p tcp -m tcp --sport 40000 --dport 81 -j DROP")] == [()]
    exact = PacketView("ip", 0x0A000001, 0xC0A8380A, 0, 0, 6, sport=40000, dport=80)
    assert [w.verdict for w in rule_paths(rule, packet=exact, sport_known=True)] == ["DROP"]


@pytest.mark.parametrize(
    ("target", "verdict", "reject", "rewrite"),
    [
        ("REJECT --reject-with tcp-reset", "REJECT", "tcp-reset", None), ("REJECT", "REJECT", "icmp-port-unreachable", None),
        ("NFQUEUE --queue-num 1", "QUEUE", "", None), ("MASQUERADE --random-fully", "ACCEPT", "", Rewrite("MASQUERADE")),
        ("REDIRECT --to-ports 3128", "ACCEPT", "", Rewrite("REDIRECT", "", 3128)),
        ("MASQUERADE", "ACCEPT", "", Rewrite("MASQUERADE")),
        ("MASQUERADE --to-ports 40000", "ACCEPT", "", Rewrite("MASQUERADE", "", 40000)),
        ("MASQUERADE --to-ports 40000-40001", "ACCEPT", "", Rewrite("MASQUERADE")),
        ("SNAT --to-source 10.0.0.1-10.0.0.9", "ACCEPT", "", Rewrite("SNAT", "10.0.0.1")),
        ("LOG --log-prefix \"-j DROP\"", "ACCEPT", "", None),
    ],
)  # fmt: skip
def test_targets(target: str, verdict: str, reject: str, rewrite: Rewrite | None) -> None:
    (path,) = rule_paths(f"INPUT -j {target}")
    assert (path.verdict, path.reject, path.rewrite) == (verdict, reject, rewrite)


def test_too_many_paths_end_the_simulation() -> None:
    with pytest.raises(TooManyPaths):
        rule_paths(*[f"INPUT -m limit --limit {n}/sec -j A" for n in range(1, 13)])


def test_a_match_that_changes_the_mark_and_a_target_that_changes_an_address() -> None:
    restoring = ("INPUT -m socket --restore-skmark -m mark --mark 1 -j ACCEPT", "INPUT -m mark --mark 7 -j DROP")
    found = {(w.verdict, w.mark): w.conditions for w in rule_paths(*restoring)}
    assert (Verdict.ACCEPT, 0) in found and len(found[Verdict.ACCEPT, 0]) == 1, "without a socket the mark does not change"
    assert found[Verdict.DROP, None][-1].text == "-m mark is true in rule 2 of INPUT"
    (path,) = rule_paths("INPUT -m socket --transparent", "INPUT -m mark --mark 7 -j DROP")[:1]
    assert path.mark == 0
    moved = rule_paths("INPUT -j SNPT --src-pfx fd00::/64 --dst-pfx fd01::/64", "INPUT -s 10.0.0.1/32 -j DROP")
    assert sorted(w.verdict for w in moved) == ["ACCEPT", "DROP"] and all("SNPT" in w.conditions[0].text for w in moved)
