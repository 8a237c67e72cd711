# SPDX-License-Identifier: Apache-2.0
"""What a finding may ask beside the packet: Kubernetes' objects, the node, and what it has itself counted before."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tracer.kube.catalog import ClusterView
from tracer.kube.fwmarks import EMPTY
from tracer.kube.owners import owner_of
from tracer.model.finding import Finding
from tracer.model.kube import Owner
from tracer.model.rule import Rule, RuleTrace
from tracer.node.node import HostReader
from tracer.util.bounded import Bounded, Counts

COUNTS_KEPT = 1 << 16
"""Listeners, targets and connections that findings count by."""


@dataclass
class FindingContext:
    """known: the API's objects and the CNI cache. node: the node itself. counts, since: a finding's own, by keys of its
    choice. told: what it has told of a connection before.
    """

    cluster: ClusterView = field(default_factory=ClusterView)
    node: HostReader = field(default_factory=HostReader)
    counts: Counts[Hashable] = field(default_factory=lambda: Counts(COUNTS_KEPT))
    since: Bounded[Hashable, int] = field(default_factory=lambda: Bounded(COUNTS_KEPT))
    told: dict[Hashable, Finding] = field(default_factory=dict)

    def owner(self, rule: Rule, trace: RuleTrace) -> Owner:
        """Whose a rule of this walk is."""
        return owner_of(rule, trace.ruleset or EMPTY, self.cluster)
