# SPDX-License-Identifier: Apache-2.0
"""All rules in force: tables are joined, texts of iptables-nft-save replace nft's texts, and each rule has its source."""

from __future__ import annotations

import pytest

from tests.support import audits
from tests.support.nodes import node
from tracer.model.rule import Rule
from tracer.rules import inventory, save_parser
from tracer.rules.inventory import RuleInventory, joined, with_saves
from tracer.rules.iptables import sockopt
from tracer.rules.nftables import json_parser


def test_tables_read_one_by_one_are_joined() -> None:
    nat = save_parser.parse("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j ACCEPT\nCOMMIT\n", "ip")
    filters = save_parser.parse("*filter\n:INPUT DROP [0:0]\nCOMMIT\n", "ip6")
    both = joined([nat, filters])
    assert set(both.chains) == {("ip", "nat", "PREROUTING"), ("ip6", "filter", "INPUT")}
    assert both.policies["ip6", "filter", "INPUT"] == "DROP"


@pytest.mark.parametrize("mode", ["1.20.2-iptables-nft", "1.36.2-iptables-nft"])
def test_texts_of_iptables_nft(mode: str) -> None:
    one = node(mode, "S2-three")
    found = audits.recorded(one)
    assert found.nft and found.saved == {("ip", "nat"), ("ip", "filter"), ("ip", "mangle")}
    (jump, *_) = found.nft.ruleset.chain("ip", "nat", "PREROUTING")
    assert jump.text.endswith("-j KUBE-SERVICES") and jump.handle > 0 and jump.comment == "kubernetes service portals"
    assert found.source(jump, found.nft.ruleset) == "iptables-nft-save"


def test_a_table_that_changed_between_two_readings_keeps_the_text_of_nft() -> None:
    one = node("1.36.2-iptables-nft", "S2-three")
    listed = json_parser.parse(one.files["nft.json"])

    def shorter(family: str, table: str) -> dict[str, tuple[Rule, ...]]:
        chains = save_parser.parse(one.files["iptables-nft-save"], "ip", "nft").chains
        return {chain: rules[1:] for (_, t, chain), rules in chains.items() if t == table} if family == "ip" else {}

    found, tables = with_saves(listed, shorter)
    assert tables == {("ip", "mangle")}, "no chain of mangle has a rule, so none of its texts is too few"
    assert not any(rules for (*table, _), rules in found.ruleset.chains.items() if tuple(table) in tables)
    assert found.ruleset.chain("ip", "nat", "PREROUTING") == listed.ruleset.chain("ip", "nat", "PREROUTING")


def test_the_source_of_a_rule() -> None:
    legacy = save_parser.parse("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j ACCEPT\nCOMMIT\n", "ip6")
    (rule,) = legacy.chain("ip6", "nat", "PREROUTING")
    assert RuleInventory(legacy).source(rule, legacy) == "ip6tables-save"
    native = audits.recorded(node("1.36.2-nftables-nft", "S2-one"))
    assert native.nft
    (jump,) = native.nft.ruleset.chain("ip", "kube-proxy", "nat-prerouting")
    assert native.source(jump, native.nft.ruleset) == "nft" and len(native.rulesets) == 1


def test_a_table_that_cannot_be_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockopt, "present", lambda family: ["nat"] if family == "ip" else [])
    monkeypatch.setattr(sockopt, "save", lambda family, table: None)
    found = inventory.read(False)
    assert found.legacy is None
    assert found.unread == ("table nat of legacy iptables cannot be read: there is no iptables-save of the legacy back end",)
