# SPDX-License-Identifier: Apache-2.0
"""The entries of each hook in the kernel's order: the tables of legacy iptables and the base chains of nftables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracer.model.netfilter import IP_HOOKS, Hook, decode_hook
from tracer.model.rule import Ruleset
from tracer.rules.inventory import RuleInventory
from tracer.rules.iptables.assemble import assemble, tables
from tracer.rules.iptables.simulate import IptablesSimulator
from tracer.rules.match_context import MatchContext
from tracer.rules.nftables.simulate import NftablesSimulator
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import RulePath

PRIORITIES = {"raw": -300, "mangle": -150, "filter": 0, "security": 50}
CONNTRACK, DNAT, SNAT = -200, -100, 100
_OF_SOURCES = (Hook.INPUT, Hook.POSTROUTING)


@dataclass(frozen=True)
class HookEntry:
    """One table run, or one base chain.

    Attributes:
        priority: Its priority at the hook.
        is_legacy: A table of legacy iptables; else a base chain.
        table: As in a RuleHop.
        chain: Name of the base chain, "" = legacy iptables.
        translates: "dst", "src"; "" = no nat.
        ruleset: The rules that it belongs to.
        simulate: Simulates a packet. Arguments: the packet, whether its source port is known, the match context. Raises
            TooManyPaths.
    """

    priority: int
    is_legacy: bool
    table: str
    chain: str
    translates: str
    ruleset: Ruleset
    simulate: Callable[[PacketView, bool, MatchContext], list[RulePath]]

    @property
    def name(self) -> str:
        """Its table, with the back end if both may have a table of that name."""
        return f"legacy {self.table}" if self.is_legacy else self.table


def hook_entries(installed: RuleInventory, family: str) -> dict[Hook, list[HookEntry]]:
    """The entries by hook, in the order of priorities.

    Among entries of one priority the kernel runs first what was registered last (nf_hook_entries_grow). Within one table that
    is the chain with the higher handle; between two tables the rules do not show it.

    Raises:
        UnknownOption: A rule could not be parsed.
    """
    found: dict[Hook, list[HookEntry]] = {hook: [] for hook in IP_HOOKS}
    if installed.legacy:
        _add_iptables(found, installed.legacy, [t for t in tables(installed.legacy) if t[0] == family], is_legacy=True)
    if installed.nft:
        saved = [t for t in sorted(installed.saved) if t[0] == family]
        _add_iptables(found, installed.nft.ruleset, saved, is_legacy=False)
        engine = NftablesSimulator(installed.nft)
        for base in sorted(installed.nft.bases, key=lambda b: -b.handle):
            hook = decode_hook(base.hook)
            if base.key[:2] in installed.saved or base.key[0] not in (family, "inet") or hook not in found:
                continue
            hook_entry = HookEntry(
                base.priority, False, " ".join(base.key[:2]), base.key[2],
                _translated(hook) if base.kind == "nat" else "", installed.nft.ruleset,
                lambda seen, known, world, base=base: engine.simulate(base, seen, known, world),  # type: ignore[misc]
            )  # fmt: skip
            found[hook].append(hook_entry)
    for each in found.values():
        each.sort(key=lambda s: s.priority)
    return found


def _add_iptables(
    found: dict[Hook, list[HookEntry]], ruleset: Ruleset, names: list[tuple[str, str]], *, is_legacy: bool
) -> None:  # fmt: skip
    for family, name in names:
        table, rules = assemble(ruleset, family, name)
        engine = IptablesSimulator(table, rules)
        for number in table.hooks:
            hook = IP_HOOKS[number]
            nat = name == "nat"
            priority = (SNAT if hook in _OF_SOURCES else DNAT) if nat else PRIORITIES.get(name, 0)
            hook_entry = HookEntry(
                priority, is_legacy, name if is_legacy else f"{family} {name}", "" if is_legacy else hook.value,
                _translated(hook) if nat else "", ruleset,
                lambda seen, known, world, engine=engine, number=number: engine.simulate(number, seen, known, world),  # type: ignore[misc]
            )  # fmt: skip
            found[hook].append(hook_entry)


def _translated(hook: Hook) -> str:
    return "src" if hook in _OF_SOURCES else "dst"
