# SPDX-License-Identifier: Apache-2.0
"""All rules in force: tables are joined, texts of iptables-nft-save replace nft's texts, and each rule has its source."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.nft_recordings import RecordedNfnetlink, recording
from tests.support.nodes import node
from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.node import tools
from tracer.node.nfnetlink import DumpInterrupted
from tracer.rules import inventory, save_parser
from tracer.rules.inventory import RuleInventory, joined, with_saves
from tracer.rules.iptables import sockopt
from tracer.rules.nftables import json_parser, netlink_dump
from tracer.rules.nftables.nft_tool import NftTool
from tracer.util.lazy import Lazy


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


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedNfnetlink:
    """A kernel with kube-proxy's rules on a node without any tool."""
    found = RecordedNfnetlink(recording("kube-proxy-1.36"))
    monkeypatch.setattr(inventory, "Nfnetlink", lambda: found)
    monkeypatch.setattr(netlink_dump, "Nfnetlink", lambda: found)
    monkeypatch.setattr(sockopt, "present", lambda family: [])
    monkeypatch.setattr(tools, "DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(inventory, "nft_tool", NftTool())
    return found


def texts(found: RuleInventory) -> dict[ChainKey, list[str]]:
    assert found.nft
    return {key: [rule.text for rule in found.nft.ruleset.chains[key]] for key in found.nft.ruleset.chains}


def test_without_nft_the_rules_come_from_netlink_and_this_is_said_once(kernel: RecordedNfnetlink) -> None:
    found = inventory.read(True)
    assert found.unread == ()
    assert found.notes == ("The rules of nftables are read through netlink alone, without nft: nft is not installed.",)
    of_nft = json_parser.parse(recording("kube-proxy-1.36").listed)
    assert texts(found) == texts(RuleInventory(nft=of_nft))


@pytest.mark.parametrize("printed", ["not JSON", '{"nftables": [{"rule": 5}]}'])
def test_what_an_nft_prints_that_is_not_understood(kernel: RecordedNfnetlink, tmp_path: Path, printed: str) -> None:
    (tmp_path / "nft").write_text(f"#!/bin/sh\necho '{printed}'\n")
    (tmp_path / "nft").chmod(0o755)
    found = inventory.read(True)
    (note,) = found.notes
    assert "without nft: it printed what cannot be read (" in note and found.nft and not found.unread


def test_the_rules_are_read_again_after_a_change_and_not_for_ever(kernel: RecordedNfnetlink) -> None:
    now = kernel.generations
    kernel.faults = [DumpInterrupted(), OSError(errno.EINTR, "Interrupted system call")]
    now += [5, 5, 6, 6]  # two attempts that end early: the first question of each, and of each dump
    found = inventory.read(True)
    assert found.nft and len(found.nft.ruleset.chains) > 20 and not found.unread
    kernel.generations = list(range(100, 300))
    found = inventory.read(True)
    assert found.nft is None and found.unread == ("the rules of nftables changed each time they were being read",)
    assert len(kernel.generations) > 150, "a few attempts"


def test_a_kernel_that_refuses_is_reported(kernel: RecordedNfnetlink) -> None:
    kernel.faults = [PermissionError(errno.EPERM, "Operation not permitted")]
    found = inventory.read(True)
    assert found.nft is None and found.unread == ("the rules of nftables cannot be read: [Errno 1] Operation not permitted",)


def test_rules_of_iptables_nft_are_replaced_without_decoding_others() -> None:
    def decode(key: ChainKey) -> tuple[Rule, ...]:
        assert key[1] == "filter", "no other table"
        return (Rule(*key, 1, "xt", handle=7),)

    keys = [("ip", "filter", "INPUT"), ("ip", "kube-proxy", "services")]
    listed = json_parser.NftListing(Ruleset("nft", 0, "1", Lazy(keys, decode)))
    found, tables = with_saves(listed, lambda family, table: {"INPUT": [Rule("", "", "INPUT", 1, "-j DROP", "", "DROP")]})
    assert tables == {("ip", "filter")} and list(found.ruleset.chains) == keys and len(found.ruleset.chains) == 2
    (rule,) = found.ruleset.chains["ip", "filter", "INPUT"]
    assert (rule.text, rule.handle) == ("-j DROP", 7)
