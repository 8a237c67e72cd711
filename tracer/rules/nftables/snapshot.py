# SPDX-License-Identifier: Apache-2.0
"""The nftables rules of a network namespace at one generation, native ones and those of iptables-nft: order and handles from
the kernel, texts from the tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.node import netns, netns_cookie
from tracer.node.nfnetlink import DumpInterrupted, Nfnetlink, TooManyMessages
from tracer.rules.nftables import listing, netlink_dump
from tracer.rules.nftables.netlink_dump import Dump, DumpedChain
from tracer.rules.nftables.verdict_maps import VerdictMap
from tracer.util.lazy import Lazy

TRIES = 4


class RulesetChanging(Exception):
    """The rules changed each time they were being read."""


@dataclass(frozen=True)
class Snapshot:
    """The rules of one namespace at one generation, and the ways to find one.

    A handle is never given twice in a table, nor a table's in a namespace: both together name a rule across generations.
    rules: by the table's handle and the rule's. chains: names by the table's handle and the chain's. lookups: of the rules that
    look their verdict up, the map and where its key stands. tables: names by handle. taken: when it had been read (ns,
    CLOCK_MONOTONIC), 0 = not known. throwing: of a rule, the matches of iptables that may throw a packet away.
    """

    ruleset: Ruleset
    number: int
    rules: Mapping[tuple[int, int], Rule]
    chains: Mapping[tuple[int, int], str]
    lookups: Mapping[tuple[int, int], tuple[VerdictMap, int]] = field(default_factory=dict)
    tables: Mapping[int, str] = field(default_factory=dict)
    taken: int = 0
    throwing: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)


Texts = Callable[[str, str], Mapping[int, str]]


def join(dump: Dump, inode: int, listed: Texts, saved: listing.Saved) -> Snapshot:
    """A snapshot from what the kernel dumped and the two sources of text, each asked by family and table.

    A chain's saved rules are taken when they are as many as the kernel has, and no comment differs; else, and for native
    tables, nft's listing. Rules are put together when they are asked for.
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

    def rules(key: ChainKey) -> tuple[Rule, ...]:
        family, table, name = key
        saves, chain = of_iptables.get((family, table), {}).get(name, ()), dump.chains[key]
        return _rules(key, chain, saves if _agree(saves, chain) else (), of_nft.get((family, table), {}))

    def rule_at(handles: tuple[int, int]) -> Rule:
        key, place = places[handles]
        return chains[key][place]

    def throwing(handles: tuple[int, int]) -> tuple[str, ...]:
        key, place = places[handles]
        return dump.chains[key].rules[place].matches

    chains: Mapping[ChainKey, tuple[Rule, ...]] = Lazy(dump.chains, rules)
    tables = {handle: name for (_, name), handle in dump.tables.items()}
    policies = {key: chain.policy for key, chain in dump.chains.items() if chain.policy}
    ruleset = Ruleset("nft", inode, str(dump.generation), chains, policies)
    return Snapshot(ruleset, dump.generation, Lazy(places, rule_at), names, lookups, tables, throwing=Lazy(places, throwing))


def _agree(saves: Sequence[Rule], chain: DumpedChain) -> bool:
    """Whether the saved rules are those of the chain, one for one, as far as can be seen."""
    pairs = list(zip(saves, chain.rules, strict=False))
    return len(saves) == len(chain.rules) and all(not r.comment or r.comment == s.comment for s, r in pairs)


def _rules(key: ChainKey, chain: DumpedChain, saves: Sequence[Rule], listed: Mapping[int, str]) -> tuple[Rule, ...]:
    family, table, name = key
    out = []
    for place, rule in enumerate(chain.rules):
        save = saves[place] if saves else None
        words = save.text if save else listed.get(rule.handle, "")
        target = (save.target if save else "") or rule.target
        comment = (save.comment if save else "") or rule.comment
        out.append(Rule(family, table, name, place + 1, words, comment, target, rule.handle))
    return tuple(out)


@contextmanager
def _passing() -> Iterator[None]:
    """Errors after which another try may find the rules at rest."""
    try:
        yield
    except TooManyMessages:
        raise
    except (DumpInterrupted, OSError):
        pass


def read_here(space: int, known: Container[int]) -> tuple[int, Snapshot | None]:
    inode, cookie = space & 0xFFFFFFFF, space >> 32
    if cookie and netns_cookie.cookie() not in (0, cookie):
        raise LookupError(f"namespace {inode} is another one by now")
    with Nfnetlink() as nfnetlink:
        for _ in range(TRIES):
            with _passing():
                now = netlink_dump.generation(nfnetlink)
                if now in known:
                    return now, None
                try:
                    snapshot = join(netlink_dump.read(nfnetlink), inode, listing.Listings(), listing.SaveTexts())
                except TooManyMessages as e:
                    e.generation = now
                    raise
                if netlink_dump.generation(nfnetlink) == snapshot.number:
                    return snapshot.number, replace(snapshot, taken=time.monotonic_ns())
    raise RulesetChanging


def read_new(fd: int, space: int, known: Container[int] = ()) -> tuple[int, Snapshot | None]:
    """The generation in force in the namespace that a descriptor leads to, and its rules unless it is a known one.

    space: netns.identity of the namespace. Raises RulesetChanging when the rules never held still; OSError when it cannot be
    entered;
    LookupError when another namespace has its inode by now; TooManyMessages.
    """
    return netns.inside(fd, lambda: read_here(space, known))
