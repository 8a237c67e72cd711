# SPDX-License-Identifier: Apache-2.0
"""What may be missing in the kernel's account of a round: runs at its edges, where it was not read but the tracer's was."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.events.record import HOOKS

Places = list[tuple[str, int]]
"""Of the rules that acted: chain and number."""


def may_be(runs: list[tuple[Places, bool]]) -> Iterator[Places]:
    """What the kernel may say of these runs, in order of time: all, or all but some of the first and last that lie outside the
    time between its readings. runs: places, and whether they lie inside."""
    inside = [at for at, (_, within) in enumerate(runs) if within]
    first, last = (inside[0], inside[-1] + 1) if inside else (len(runs), 0)
    for begin in range(first + 1):
        for end in range(max(last, begin), len(runs) + 1):
            yield [place for places, _ in runs[begin:end] for place in places]


def by_hook(places: Places) -> Places:
    """The places hook by hook. The kernel's trace of a rule that sends a copy (TEE) has the copy's places in the middle of the
    original's; the tracer has each run as a whole. A copy comes to OUTPUT and POSTROUTING alone, where an original that has
    such a rule has not come yet.
    """
    found: dict[str, Places] = {}
    hook = ""
    for place in places:
        hook = place[0] if place[0] in HOOKS else hook
        found.setdefault(hook, []).append(place)
    return [place for hook in sorted(found, key=lambda h: HOOKS.index(h) if h else -1) for place in found[hook]]
