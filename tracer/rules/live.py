# SPDX-License-Identifier: Apache-2.0
"""What tells which rules act, on a running node, for as long as a run lasts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager

from tracer.names import Namespaces
from tracer.rules import nft_live
from tracer.rules.hits import Hits
from tracer.rules.legacy import Legacy
from tracer.rules.nft_view import View, Watching
from tracer.rules.reader import Reader, Wanted


@contextmanager
def watching(
    namespaces: Namespaces,
    acts: Container[tuple[str, str, int, str]],
    nft: bool,
    reader: Callable[[], Reader] = Reader,
    through: Callable[[Watching], Watching] = lambda watch: watch,
) -> Iterator[tuple[Hits, str]]:
    """Rules are read and hits explained in the block. acts: the matches and targets of iptables that are watched. nft: whether
    the probe of nftables' rules is on. With the hits comes why nftables' are not told, "" when they are.

    reader, through: for whoever wants to see what is read of legacy tables, and of nftables.
    """
    with ExitStack() as stack:
        watch, why = None, ""
        if nft:
            try:
                watch = View(through(stack.enter_context(nft_live.watching(namespaces.own))))
            except nft_live.Unwatched as e:
                why = str(e)
        hits = Hits(legacy_rules(namespaces, acts, reader()), watch)
        if watch:
            watch.changed = hits.nft_changed
        stack.callback(hits.close)
        yield hits, why


def legacy_rules(namespaces: Namespaces, acts: Container[tuple[str, str, int, str]], reader: Reader | None = None) -> Legacy:
    """Reads the legacy tables that are there now, in the background, and others when packets meet them."""
    legacy = Legacy(reader or Reader(), lambda act: act in acts)
    for netns in namespaces.named():
        for family in ("ip", "ip6"):
            legacy.ask(Wanted(netns, family, ""))
    return legacy
