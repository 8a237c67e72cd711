# SPDX-License-Identifier: Apache-2.0
"""What happens to the packets that a check speaks of, by the predictor behind `explain`: who wins is computed there alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracer.audit._senders import HERE, Sender, node_address, senders
from tracer.audit.state import NodeState
from tracer.findings.proofs import rule_proof
from tracer.kube.attribution import attribute
from tracer.model.finding import FindingEvidence
from tracer.model.kube import Owner
from tracer.model.packet import Hop
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
    """One way that a packet may go."""

    predicted: PredictedPath

    @property
    def translated(self) -> Hop | None:
        """Where its destination was translated; None when it was not."""
        return next((h for h in self.predicted.packet.hops if h.nat and h.nat.kind == "DNAT"), None)

    @property
    def target(self) -> str:
        """The address that its destination was translated to; "" when it was not."""
        hop = self.translated
        return hop.nat.after.dst if hop and hop.nat else ""

    @property
    def masqueraded(self) -> bool:
        """Whether its source was translated."""
        return any(h.nat and h.nat.kind in ("MASQUERADE", "SNAT") for h in self.predicted.packet.hops)

    @property
    def outcome(self) -> str:
        """As a packet's, BY_IPVS for what IPVS takes."""
        packet = self.predicted.packet
        return BY_IPVS if packet.outcome == "unknown" and "by IPVS" in packet.verdict else packet.outcome

    @property
    def decided(self) -> Hop | None:
        """What decided about its destination: the translation, or the table or chain that refused it."""
        refused = (h for h in self.predicted.packet.hops if h.verdict in ("DROP", "REJECT"))
        return self.translated or next(refused, None)

    @property
    def owner(self) -> Owner | None:
        """Whose decision that was."""
        return self.decided.owner if self.decided else None

    def met(self, rule: Rule) -> bool:
        """Whether the rule acted on it."""
        return any(v.rule == rule for h in self.predicted.packet.hops if h.rule_trace for v in h.rule_trace.hits)

    @property
    def by_order(self) -> bool:
        """Whether it is open for nothing else than which of several chains was registered last."""
        return all(ORDER in doubt for doubt in self.predicted.conditions)


@dataclass(frozen=True)
class PredictedTraffic:
    """A packet of one sender, and all ways that it may go."""

    sender: Sender
    query: PathQuery
    ways: tuple[TrafficPath, ...]


def predict(state: NodeState, sender: Sender, address: str, port: int, protocol: str) -> PredictedTraffic | None:
    """What happens to this packet; None when that cannot be computed, with the reason in state.uncomputed."""
    source = sender.address
    if sender.name == HERE:
        source = state.routes.to(address).source or source
    question = PathQuery(source, 0, address, port, protocol)
    try:
        predicted_paths = state.predictor.predict(question)
    except (UnknownOption, TooManyPaths) as e:
        why = f"what happens to {protocol} {format_endpoint(address, port)} cannot be computed: {e}"
        if why not in state.uncomputed:
            state.uncomputed.append(why)
        return None
    # Ways that come to the same may do so by rules of different owners.
    every = [each for story in predicted_paths for each in story.with_twins()]
    for story in every:
        attribute(story.packet, state.cluster)
    return PredictedTraffic(sender, question, tuple(TrafficPath(s) for s in every))


def at_port(state: NodeState, port: int, protocol: str, address: str = "", v6: bool = False) -> list[PredictedTraffic]:
    """A request to a port of this node, of each sender; [] when one of them cannot be computed. address: "" = the node's."""
    family = "ip6" if v6 or ":" in address else "ip"
    to = address or node_address(state, family)
    found = [predict(state, s, to, port, protocol) for s in senders(state, family)] if to else []
    asked = [a for a in found if a]
    return asked if len(asked) == len(found) else []


def paths(asked: Sequence[PredictedTraffic]) -> Iterator[TrafficPath]:
    """All ways of all packets."""
    for each in asked:
        yield from each.ways


def proofs(asked: Sequence[PredictedTraffic]) -> list[FindingEvidence]:
    """What decides about the packet of each sender, said once a rule."""
    found: dict[str, FindingEvidence] = {}
    for each in asked:
        for way in each.ways:
            hop = way.decided
            if hop and hop.rule_trace and hop.rule_trace.decision:
                proof = rule_proof(hop.rule_trace.decision, hop.owner.text if hop.owner else "")
                found.setdefault(proof.text, proof)
    return list(found.values())[:5]
