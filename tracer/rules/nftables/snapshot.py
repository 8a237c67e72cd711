# SPDX-License-Identifier: Apache-2.0
"""Snapshots of the nftables rules of a network namespace at one generation, native ones and those of iptables-nft.

Order and handles come from the kernel, texts from the tools.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.node import netns, netns_cookie
from tracer.node.nfnetlink import DumpInterrupted, Nfnetlink, TooManyMessages
from tracer.rules.nftables import listing, netlink_dump
from tracer.rules.nftables.netlink_dump import Dump, DumpedChain, SetElements
from tracer.rules.nftables.netlink_listing import RuleTexts
from tracer.rules.nftables.nft_tool import SENTENCE
from tracer.rules.nftables.verdict_maps import VerdictMap
from tracer.util.lazy import Lazy
from tracer.util.worker import user_warnings

TRIES = 4
"""Attempts to read the rules within one generation."""


class RulesetChanging(Exception):
    """The rules changed each time they were being read."""


@dataclass(frozen=True)
class Snapshot:
    """The rules of one namespace at one generation, with indexes.

    A rule's handle is never used twice in a table, nor a table's handle in a namespace. So both together identify a rule across
    generations.

    Attributes:
        ruleset: The rules.
        number: The generation.
        rules: Rules by handle of the table and of the rule.
        chains: Chain names by handle of the table and of the chain.
        lookups: Of rules with a verdict map, by handles: the map, and the byte of the registers at which the key begins.
        tables: Table names by handle.
        taken: A time when it was in force, after it had been read, ns, CLOCK_MONOTONIC, 0 = not known.
        hotdrop_matches: Matches of iptables in a rule that may set hotdrop, by handles.
        is_unprinted: Whether no tool has printed the rules while they were in force: then their texts are the kernel's
            description.
    """

    ruleset: Ruleset
    number: int
    rules: Mapping[tuple[int, int], Rule]
    chains: Mapping[tuple[int, int], str]
    lookups: Mapping[tuple[int, int], tuple[VerdictMap, int]] = field(default_factory=dict)
    tables: Mapping[int, str] = field(default_factory=dict)
    taken: int = 0
    hotdrop_matches: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    is_unprinted: bool = False

    @cached_property
    def objects(self) -> int:
        """Number of its rules, and of the elements of the verdict maps that they use."""
        maps = {id(found): found for found, _ in self.lookups.values()}
        return len(self.rules) + sum(len(found.elements) for found in maps.values())


Texts = Callable[[str, str], Mapping[int, str]]
Decode = Callable[[ChainKey, int], str]
"""Gives the text of a rule from the kernel's own description. Arguments: the chain, the place of the rule from 0."""


def join(dump: Dump, inode: int, listed: Texts, saved: listing.Saved, decode: Decode = lambda *_: "") -> Snapshot:
    """Joins the kernel's dump with the texts of the tools. Rules are joined on demand.

    The rules of iptables-nft-save are used for a chain if the kernel has as many rules and no comment differs. Otherwise, and
    for native tables, nft's listing is used, and the kernel's description of a rule that nft did not list.

    Args:
        dump: The kernel's dump.
        inode: Ruleset.netns.
        listed: Gives the texts of nft, by family and table.
        saved: Gives the rules of iptables-nft-save, by family and table.
        decode: Gives the text of a rule that no tool has printed.
    """
    of_iptables = {table: saved(*table) for table in dump.tables}
    of_nft: dict[tuple[str, str], Mapping[int, str]] = {}
    places: dict[tuple[int, int], tuple[ChainKey, int]] = {}
    names: dict[tuple[int, int], str] = {}
    lookups: dict[tuple[int, int], tuple[VerdictMap, int]] = {}
    for key, chain in dump.chains.items():
        family, table, name = key
        handle = dump.tables.get((family, table), 0)
        names[handle, chain.handle] = name
        if len(of_iptables.get((family, table), {}).get(name, ())) != len(chain.handles) and (family, table) not in of_nft:
            of_nft[family, table] = listed(family, table)
        for place, rule in enumerate(chain.handles):
            places[handle, rule] = key, place
        if dump.maps:
            for dumped in chain.rules:
                found = dump.maps.get((family, table, dumped.lookup[0])) if dumped.lookup else None
                if found and dumped.lookup:
                    lookups[handle, dumped.handle] = found, dumped.lookup[1]

    dumped_chains = dump.chains  # the closures below keep these, and no map that no rule uses

    def rules(key: ChainKey) -> tuple[Rule, ...]:
        family, table, name = key
        saves, chain = of_iptables.get((family, table), {}).get(name, ()), dumped_chains[key]
        return _rules(key, chain, saves if _is_same(saves, chain) else (), of_nft.get((family, table), {}), decode)

    def rule_at(handles: tuple[int, int]) -> Rule:
        key, place = places[handles]
        return chains[key][place]

    def hotdrop_matches(handles: tuple[int, int]) -> tuple[str, ...]:
        key, place = places[handles]
        return dumped_chains[key].rules[place].matches

    chains: Mapping[ChainKey, tuple[Rule, ...]] = Lazy(dumped_chains, rules)
    tables = {handle: name for (_, name), handle in dump.tables.items()}
    policies = {key: chain.policy for key, chain in dump.chains.items() if chain.policy}
    ruleset = Ruleset("nft", inode, str(dump.generation), chains, policies)
    return Snapshot(
        ruleset, dump.generation, Lazy(places, rule_at), names, lookups, tables, hotdrop_matches=Lazy(places, hotdrop_matches)
    )


