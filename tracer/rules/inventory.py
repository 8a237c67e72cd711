# SPDX-License-Identifier: Apache-2.0
"""All rules in force in this network namespace, read once, independent of any packet.

Only back ends in use are queried: a request to another one would load its module. Texts come from iptables-save and `nft -j`,
or from netlink alone where nft cannot be used.
The rules that a packet met are found elsewhere (tracer/rules/iptables/generations.py, tracer/rules/nftables/watcher.py).
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.node.nfnetlink import DumpInterrupted, Nfnetlink, TooManyMessages
from tracer.rules import save_parser
from tracer.rules.iptables import sockopt
from tracer.rules.nftables import json_parser, listing, netlink_dump, netlink_listing
from tracer.rules.nftables.json_parser import NftListing
from tracer.rules.nftables.netlink_dump import SetElements
from tracer.rules.nftables.nft_tool import SENTENCE, NftUnusable, nft_tool
from tracer.util.escape import escaped_line
from tracer.util.lazy import Overlay

TRIES = 4
"""Attempts to read the rules of nftables within one generation."""
FAMILIES = ("ip", "ip6")
_CHANGED = (errno.EINTR, errno.ENOENT)
"""Errors of a dump of what has changed or has been removed meanwhile."""


@dataclass(frozen=True)
class RuleInventory:
    """The rules of both back ends.

    Attributes:
        legacy: Rules of legacy iptables, None = no rules.
        nft: Rules of nftables, None = no rules.
        saved: Tables (family, table) of iptables-nft whose rules have the text printed by iptables-nft-save.
        unread: Why rules could not be read, one clause each.
        notes: How rules were read in another way than usually, one sentence each.
    """

    legacy: Ruleset | None = None
    nft: NftListing | None = None
    saved: frozenset[tuple[str, str]] = frozenset()
    unread: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    @property
    def rulesets(self) -> tuple[Ruleset, ...]:
        return tuple(r for r in (self.legacy, self.nft.ruleset if self.nft else None) if r)

    def source(self, rule: Rule, ruleset: Ruleset) -> str:
        """Name of the tool that printed the rule's text."""
        if ruleset is self.legacy:
            return "ip6tables-save" if rule.family == "ip6" else "iptables-save"
        return "iptables-nft-save" if (rule.family, rule.table) in self.saved else "nft"


def read(nft_loaded: bool) -> RuleInventory:
    """Reads the rules now in force. `nft_loaded`: whether the kernel has nf_tables."""
    legacy, why = _legacy()
    if not nft_loaded:
        return RuleInventory(legacy, unread=tuple(why))
    nft, saved, more, notes = _nft()
    return RuleInventory(legacy, nft, saved, (*why, *more), notes)


def _legacy() -> tuple[Ruleset | None, list[str]]:
    found, why = [], []
    for family in FAMILIES:
        for table in sockopt.present(family):
            try:
                text = sockopt.save(family, table)
            except OSError as e:
                text, reason = None, str(e)
            else:
                reason = "there is no iptables-save of the legacy back end"
            if text is None:
                why.append(f"table {table} of legacy {family}tables cannot be read: {reason}")
            else:
                found.append(save_parser.parse(text, family))
    return (joined(found) if found else None), why


def joined(rulesets: list[Ruleset]) -> Ruleset:
    """Merges tables that were read one by one into one ruleset."""
    chains = {key: rules for r in rulesets for key, rules in r.chains.items()}
    return replace(rulesets[0], chains=chains, policies={k: p for r in rulesets for k, p in r.policies.items()})


def _nft() -> tuple[NftListing | None, frozenset[tuple[str, str]], list[str], tuple[str, ...]]:
    """(the listing, tables with the text of iptables-nft-save, why it was not read, notes), all of one generation."""
    for _ in range(TRIES):
        with suppress(DumpInterrupted), Nfnetlink() as nfnetlink:
            try:
                before = netlink_dump.generation(nfnetlink)
                listed, notes = _listed(nfnetlink)
                listed, saved = with_saves(listed, listing.SaveTexts())
                if netlink_dump.generation(nfnetlink) == before:
                    return listed if listed.ruleset.chains else None, saved, [], notes
            except TooManyMessages as e:
                return None, frozenset(), [f"the rules of nftables cannot be read: {e}"], ()
            except OSError as e:
                if e.errno not in _CHANGED:
                    return None, frozenset(), [f"the rules of nftables cannot be read: {e}"], ()
    return None, frozenset(), ["the rules of nftables changed each time they were being read"], ()


def _listed(nfnetlink: Nfnetlink) -> tuple[NftListing, tuple[str, ...]]:
    """The listing, of nft or from netlink alone, and a note in the second case."""
    sets = sum(1 for _ in nfnetlink.iter_dump(netlink_dump.GETSET))
    try:
        return json_parser.parse(nft_tool.output("-j", "list", "ruleset", sets=sets)), ()
    except NftUnusable as e:
        why = str(e)
    except ValueError as e:
        why = f"it printed what cannot be read ({escaped_line(str(e))})"
    dump = netlink_dump.read(nfnetlink)
    return netlink_listing.listing(dump, SetElements(dump.generation)), (SENTENCE.format(why=why),)


def with_saves(listed: NftListing, saved: listing.Saved) -> tuple[NftListing, frozenset[tuple[str, str]]]:
    """Replaces the rules of iptables-nft's tables by those that iptables-nft-save printed, where both have as many rules.

    Args:
        listed: What nft listed.
        saved: Gives the rules that iptables-nft-save printed, by family and table.

    Returns:
        The listing, and the tables (family, table) whose rules were replaced.
    """
    known = listed.ruleset.chains
    chains: dict[ChainKey, tuple[Rule, ...]] = {}
    tables = set()
    for family, table in {(f, t) for f, t, _ in known if f in FAMILIES and t in listing.IPTABLES_TABLES}:
        texts = saved(family, table)
        own = {key[2]: known[key] for key in known if key[:2] == (family, table)}
        if texts and {c: len(r) for c, r in own.items()} == {c: len(texts.get(c, ())) for c in own}:
            tables.add((family, table))
            for chain, rules in own.items():
                chains[family, table, chain] = tuple(
                    replace(s, family=family, table=table, handle=r.handle) for s, r in zip(texts[chain], rules, strict=True)
                )
    return replace(listed, ruleset=replace(listed.ruleset, chains=Overlay(known, chains))), frozenset(tables)
