# SPDX-License-Identifier: Apache-2.0
"""Runs that may be missing in the kernel's account of a round: those at its edges, where only the tracer's account was read."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.model.netfilter import IP_HOOKS

Places = list[tuple[str, int]]
"""Chain and number of the rules that acted."""


def may_be(runs: list[tuple[Places, bool]]) -> Iterator[Places]:
    """What the kernel may report of these runs, in order of time: all, or all except some of the first and last that lie
    outside the time between its readings. runs: places, and whether they lie inside."""
    inside = [at for at, (_, within) in enumerate(runs) if within]
    first, last = (inside[0], inside[-1] + 1) if inside else (len(runs), 0)
    for begin in range(first + 1):
        for end in range(max(last, begin), len(runs) + 1):
            yield [place for places, _ in runs[begin:end] for place in places]


def by_hook(places: Places) -> Places:
    """The places in order of hooks. The kernel's trace of a rule that sends a copy (TEE) has the copy's places in the middle of
    the original's; the tracer has each run as a whole. A copy comes only to OUTPUT and POSTROUTING, where an original that has
    such a rule has not come yet.
    """
    found: dict[str, Places] = {}
    hook = ""
    for place in places:
        hook = place[0] if place[0] in IP_HOOKS else hook
        found.setdefault(hook, []).append(place)
    return [place for hook in sorted(found, key=lambda h: IP_HOOKS.index(h) if h else -1) for place in found[hook]]
