# SPDX-License-Identifier: Apache-2.0
"""The hook entries that a packet meets, in the kernel's order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import audits
from tests.support.nodes import node
from tracer.model.netfilter import Hook
from tracer.predict.hook_entries import hook_entries
from tracer.rules import save_parser
from tracer.rules.inventory import RuleInventory
from tracer.rules.iptables.assemble import UnknownOption


def names(installed: RuleInventory, hook: Hook, family: str = "ip") -> list[tuple[int, str, str, str]]:
    return [(s.priority, s.table, s.chain, s.translates) for s in hook_entries(installed, family)[hook]]


def test_legacy_tables() -> None:
    found = audits.recorded(node("1.36.2-iptables-legacy", "S2-one"))
    assert names(found, Hook.PREROUTING) == [(-150, "mangle", "", ""), (-100, "nat", "", "dst")]
    assert names(found, Hook.INPUT) == [(-150, "mangle", "", ""), (0, "filter", "", ""), (100, "nat", "", "src")]
    assert [n[1] for n in names(found, Hook.OUTPUT, "ip6")] == ["mangle", "nat", "filter"]


def test_native_chains_among_those_of_iptables_nft() -> None:
    found = audits.recorded(node("1.36.2-nftables-nft", "S5"))
    assert min(p for p, *_ in names(found, Hook.PREROUTING)) == -110
    both = replace(found, legacy=audits.recorded(node("1.36.2-iptables-legacy", "S2-one")).legacy)
    at = names(both, Hook.PREROUTING)
    assert [p for p, *_ in at] == sorted(p for p, *_ in at)
    assert {("nat", "dst"), ("ip kube-proxy", "dst"), ("ip cni_hostport", "dst")} <= {(t, d) for _, t, _, d in at}


def test_a_rule_that_is_not_understood_is_named() -> None:
    rules = save_parser.parse("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING --brand-new -j ACCEPT\nCOMMIT\n")
    with pytest.raises(UnknownOption, match="PREROUTING 1: --brand-new"):
        hook_entries(RuleInventory(rules), "ip")
