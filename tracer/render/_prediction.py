# SPDX-License-Identifier: Apache-2.0
"""Words for the ways that a packet may go, shared by the formats: which are the same but for where they lead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from tracer.model.packet import Hop, Packet
from tracer.model.rule import path
from tracer.util.addresses import place

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath


def alike(stories: Sequence[PredictedPath]) -> list[list[PredictedPath]]:
    """The stories in groups: those of one differ only in the endpoint that chance has chosen."""
    groups: dict[Hashable, list[PredictedPath]] = {}
    for story in stories:
        groups.setdefault((story.doubts, story.share, _shape(story.packet)), []).append(story)
    return list(groups.values())


def _shape(packet: Packet) -> Hashable:
    return packet.outcome, tuple((h.what, h.hook, h.table, h.chain, h.verdict, h.nat and h.nat.kind) for h in packet.hops)


def condition(group: Sequence[PredictedPath]) -> str:
    """When the packet goes so: "one of 3 endpoints, each for 1/3 of all connections"; "" = always."""
    story = group[0]
    parts = []
    if len(group) > 1:
        parts.append(f"one of {len(group)} endpoints, each for {story.share} of all connections")
    elif story.share != 1:
        parts.append(f"{story.share} of all connections")
    if story.doubts:
        parts.append("if " + " and ".join(story.doubts) + " (cannot be computed)")
    return ", ".join(parts)


def elsewhere(story: PredictedPath) -> str:
    """Where another one of a group leads: the last rule on the way, and the endpoint."""
    hop = _translated(story)
    decision = hop.walk.decision if hop and hop.walk else None
    by = f" by {path(decision.path[-2:])}" if decision else ""
    return f"or {endpoint(story) or story.packet.verdict}{by}"


def endpoint(story: PredictedPath) -> str:
    """Where a DNAT on the way leads: "10.244.0.12:8080 (pod default/http-proxy-b (node-1))"; "" when there is none."""
    hop = _translated(story)
    if not hop or not hop.nat:
        return ""
    leads = f" ({hop.owner.target})" if hop.owner and hop.owner.target else ""
    return place(hop.nat.after.dst, hop.nat.after.dport) + leads


def chosen(story: PredictedPath) -> str:
    """The endpoint that chance has chosen for a packet; "" where chance had no choice."""
    return endpoint(story) if story.share != 1 else ""


def _translated(story: PredictedPath) -> Hop | None:
    return next((h for h in story.packet.hops if h.nat and h.nat.kind == "DNAT"), None)


def common_hops(one: Packet, other: Packet) -> int:
    """How many hops two packets have in common at the beginning; at least one, if there are any."""
    count = next((i for i, (a, b) in enumerate(zip(one.hops, other.hops, strict=False)) if a != b), len(one.hops))
    return max(1, min(count, len(other.hops)))
