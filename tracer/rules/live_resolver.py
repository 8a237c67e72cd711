# SPDX-License-Identifier: Apache-2.0
"""What tells which rules act, on a running node, for as long as a run lasts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager

from tracer.node.namespaces import Namespaces
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.table_reader import TableReader, TableRequest
from tracer.rules.nftables import live_watcher
from tracer.rules.nftables.snapshot_cache import SnapshotCache, UpdateSource
from tracer.rules.rule_resolver import RuleResolver


@contextmanager
def watching(
    namespaces: Namespaces,
    acts: Container[tuple[str, str, int, str]],
    nft: bool,
    reader: Callable[[], TableReader] = TableReader,
    through: Callable[[UpdateSource], UpdateSource] = lambda watch: watch,
) -> Iterator[tuple[RuleResolver, str]]:
    """Rules are read and hits explained in the block. acts: the matches and targets of iptables that are watched. nft: whether
    the probe of nftables' rules is on. With the hits comes why nftables' are not told, "" when they are.

    reader, through: for whoever wants to see what is read of legacy tables, and of nftables.
    """
    with ExitStack() as stack:
        watch, why = None, ""
        if nft:
            try:
                watch = SnapshotCache(through(stack.enter_context(live_watcher.watching(namespaces.own))))
            except live_watcher.WatcherUnavailable as e:
                why = str(e)
        hits = RuleResolver(legacy_rules(namespaces, acts, reader()), watch)
        if watch:
            watch.changed = hits.nft_changed
        stack.callback(hits.close)
        yield hits, why


def legacy_rules(
    namespaces: Namespaces, acts: Container[tuple[str, str, int, str]], reader: TableReader | None = None
) -> TableGenerations:
    """Reads the legacy tables that are there now, in the background, and others when packets meet them."""
    legacy = TableGenerations(reader or TableReader(), lambda act: act in acts)
    for netns in namespaces.named():
        for family in ("ip", "ip6"):
            legacy.request(TableRequest(netns, family, ""))
    return legacy
