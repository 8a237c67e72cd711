# SPDX-License-Identifier: Apache-2.0
"""Rule paths through native nftables chains, as `nft -j` lists them."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.support.predicted_state import PredictedState
from tracer.model.rule import format_path
from tracer.rules.nftables import json_parser
from tracer.rules.nftables.simulate import NftablesSimulator
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import Rewrite, RulePath

PACKET = PacketView("ip", 0x0A000001, 0xC0A8380A, int.from_bytes(b"eth0".ljust(16, b"\0"), "big"), 0, 6, sport=0, dport=80)
DADDR, SADDR = ({"payload": {"protocol": "ip", "field": field}} for field in ("daddr", "saddr"))
DPORT = {"payload": {"protocol": "th", "field": "dport"}}
L4, MARK = {"meta": {"key": "l4proto"}}, {"meta": {"key": "mark"}}
DROP, ACCEPT = {"drop": None}, {"accept": None}


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def rule_paths(
    *rules: list[dict[str, Any]], packet: PacketView = PACKET, hook: str = "input", more: tuple[Any, ...] = (), **chains: Any
) -> list[RulePath]:
    """Rule paths through base chain `base`, which has these rules.

    Args:
        more: Other listed objects.
        chains: Other chains by name, each a list of rules.
    """
    place = {"family": "ip", "table": "t"}
    listed: list[Any] = [{"chain": {**place, "name": "base", "type": "filter", "hook": hook, "prio": 0, "policy": "accept"}}]
    listed += [{"chain": {**place, "name": name}} for name in chains] + list(more)
    handle = 0
    for name, body in (("base", rules), *chains.items()):
        for each in body:
            handle += 1
            listed.append({"rule": {**place, "chain": name, "handle": handle, "expr": each}})
    found = json_parser.parse(json.dumps({"nftables": listed}))
    return NftablesSimulator(found).simulate(found.bases[0], packet, False, PredictedState())


@pytest.mark.parametrize(
    ("left", "right", "op", "true"),
    [
        (DADDR, "192.168.56.10", "==", True), (DADDR, {"prefix": {"addr": "192.168.0.0", "len": 16}}, "!=", False),
        (SADDR, {"range": ["10.0.0.0", "10.0.0.9"]}, "==", True), (DPORT, {"set": [22, 80]}, "==", True),
        (DPORT, {"range": [81, 90]}, "==", False), (L4, "tcp", "==", True), (L4, {"set": ["udp", "sctp"]}, "==", False),
        ({"payload": {"protocol": "udp", "field": "dport"}}, 80, "==", False),
        ({"payload": {"protocol": "tcp", "field": "dport"}}, 80, "==", True),
        ({"meta": {"key": "iifname"}}, "eth*", "==", True), ({"meta": {"key": "oifname"}}, "eth0", "==", False),
        ({"fib": {"result": "type", "flags": ["daddr"]}}, "local", "==", True), ({"ct": {"key": "state"}}, "new", "in", True),
        ({"ct": {"key": "state"}}, ["established", "related"], "in", False), ({"ct": {"key": "status"}}, "dnat", "in", False),
        ({"&": [MARK, 0x4000]}, 0, "!=", False),
        ({"concat": [DADDR, L4, DPORT]}, {"concat": ["192.168.56.10", "tcp", 80]}, "==", True),
        (DPORT, 1024, "<", True),
    ],
)  # fmt: skip
def test_matches(left: Any, right: Any, op: str, true: bool) -> None:
    (path,) = rule_paths([match(left, right, op), DROP])
    assert (path.verdict, path.conditions) == ("DROP" if true else "ACCEPT", ())


@pytest.mark.parametrize(
    "left",
    [{"meta": {"key": "skuid"}}, {"ct": {"key": "mark"}}, {"payload": {"protocol": "th", "field": "sport"}},
     {"socket": {"key": "mark"}}],
)  # fmt: skip
def test_an_unknown_value_splits_the_path(left: Any) -> None:
    found = rule_paths([match(left, 5), DROP])
    assert {(w.verdict, w.conditions[0].text.rpartition(" is ")[2]) for w in found} == {
        ("DROP", "true in rule 1 of base"), ("ACCEPT", "false in rule 1 of base"),
    }  # fmt: skip


def test_an_unknown_expression_splits_the_path() -> None:
    found = rule_paths([{"xt": {"type": "match", "name": "recent"}}, DROP])
    assert sorted(w.verdict for w in found) == ["ACCEPT", "DROP"] and all(w.conditions for w in found)


def test_jump_goto_return_and_policy() -> None:
    (path,) = rule_paths(
        [{"jump": {"target": "a"}}], [{"goto": {"target": "b"}}], [DROP],
        a=[[match(L4, "udp"), DROP], [{"return": None}], [DROP]], b=[[match(L4, "udp"), DROP]],
    )  # fmt: skip
    assert [format_path(v.path) for v in path.hits] == ["base 1", "base 1 > a 2", "base 2", "base policy"]
    assert [v.verdict for v in path.hits] == ["JUMP a", "RETURN", "GOTO b", "ACCEPT"]


def test_marks_and_translation() -> None:
    mark = {"mangle": {"key": MARK, "value": {"|": [MARK, 0x4000]}}}
    (path,) = rule_paths(
        [mark], [match({"&": [MARK, 0x4000]}, 0, "!="), {"masquerade": {"flags": "fully-random"}}], hook="postrouting"
    )
    assert (
        path.mark == 0x4000
        and path.rewrite == Rewrite("MASQUERADE")
        and [v.verdict for v in path.hits] == ["MARK", "MASQUERADE"]
    )


def test_a_verdict_map_shows_its_element() -> None:
    place = {"family": "ip", "table": "t"}
    elements = [[{"concat": ["tcp", 80]}, {"goto": {"target": "web"}}], [{"concat": ["tcp", 81]}, DROP]]
    services = {
        "map": {**place, "name": "services", "type": ["inet_proto", "inet_service"], "map": "verdict", "elem": elements}
    }
    rule = [{"vmap": {"key": {"concat": [L4, DPORT]}, "data": "@services"}}]
    (path,) = rule_paths(rule, [DROP], more=(services,), web=[[{"reject": {"type": "icmp", "expr": "port-unreachable"}}]])
    assert [(format_path(v.path), v.element) for v in path.hits] == [("base 1", "tcp . 80 : goto web"), ("base 1 > web 1", "")]
    assert (path.verdict, path.reject) == ("REJECT", "icmp-port-unreachable")
    (other,) = rule_paths(rule, more=(services,), packet=replace(PACKET, dport=82), web=[])
    assert other.verdict == "ACCEPT" and len(other.hits) == 1, "without an element the rule has no effect"


def test_random_choices_have_shares() -> None:
    numgen = {"numgen": {"mode": "random", "mod": 2, "offset": 0}}
    ends = {"set": [[0, {"concat": ["10.0.0.11", 8080]}], [1, {"concat": ["10.0.0.12", 8080]}]]}
    found = rule_paths([{"dnat": {"family": "ip", "addr": {"map": {"key": numgen, "data": ends}}}}], hook="prerouting")
    half = Fraction(1, 2)
    assert {w.rewrite: w.share for w in found} == {
        Rewrite("DNAT", "10.0.0.11", 8080): half,
        Rewrite("DNAT", "10.0.0.12", 8080): half,
    }
    verdicts = {"set": [[0, {"goto": {"target": "a"}}], [1, {"goto": {"target": "b"}}]]}
    found = rule_paths([{"vmap": {"key": numgen, "data": verdicts}}], a=[[DROP]], b=[[ACCEPT]])
    assert {(w.verdict, w.share, w.hits[0].element) for w in found} == {
        ("DROP", half, "0 : goto a"),
        ("ACCEPT", half, "1 : goto b"),
    }


def test_named_sets_and_a_missing_set() -> None:
    place = {"family": "ip", "table": "t"}
    named = {
        "set": {
            **place,
            "name": "ours",
            "type": "ipv4_addr",
            "elem": ["192.168.56.10", {"prefix": {"addr": "10.9.0.0", "len": 16}}],
        }
    }
    assert [w.verdict for w in rule_paths([match(DADDR, "@ours"), DROP], more=(named,))] == ["DROP"]
    assert [w.verdict for w in rule_paths([match(SADDR, "@ours"), DROP], more=(named,))] == ["ACCEPT"]
    assert len(rule_paths([match(SADDR, "@gone"), DROP])) == 2


def test_a_random_choice_of_very_many_values_is_not_expanded() -> None:
    """`numgen random mod 2000000000` is only one expression for the rule's author."""
    value = {"numgen": {"mode": "random", "mod": 2_000_000_000, "offset": 0}}
    found = rule_paths([{"mangle": {"key": MARK, "value": value}}], [match(value, 7), DROP])
    assert [w.verdict for w in found] == ["ACCEPT", "DROP"] or [w.verdict for w in found] == ["DROP", "ACCEPT"]
    assert all(w.mark is None and w.conditions for w in found)


@pytest.mark.parametrize(("sign", "bits"), [("<<", 1 << 31), ("<<", -1), (">>", -1)])
def test_a_shift_by_no_possible_number_of_bits_is_not_known(sign: str, bits: int) -> None:
    found = rule_paths([match({sign: [MARK, bits]}, 5), DROP], packet=replace(PACKET, mark=1))
    assert {p.verdict for p in found} == {"DROP", "ACCEPT"} and all(p.conditions for p in found)


def test_a_mask_is_not_used_as_a_number_of_bits() -> None:
    """1 << 0xff000000 would be a number of half a gigabyte."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (128 << 20), limits[1]))
    try:
        (path,) = rule_paths([match({"&": [MARK, 0xFF000000]}, 0), DROP], packet=replace(PACKET, mark=1))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert (path.verdict, path.conditions) == ("DROP", ())
