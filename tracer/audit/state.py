# SPDX-License-Identifier: Apache-2.0
"""The input of the checks: the rules in force, Kubernetes' objects, the node's sockets and settings, its routes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tracer.findings.context import FindingContext
from tracer.findings.proofs import existing_rule_proof
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
    """The state of the node.

    Attributes:
        context: Objects and the node, as findings have them.
        installed: The rules in force.
        routes: The node's routes.
        virtual: The virtual servers of IPVS.
        sets: The ipsets.
        uncomputed: Why a packet could not be predicted, one clause each.
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
        """The predictor of packets (tracer/predict)."""
        return PathPredictor(self.installed, self.routes, self.context.node, self.virtual, self.sets)

    @cached_property
    def _reaches(self) -> dict[int, Reachability]:
        """Reachability by the id of the ruleset; `installed` keeps the rulesets alive."""
        found = {}
        if self.installed.legacy:
            found[id(self.installed.legacy)] = Reachability(self.installed.legacy)
        if self.installed.nft:
            found[id(self.installed.nft.ruleset)] = Reachability(self.installed.nft.ruleset, self.installed.nft)
        return found

    def reach(self, ruleset: Ruleset) -> Reachability:
        """The reachable rules of a ruleset."""
        return self._reaches[id(ruleset)]

    @property
    def maps(self) -> set[ChainKey]:
        """The reachable verdict maps."""
        return {key for reach in self._reaches.values() for key in reach.maps}

    def rules(self, *chains: str) -> Iterator[tuple[Rule, Ruleset]]:
        """All reachable rules of both back ends; only those of chains with these names, if any are given."""
        for ruleset in self.installed.rulesets:
            reach = self.reach(ruleset)
            for key in ruleset.chains:
                if not chains or key[2] in chains:
                    for rule in reach.acting(key):
                        yield rule, ruleset

    def owner(self, rule: Rule, ruleset: Ruleset) -> Owner:
        """The owner of a rule."""
        return owner_of(rule, ruleset, self.cluster)

    def proof(self, rule: Rule, ruleset: Ruleset, owner: str = "") -> FindingEvidence:
        """Evidence of an installed rule, with the tool that printed it."""
        return existing_rule_proof(rule, self.installed.source(rule, ruleset), owner)

    @property
    def has_kube_proxy(self) -> bool:
        """Whether kube-proxy has rules here. Only then does traffic of Kubernetes pass this node."""
        return any(rule.chain in ("KUBE-SERVICES", "services") for rule, _ in self.rules("KUBE-SERVICES", "services"))

    @property
    def is_ipvs_mode(self) -> bool:
        """Whether kube-proxy is in ipvs mode: its rules match ipsets."""
        return any("--match-set KUBE-" in rule.text for rule, _ in self.rules("KUBE-SERVICES"))
