# SPDX-License-Identifier: Apache-2.0
"""Watches nftables' rules on a running node for the duration of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tracer.node import netns, netns_cookie
from tracer.rules.nftables.trace_key import TraceSwitch
from tracer.rules.nftables.watcher import RulesetWatcher

FIRST_SECONDS = 5.0
"""Longest wait for the rules of the run's own namespace before the run reports that it is ready, s."""


class WatcherUnavailable(Exception):
    """The kernel's rule trace cannot be turned on; the text says why."""


@contextmanager
def watching(inode: int) -> Iterator[RulesetWatcher]:
    """Turns on the kernel's rule trace and reads rules, within the block. Must be used only where nf_tables is loaded.

    Args:
        inode: The network namespace to begin with.

    Raises:
        WatcherUnavailable: The kernel refused; raised before the block begins.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(TraceSwitch())
        except OSError as e:
            raise WatcherUnavailable(f"the kernel refused the namespace for turning on rule tracing ({e.strerror})") from e
        watch = stack.enter_context(RulesetWatcher())
        watch.poll(netns.identity(inode, netns_cookie.cookie()), FIRST_SECONDS)
        yield watch
