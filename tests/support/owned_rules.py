# SPDX-License-Identifier: Apache-2.0
"""The owner of each rule of a ruleset, for tests of the programs that write rules."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.kube.owners import owner_of
from tracer.model.rule import Rule, Ruleset
from tracer.rules import save_parser

Named = list[tuple[str, str]]


def owners_of(saved: str) -> Named:
    """Returns (chain, owner's text) of each rule of a text as iptables-save prints it, in its order."""
    rules = save_parser.parse(saved)
    return [(r.chain, owner_of(r, rules, ClusterView()).text) for chain in rules.chains.values() for r in chain]


def others(saved: str, program: str) -> Named:
    """Returns the rules of a saved ruleset that are not a program's, each with its owner's text."""
    rules = save_parser.parse(saved)
    every = ((r, owner_of(r, rules, ClusterView())) for chain in rules.chains.values() for r in chain)
    return [(r.chain, owner.text) for r, owner in every if owner.program != program or not owner.known]


def nft_owner(table: str, chain: str, text: str) -> str:
    """Returns the owner's text of a rule of nftables in a table of family inet."""
    rule = Rule("inet", table, chain, 1, text, "", "", 4)
    return owner_of(rule, Ruleset("nft", 0, "", {("inet", table, chain): (rule,)}), ClusterView()).text