def _is_same(saves: Sequence[Rule], chain: DumpedChain) -> bool:
    """Whether the saved rules may be those of the chain: as many, and no comment differs."""
    pairs = list(zip(saves, chain.rules, strict=False))
    return len(saves) == len(chain.rules) and all(not r.comment or r.comment == s.comment for s, r in pairs)


def _rules(
    key: ChainKey, chain: DumpedChain, saves: Sequence[Rule], listed: Mapping[int, str], decode: Decode
) -> tuple[Rule, ...]:
    family, table, name = key
    out = []
    for place, rule in enumerate(chain.rules):
        save = saves[place] if saves else None
        text = save.text if save else listed.get(rule.handle) or decode(key, place)
        target = (save.target if save else "") or rule.target
        comment = (save.comment if save else "") or rule.comment
        out.append(Rule(family, table, name, place + 1, text, comment, target, rule.handle))
    return tuple(out)


@contextmanager
def _retrying() -> Iterator[None]:
    """Suppresses errors after which another attempt may succeed."""
    try:
        yield
    except TooManyMessages:
        raise
    except (DumpInterrupted, OSError):
        pass


def _read(nfnetlink: Nfnetlink, inode: int, prints: bool) -> Snapshot:
    """The rules in force, in their network namespace. prints: whether tools print them.

    Raises:
        DumpInterrupted: The rules changed during the dump; try again.
        TooManyMessages: There are too many rules or elements.
        OSError: The kernel refused.
    """
    dump = netlink_dump.read(nfnetlink)
    if netlink_dump.generation(nfnetlink) != dump.generation:
        raise DumpInterrupted
    taken = time.monotonic_ns()
    listings, elements = listing.Listings(len(dump.sets)), SetElements(dump.generation)
    decode = RuleTexts(dump, elements).text
    snapshot = join(dump, inode, listings, listing.SaveTexts(), decode) if prints else None
    if snapshot and netlink_dump.generation(nfnetlink) == dump.generation:
        taken = time.monotonic_ns()
    else:
        snapshot = replace(join(dump, inode, lambda *_: {}, lambda *_: {}, decode), is_unprinted=True)
    if listings.why_unused:
        user_warnings.add(SENTENCE.format(why=listings.why_unused), "nft is not used")
    if (listings.why_unused or not prints) and not dump.has_many_sets:
        elements.read_unnamed(dump.sets)
    # Texts are decoded on demand, in another network namespace.
    elements.close()
    return replace(snapshot, taken=taken)


def read_here(space: int, known: Container[int], prints: bool = True) -> tuple[int, Snapshot | None]:
    """As read_new, in this thread's network namespace."""
    inode, cookie = netns.inode_of(space), space >> 32
    if cookie and netns_cookie.cookie() not in (0, cookie):
        raise LookupError(f"namespace {inode} is another one by now")
    with Nfnetlink() as nfnetlink:
        for _ in range(TRIES):
            with _retrying():
                now = netlink_dump.generation(nfnetlink)
                if now in known:
                    return now, None
                try:
                    snapshot = _read(nfnetlink, inode, prints)
                except TooManyMessages as e:
                    e.generation = now
                    raise
                return snapshot.number, snapshot
    raise RulesetChanging


def read_new(fd: int, space: int, known: Container[int] = (), prints: bool = True) -> tuple[int, Snapshot | None]:
    """Reads the rules of a network namespace unless their generation is known.

    If the rules change while the tools print them, the snapshot has the kernel's description as their texts: the tools take
    seconds on a large node, and rules may be replaced more often than that.

    Args:
        fd: Descriptor of the namespace.
        space: netns.identity of the namespace.
        known: Generations that are not read again.
        prints: Whether tools print the rules.

    Returns:
        (generation that was in force, its snapshot; None = it is a known one).

    Raises:
        RulesetChanging: The rules changed during each attempt.
        OSError: The namespace cannot be entered.
        LookupError: Another namespace has its inode by now.
        TooManyMessages: There are too many rules or elements.
    """
    return netns.inside(fd, lambda: read_here(space, known, prints))
