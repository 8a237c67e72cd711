# SPDX-License-Identifier: Apache-2.0
"""Predicts the packets of a check with the predictor behind `explain`, which alone computes who gets a packet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracer.audit._senders import HERE, Sender, node_address, senders
from tracer.audit.state import NodeState
from tracer.findings.proofs import rule_proof
from tracer.kube.attribution import attribute_path
from tracer.model.finding import FindingEvidence
from tracer.model.hop import DecidingHop, OwnedHop, RewriteHop, decision_of, trace_of
from tracer.model.kube import Owner
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Outcome
from tracer.model.prediction import PredictedPath
from tracer.model.rule import Rule
from tracer.predict.hooks import ORDER
from tracer.predict.query import PathQuery
from tracer.rules.iptables.assemble import UnknownOption
from tracer.rules.rule_path import TooManyPaths
from tracer.util.endpoint_format import format_endpoint

BY_IPVS = "ipvs"


@dataclass(frozen=True)
class TrafficPath:
    """One predicted path of a packet."""

    predicted: PredictedPath

    @property
    def translated(self) -> RewriteHop | None:
        """The hop that translated its destination, None = none did."""
        return next((h for h in self._rewrites if h.nat.kind == "DNAT"), None)

    @property
    def target(self) -> str:
        """The address that its destination was translated to, "" = not translated."""
        hop = self.translated
        return hop.nat.after.dst if hop else ""

    @property
    def masqueraded(self) -> bool:
        """Whether its source was translated."""
        return any(h.nat.kind in ("MASQUERADE", "SNAT") for h in self._rewrites)

    @property
    def _rewrites(self) -> list[RewriteHop]:
        return [h for h in self.predicted.packet.hops if isinstance(h, RewriteHop)]

    @property
    def outcome(self) -> str:
        """Its outcome as for a packet; BY_IPVS if IPVS takes it."""
        packet = self.predicted.packet
        return BY_IPVS if packet.outcome is Outcome.UNKNOWN and "by IPVS" in packet.verdict else packet.outcome

    @property
    def decided(self) -> OwnedHop | None:
        """The hop that decided about its destination: the translation, or the table or chain that refused it."""
        deciding = (h for h in self.predicted.packet.hops if isinstance(h, DecidingHop))
        return self.translated or next((h for h in deciding if h.verdict in REFUSALS), None)

    @property
    def owner(self) -> Owner | None:
        """The owner of that decision."""
        return self.decided.owner if self.decided else None

    def is_met_by(self, rule: Rule) -> bool:
        """Whether the rule acted on it."""
        traces = (trace_of(h) for h in self.predicted.packet.hops)
        return any(hit.rule == rule for trace in traces if trace for hit in trace.hits)

    @property
    def depends_on_order(self) -> bool:
        """Whether all its conditions are about which of several chains was registered last."""
        return all(ORDER in doubt for doubt in self.predicted.conditions)


@dataclass(frozen=True)
class PredictedTraffic:
    """A packet of one sender with all its predicted paths."""

    sender: Sender
    query: PathQuery
    paths: tuple[TrafficPath, ...]


def predict(state: NodeState, sender: Sender, address: str, port: int, protocol: str) -> PredictedTraffic | None:
    """Predicts a packet.

    Args:
        state: The node.
        sender: Its sender.
        address: Its destination address.
        port: Its destination port.
        protocol: "tcp", "udp", "sctp".

    Returns:
        Its paths; None if they cannot be computed, with the reason in state.uncomputed.
    """
    source = sender.address
    if sender.name == HERE:
        source = state.routes.to(address).source or source
    query = PathQuery(source, 0, address, port, protocol)
    try:
        predicted_paths = state.predictor.predict(query)
    except (UnknownOption, TooManyPaths) as e:
        why = f"what happens to {protocol} {format_endpoint(address, port)} cannot be computed: {e}"
        if why not in state.uncomputed:
            state.uncomputed.append(why)
        return None
    # Paths with the same outcome may have rules of different owners.
    every_path = [attribute_path(each, state.cluster) for path in predicted_paths for each in path.with_twins()]
    return PredictedTraffic(sender, query, tuple(TrafficPath(s) for s in every_path))


def at_port(state: NodeState, port: int, protocol: str, address: str = "", v6: bool = False) -> list[PredictedTraffic]:
    """Predicts a request to a port of this node from each sender; [] if one cannot be computed. `address` "" = the node's."""
    family = "ip6" if v6 or ":" in address else "ip"
    to = address or node_address(state, family)
    found = [predict(state, s, to, port, protocol) for s in senders(state, family)] if to else []
    predicted = [a for a in found if a]
    return predicted if len(predicted) == len(found) else []


def all_paths(traffic: Sequence[PredictedTraffic]) -> Iterator[TrafficPath]:
    """All paths of all packets."""
    for each in traffic:
        yield from each.paths


def proofs(traffic: Sequence[PredictedTraffic]) -> list[FindingEvidence]:
    """The rules that decide about the packet of each sender, each once, at most five."""
    found: dict[str, FindingEvidence] = {}
    for each in traffic:
        for path in each.paths:
            hop = path.decided
            decision = decision_of(hop) if hop else None
            if hop and decision:
                proof = rule_proof(decision, hop.owner.text if hop.owner else "")
                found.setdefault(proof.text, proof)
    return list(found.values())[:5]
