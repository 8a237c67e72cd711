# SPDX-License-Identifier: Apache-2.0
"""Formats predicted paths. Groups the paths that differ only in the endpoint."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from tracer.model.hop import Hop, NatHop, RouteHop, RuleHop, decision_of, nat_of, verdict_of
from tracer.model.packet import Packet
from tracer.model.rule import format_path
from tracer.util.endpoint_format import format_endpoint

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath


def group_alike(predicted_paths: Sequence[PredictedPath]) -> list[list[PredictedPath]]:
    """Groups the paths. Those of one group differ only in the endpoint that chance selects."""
    groups: dict[Hashable, list[PredictedPath]] = {}
    for predicted in predicted_paths:
        groups.setdefault((predicted.conditions, predicted.share, _shape(predicted.packet)), []).append(predicted)
    return list(groups.values())


def _shape(packet: Packet) -> Hashable:
    return packet.outcome, tuple(_hop_shape(hop) for hop in packet.hops)


def _hop_shape(hop: Hop) -> Hashable:
    nat = nat_of(hop)
    place = (hop.table, hop.base_chain) if isinstance(hop, RuleHop) else ()
    decision = hop.route if isinstance(hop, RouteHop) else verdict_of(hop)
    return hop.kind, hop.hook, place, decision, nat.kind if nat else ""


def condition(group: Sequence[PredictedPath]) -> str:
    """When a packet takes this path: "one of 3 endpoints, each for 1/3 of all connections"; "" = always."""
    predicted = group[0]
    parts = []
    if len(group) > 1:
        parts.append(f"one of {len(group)} endpoints, each for {predicted.share} of all connections")
    elif predicted.share != 1:
        parts.append(f"{predicted.share} of all connections")
    if predicted.conditions:
        parts.append("if " + " and ".join(predicted.conditions) + " (cannot be computed)")
    return ", ".join(parts)


def elsewhere(predicted: PredictedPath) -> str:
    """A further path of a group in one line: its endpoint and the last rules of its path."""
    hop = _translated(predicted)
    decision = decision_of(hop) if hop else None
    by = f" by {format_path(decision.path[-2:])}" if decision else ""
    return f"or {endpoint(predicted) or predicted.packet.verdict}{by}"


def endpoint(predicted: PredictedPath) -> str:
    """The target of the DNAT: "10.244.0.12:8080 (pod default/http-proxy-b (node-1))"; "" if there is no DNAT."""
    hop = _translated(predicted)
    if not hop:
        return ""
    leads = f" ({hop.owner.target})" if hop.owner and hop.owner.target else ""
    return format_endpoint(hop.nat.after.dst, hop.nat.after.dport) + leads


def chosen_rule(predicted: PredictedPath) -> str:
    """The endpoint that chance selected for a packet; "" if there was only one path."""
    return endpoint(predicted) if predicted.share != 1 else ""


def _translated(predicted: PredictedPath) -> NatHop | None:
    return next((h for h in predicted.packet.hops if isinstance(h, NatHop) and h.nat.kind == "DNAT"), None)


def common_hops(one: Packet, other: Packet) -> int:
    """The number of equal hops at the start of two packets; at least one, if there are any."""
    count = next((i for i, (a, b) in enumerate(zip(one.hops, other.hops, strict=False)) if a != b), len(one.hops))
    return max(1, min(count, len(other.hops)))
