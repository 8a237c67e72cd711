# SPDX-License-Identifier: Apache-2.0
"""Sets up rule resolving on a running node for the duration of a run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager

from tracer.node.namespaces import NamespaceNames
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.table_reader import TableReader, TableRequest
from tracer.rules.nftables import live_watcher
from tracer.rules.nftables.snapshot_cache import SnapshotCache, UpdateSource
from tracer.rules.rule_resolver import RuleResolver


@contextmanager
def watching(
    namespaces: NamespaceNames,
    watched: Container[tuple[str, str, int, str]],
    nft: bool,
    reader: Callable[[], TableReader] = TableReader,
    wrap: Callable[[UpdateSource], UpdateSource] = lambda watch: watch,
) -> Iterator[tuple[RuleResolver, str]]:
    """Reads rules and resolves rule hits within the block.

    Args:
        namespaces: The network namespaces to read.
        watched: Matches and targets of iptables (kind, name, revision, family) that have a probe.
        nft: Whether the probe of nftables' rules is attached.
        reader: Makes the reader of legacy tables; a recording passes one that keeps what was read.
        wrap: Wraps the source of nftables' updates; a recording passes a wrapper that stores them.

    Yields:
        (resolver, why): the rule resolver, and why rules of nftables are not resolved, "" if they are.
    """
    with ExitStack() as stack:
        cache, why = None, ""
        if nft:
            try:
                cache = SnapshotCache(wrap(stack.enter_context(live_watcher.watching(namespaces.own))))
            except live_watcher.WatcherUnavailable as e:
                why = str(e)
        resolver = RuleResolver(legacy_rules(namespaces, watched, reader()), cache)
        if cache:
            cache.changed = resolver.nft_changed
        stack.callback(resolver.close)
        yield resolver, why


def legacy_rules(
    namespaces: NamespaceNames, watched: Container[tuple[str, str, int, str]], reader: TableReader | None = None
) -> TableGenerations:
    """Reads the present legacy tables in the background, and other tables when packets meet them."""
    legacy = TableGenerations(reader or TableReader(), lambda act: act in watched)
    for netns in namespaces.named():
        for family in ("ip", "ip6"):
            legacy.request(TableRequest(netns, family, ""))
    return legacy
