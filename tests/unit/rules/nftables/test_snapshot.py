# SPDX-License-Identifier: Apache-2.0
"""Snapshots join the kernel's handles with the tools' texts; the data is from a node with kube-proxy and portmap."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tracer.model.rule import Rule
from tracer.rules.nftables.listing import saved
from tracer.rules.nftables.netlink_dump import Dump, DumpedChain, DumpedRule
from tracer.rules.nftables.snapshot import Snapshot, join
from tracer.rules.nftables.verdict_maps import MapElement, VerdictMap

DATA = Path(__file__).parents[3] / "data/nft"
TABLES = {("ip", "filter"): 2, ("ip", "nat"): 5}


def saves() -> dict[tuple[str, str], dict[str, Sequence[Rule]]]:
    parts = (DATA / "iptables.save").read_text().split("\n*")
    return {("ip", part.split("\n")[0].lstrip("*")): saved(part) for part in parts}


def dumped_rules() -> Iterator[tuple[str, str, str, int, str]]:
    """Each rule in the recorded netlink dump: family, table, chain, handle and comment, in order."""
    for line in (DATA / "iptables.jsonl").read_text().splitlines():
        family, table, chain, handle, comment, _ = json.loads(line)
        if (family, table) in TABLES:
            yield family, table, chain, handle, comment or ""


def dump() -> Dump:
    rules: dict[tuple[str, str, str], list[DumpedRule]] = {}
    for family, table, chain, handle, comment in dumped_rules():
        rules.setdefault((family, table, chain), []).append(DumpedRule(handle, comment))
    return Dump(42, TABLES, {key: DumpedChain(n, "", in_chain) for n, (key, in_chain) in enumerate(rules.items(), 1)}, {})


@pytest.fixture
def snapshot() -> Snapshot:
    return join(dump(), 100, lambda *_: {}, lambda *table: saves().get(table, {}))


def test_texts_of_iptables_are_joined_by_order(snapshot: Snapshot) -> None:
    rule = snapshot.rules[5, 214]
    assert (rule.chain, rule.number, rule.target) == ("KUBE-SERVICES", 4, "KUBE-NODEPORTS")
    assert rule.comment.startswith("kubernetes service nodeports")
    assert rule.text.endswith("-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")


def test_every_comment_is_the_one_in_the_kernel(snapshot: Snapshot) -> None:
    """This shows that the order is right: the tool prints the comments that the kernel has under the same handles."""
    comments = {(TABLES[family, table], handle): comment for family, table, _, handle, comment in dumped_rules()}
    assert {key: rule.comment for key, rule in snapshot.rules.items()} == comments
    assert len(comments) > 40 and all(rule.text or rule.number for rule in snapshot.rules.values())


def test_numbers_count_from_one_in_each_chain(snapshot: Snapshot) -> None:
    for key, rules in snapshot.ruleset.chains.items():
        assert [r.number for r in rules] == list(range(1, len(rules) + 1)), key
        assert {(r.family, r.table, r.chain) for r in rules} <= {key}
    assert snapshot.ruleset.generation == "42" and snapshot.ruleset.backend == "nft"


def test_a_chain_that_does_not_agree_has_the_text_of_nft() -> None:
    short = saves()
    short["ip", "nat"]["KUBE-SERVICES"] = short["ip", "nat"]["KUBE-SERVICES"][:-1]
    listed_tables: Counter[tuple[str, ...]] = Counter()

    def listed(*table: str) -> dict[int, str]:
        listed_tables[table] += 1
        return {214: "fib daddr type local jump KUBE-NODEPORTS"}

    snapshot = join(dump(), 100, listed, lambda *table: short.get(table, {}))
    assert listed_tables == Counter([("ip", "nat")]), "one listing, of that table only"
    assert snapshot.rules[5, 214].text == "fib daddr type local jump KUBE-NODEPORTS"
    assert snapshot.rules[5, 214].comment.startswith("kubernetes service nodeports"), "the kernel's comment"
    assert snapshot.rules[5, 195].text == "", "unknown, not guessed"
    assert snapshot.rules[5, 192].text.startswith("-j MARK"), "other chains keep their text"


def test_comments_that_differ_mean_that_the_order_is_not_the_same() -> None:
    reversed_saves = saves()
    reversed_saves["ip", "nat"]["KUBE-SERVICES"] = reversed_saves["ip", "nat"]["KUBE-SERVICES"][::-1]
    snapshot = join(dump(), 100, lambda *_: {}, lambda *table: reversed_saves.get(table, {}))
    assert snapshot.rules[5, 214].text == ""
    assert snapshot.rules[5, 214].comment.startswith("kubernetes service nodeports")


def test_native_tables() -> None:
    chain = DumpedChain(3, "ACCEPT", [DumpedRule(53, "", "", ("service-nodeports", 0)), DumpedRule(60, "why", "DROP")])
    services = VerdictMap(12 << 6 | 13, 8, (MapElement(b"\x06\0\0\0\x76\x4d\0\0", "goto external-A"),))
    given = Dump(7, {("ip", "kube-proxy"): 9}, {("ip", "kube-proxy", "services"): chain},
                 {("ip", "kube-proxy", "service-nodeports"): services})  # fmt: skip
    texts = {53: "meta l4proto . th dport vmap @service-nodeports", 60: 'drop comment "why"'}
    snapshot = join(given, 100, lambda *_: texts, lambda *_: {})
    first, second = snapshot.ruleset.chain("ip", "kube-proxy", "services")
    assert (first.text, first.target, first.number) == (texts[53], "", 1)
    assert (second.text, second.target, second.comment) == (texts[60], "DROP", "why")
    assert snapshot.lookups[9, 53] == (services, 0) and (9, 60) not in snapshot.lookups
    assert snapshot.chains[9, 3] == "services"
    assert snapshot.ruleset.policies == {("ip", "kube-proxy", "services"): "ACCEPT"}
