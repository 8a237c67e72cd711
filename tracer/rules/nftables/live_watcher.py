# SPDX-License-Identifier: Apache-2.0
"""The parts that watch nftables' rules on a running node, for as long as a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tracer.node import netns, netns_cookie
from tracer.rules.nftables.trace_key import TraceSwitch
from tracer.rules.nftables.watcher import RulesetWatcher

FIRST_SECONDS = 5.0
"""How long a run waits for the rules of its own namespace before it says it is ready."""


class WatcherUnavailable(Exception):
    """The kernel will not tell which rules act; the text says why."""


@contextmanager
def watching(inode: int) -> Iterator[RulesetWatcher]:
    """The kernel tells which rules act, and they are being read, in the block. inode: of the namespace to begin with.

    Only where nf_tables is loaded. Raises WatcherUnavailable before the block begins.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(TraceSwitch())
        except OSError as e:
            raise WatcherUnavailable(f"the kernel refused a namespace to turn rule tracing on from ({e.strerror})") from e
        watch = stack.enter_context(RulesetWatcher())
        watch.poll(netns.identity(inode, netns_cookie.cookie()), FIRST_SECONDS)
        yield watch
