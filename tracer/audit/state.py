# SPDX-License-Identifier: Apache-2.0
"""What the checks look at: the rules in force, Kubernetes' objects, the node's own sockets and settings, its routes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tracer.findings.context import FindingContext
from tracer.findings.proofs import stands
from tracer.kube.catalog import ClusterView
from tracer.kube.owners import owner_of
from tracer.model.finding import FindingEvidence
from tracer.model.kube import Owner
from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.node.routes import Routes
from tracer.predict.ipsets import IpSetReader
from tracer.predict.ipvs import VirtualServers
from tracer.predict.path import PathPredictor
from tracer.rules.inventory import RuleInventory
from tracer.rules.reachability import Reachability


@dataclass
class NodeState:
    """context: objects and the node, as findings have them. virtual, sets: of IPVS and ipset. uncomputed: why the predictor
    could not say what happens to a packet, a clause each.
    """

    context: FindingContext
    installed: RuleInventory
    routes: Routes = field(default_factory=Routes)
    virtual: VirtualServers = field(default_factory=VirtualServers)
    sets: IpSetReader = field(default_factory=IpSetReader)
    uncomputed: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> ClusterView:
        return self.context.cluster

    @cached_property
    def predictor(self) -> PathPredictor:
        """What says what happens to a packet (tracer/explain)."""
        return PathPredictor(self.installed, self.routes, self.context.node, self.virtual, self.sets)

    @cached_property
    def _reaches(self) -> dict[int, Reachability]:
        """By the ruleset's id: `installed` keeps them."""
        found = {}
        if self.installed.legacy:
            found[id(self.installed.legacy)] = Reachability(self.installed.legacy)
        if self.installed.nft:
            found[id(self.installed.nft.ruleset)] = Reachability(self.installed.nft.ruleset, self.installed.nft)
        return found

    def reach(self, ruleset: Ruleset) -> Reachability:
        """Which of its rules a packet can get to."""
        return self._reaches[id(ruleset)]

    @property
    def maps(self) -> set[ChainKey]:
        """Verdict maps that a packet can be looked up in."""
        return {key for reach in self._reaches.values() for key in reach.maps}

    def rules(self, *chains: str) -> Iterator[tuple[Rule, Ruleset]]:
        """Every rule that a packet can get to, of both back ends; only of chains with these names if any are given."""
        for ruleset in self.installed.rulesets:
            reach = self.reach(ruleset)
            for key in ruleset.chains:
                if not chains or key[2] in chains:
                    for rule in reach.acting(key):
                        yield rule, ruleset

    def owner(self, rule: Rule, ruleset: Ruleset) -> Owner:
        return owner_of(rule, ruleset, self.cluster)

    def proof(self, rule: Rule, ruleset: Ruleset, whose: str = "") -> FindingEvidence:
        """A rule that is there, and who told so."""
        return stands(rule, self.installed.source(rule, ruleset), whose)

    @property
    def by_kube(self) -> bool:
        """Whether kube-proxy has rules here: only then does Kubernetes' traffic go through this node."""
        return any(rule.chain in ("KUBE-SERVICES", "services") for rule, _ in self.rules("KUBE-SERVICES", "services"))

    @property
    def ipvs(self) -> bool:
        """Whether kube-proxy is in ipvs mode: its rules ask ipsets."""
        return any("--match-set KUBE-" in rule.text for rule, _ in self.rules("KUBE-SERVICES"))
