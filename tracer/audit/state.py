"""What the checks look at: the rules in force, Kubernetes' objects, the node's own sockets and settings, its routes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracer.findings.context import Context
from tracer.findings.model import Proof, stands
from tracer.kube.known import Known
from tracer.kube.model import Owner
from tracer.kube.owners import owner_of
from tracer.routes import Routes
from tracer.rules.installed import Installed
from tracer.rules.model import Rule, Ruleset


@dataclass
class State:
    """context: objects and the node, as findings have them."""

    context: Context
    installed: Installed
    routes: Routes = field(default_factory=Routes)

    @property
    def known(self) -> Known:
        return self.context.known

    def rules(self, *chains: str) -> Iterator[tuple[Rule, Ruleset]]:
        """Every rule, of both back ends; only of chains with these names if any are given."""
        for ruleset in self.installed.rulesets:
            for (_, _, chain), rules in ruleset.chains.items():
                if not chains or chain in chains:
                    for rule in rules:
                        yield rule, ruleset

    def owner(self, rule: Rule, ruleset: Ruleset) -> Owner:
        return owner_of(rule, ruleset, self.known)

    def proof(self, rule: Rule, ruleset: Ruleset, whose: str = "") -> Proof:
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
