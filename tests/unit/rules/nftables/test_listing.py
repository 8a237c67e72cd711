# SPDX-License-Identifier: Apache-2.0
"""Texts of rules, as `nft -a list` and `iptables-nft-save` printed them on a node with kube-proxy and portmap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.rules.nftables import listing
from tracer.rules.nftables.listing import listed, saved
from tracer.rules.nftables.nft_tool import nft_tool

DATA = Path(__file__).parents[3] / "data/nft"


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    """nft's listing of each table, by its family and name: "ip kube-proxy"."""
    text = (DATA / "nftables.txt").read_text()
    parts = text.split("\ntable ")
    return {part.removeprefix("table ").split(" {")[0]: part for part in parts}


def test_each_rule_by_its_handle(tables: dict[str, str]) -> None:
    rules = listed(tables["ip kube-proxy"])
    assert rules[53] == "ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports"
    assert rules[44] == "reject"
    assert rules[51].endswith('comment "masquerade clusterIP traffic from outside cluster"')
    assert rules[28] == rules[27] == "jump services"


def test_only_rules_are_listed(tables: dict[str, str]) -> None:
    """Tables, chains, sets and maps have handles too; a chain has a type and a comment."""
    rules = listed(tables["ip kube-proxy"])
    assert 34 not in rules and 49 not in rules and 43 not in rules and 14 not in rules
    assert not [text for text in rules.values() if "hook" in text or text.startswith("comment")]
    assert all(text and "# handle" not in text for text in rules.values())


def test_a_rule_on_several_lines_is_one() -> None:
    text = (
        "table ip x { # handle 1\n\tchain c { # handle 1\n"
        '\t\tcomment "a chain"\n'
        "\t\ttype filter hook input priority filter; policy accept;\n"
        "\t\ttcp dport vmap { 22 : accept, 80 : drop,\n\t\t\t\t  443 : jump y } # handle 5\n"
        '\t\tcounter comment "# handle 9" # handle 6\n'
        "\t}\n}\n"
    )
    assert listed(text) == {5: "tcp dport vmap { 22 : accept, 80 : drop, 443 : jump y }", 6: 'counter comment "# handle 9"'}


def test_saved_rules_by_chain_in_order() -> None:
    text = "*nat\n:PREROUTING ACCEPT [0:0]\n:EMPTY - [0:0]\n-A PREROUTING -j ONE\n-A PREROUTING -j TWO\n-A LATE\nCOMMIT\n"
    rules = saved(text)
    assert [r.target for r in rules["PREROUTING"]] == ["ONE", "TWO"]
    assert list(rules["EMPTY"]) == [] and [r.text for r in rules["LATE"]] == [""]


def test_a_tool_that_is_missing_or_fails_gives_no_text() -> None:
    assert listing.run("k8snet-no-such-tool") is None
    assert listing.run("false") is None
    assert listing.run("echo", "a") == "a\n"


def test_only_tables_of_iptables_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def run(*command: str) -> str:
        commands.append(command)
        return "# by hand\n*filter\n:A - [0:0]\n-A A -j ONE\nCOMMIT\n*nat\n:A - [0:0]\n-A A -j TWO\nCOMMIT\n"

    monkeypatch.setattr(listing, "run", run)
    saves = listing.SaveTexts()
    found = {}
    for family, table in (
        ("ip", "kube-proxy"),
        ("inet", "filter"),
        ("ip", "nat"),
        ("ip6", "filter"),
        ("ip", "raw"),
        ("ip", "filter"),
    ):
        found[family, table] = [(r.chain, r.target) for rules in saves(family, table).values() for r in rules]
    assert commands == [("iptables-nft-save",), ("ip6tables-nft-save",)], "each family once"
    assert found.pop(("ip", "nat")) == [("A", "TWO")]
    assert found.pop(("ip", "filter")) == found.pop(("ip6", "filter")) == [("A", "ONE")]
    assert not any(found.values())


def test_a_newline_in_a_comment_does_not_make_rules() -> None:
    assert saved('*nat\n:A - [0:0]\n-A A -m comment --comment "x\n-A A -j DROP\n" -j ACCEPT\nCOMMIT') == {}
    (rule,) = saved('*nat\n:A - [0:0]\n-A A -m comment --comment "it\\"s \\\\" -j ACCEPT\nCOMMIT')["A"]
    assert rule.target == "ACCEPT"


def test_tables_are_listed_by_family_and_without_the_elements_of_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []
    text = "table inet one { # handle 1\n\tchain a { # handle 1\n\t\t{} # handle 2\n\t}\n}\n"

    def run(*command: str, sets: int) -> str:
        commands.append(command)
        return text.replace("{}", "drop") + text.replace("one", "two").replace("{}", "accept")

    monkeypatch.setattr(nft_tool, "output", run)
    listings = listing.Listings()
    assert [listings("inet", table) for table in ("one", "two", "three")] == [{2: "drop"}, {2: "accept"}, {}]
    assert commands == [("-t", "-s", "-a", "list", "ruleset", "inet")] and not listings.why_unused


def test_a_table_that_is_listed_twice_has_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's name may contain a newline, and forge a second listing."""
    text = "table ip good { # handle 1\n\tchain c {\n\t\tdrop # handle 5\n\t}\n}\n"
    twice = text + "table ip x\n" + text.replace("drop", "accept")
    monkeypatch.setattr(nft_tool, "output", lambda *command, sets: twice)
    assert listing.Listings()("ip", "good") == {}
