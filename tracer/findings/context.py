# SPDX-License-Identifier: Apache-2.0
"""What a finding may ask beside the packet: Kubernetes' objects, the node, and what it has itself counted before."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tracer.kube.catalog import Known
from tracer.kube.fwmarks import EMPTY
from tracer.kube.owners import owner_of
from tracer.model.finding import Finding
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Walk
from tracer.node.node import Node
from tracer.util.bounded import Bounded, Counts

COUNTS_KEPT = 1 << 16
"""Listeners, targets and connections that findings count by."""


@dataclass
class Context:
    """known: the API's objects and the CNI cache. node: the node itself. counts, since: a finding's own, by keys of its
    choice. told: what it has told of a connection before.
    """

    known: Known = field(default_factory=Known)
    node: Node = field(default_factory=Node)
    counts: Counts[Hashable] = field(default_factory=lambda: Counts(COUNTS_KEPT))
    since: Bounded[Hashable, int] = field(default_factory=lambda: Bounded(COUNTS_KEPT))
    told: dict[Hashable, Finding] = field(default_factory=dict)

    def owner(self, rule: Rule, walk: Walk) -> Owner:
        """Whose a rule of this walk is."""
        return owner_of(rule, walk.ruleset or EMPTY, self.known)
