# SPDX-License-Identifier: Apache-2.0
"""Words for the ways that a packet may go, shared by the formats: which are the same but for where they lead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from tracer.model.packet import Hop, Packet
from tracer.model.rule import format_path
from tracer.util.endpoint_format import format_endpoint

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath


def alike(predicted_paths: Sequence[PredictedPath]) -> list[list[PredictedPath]]:
    """The stories in groups: those of one differ only in the endpoint that chance has chosen."""
    groups: dict[Hashable, list[PredictedPath]] = {}
    for story in predicted_paths:
        groups.setdefault((story.conditions, story.share, _shape(story.packet)), []).append(story)
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
    if story.conditions:
        parts.append("if " + " and ".join(story.conditions) + " (cannot be computed)")
    return ", ".join(parts)


def elsewhere(predicted: PredictedPath) -> str:
    """Where another one of a group leads: the last rule on the way, and the endpoint."""
    hop = _translated(predicted)
    decision = hop.rule_trace.decision if hop and hop.rule_trace else None
    by = f" by {format_path(decision.path[-2:])}" if decision else ""
    return f"or {endpoint(predicted) or predicted.packet.verdict}{by}"


def endpoint(predicted: PredictedPath) -> str:
    """Where a DNAT on the way leads: "10.244.0.12:8080 (pod default/http-proxy-b (node-1))"; "" when there is none."""
    hop = _translated(predicted)
    if not hop or not hop.nat:
        return ""
    leads = f" ({hop.owner.target})" if hop.owner and hop.owner.target else ""
    return format_endpoint(hop.nat.after.dst, hop.nat.after.dport) + leads


def chosen_rule(predicted: PredictedPath) -> str:
    """The endpoint that chance has chosen for a packet; "" where chance had no choice."""
    return endpoint(predicted) if predicted.share != 1 else ""


def _translated(predicted: PredictedPath) -> Hop | None:
    return next((h for h in predicted.packet.hops if h.nat and h.nat.kind == "DNAT"), None)


def common_hops(one: Packet, other: Packet) -> int:
    """How many hops two packets have in common at the beginning; at least one, if there are any."""
    count = next((i for i, (a, b) in enumerate(zip(one.hops, other.hops, strict=False)) if a != b), len(one.hops))
    return max(1, min(count, len(other.hops)))
