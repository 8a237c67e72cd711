# SPDX-License-Identifier: Apache-2.0
"""What a finding can use besides the packet: Kubernetes objects, questions about the node, and its own counters."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from tracer.kube.catalog import ClusterView
from tracer.kube.fwmarks import EMPTY
from tracer.kube.owners import owner_of
from tracer.model.connection import ConnectionKey
from tracer.model.finding import Finding
from tracer.model.kube import Owner
from tracer.model.rule import Rule, RuleTrace
from tracer.node.node import HostReader
from tracer.node.node_questions import NodeQuestion
from tracer.util.lru_dict import LruCounter, LruDict
from tracer.util.questions import Answer, Journal, live

COUNTS_KEPT = 1 << 16
"""Maximum number of listeners, targets and connections that findings count."""
CONNECTIONS_KEPT = 1000
"""Maximum number of connections that findings follow after the packet that they were found by."""
P = ParamSpec("P")
T = TypeVar("T")
Questions = tuple[NodeQuestion[Any, Any], ...]


class UndeclaredQuestion(LookupError):
    """A finding asks a question that its ASKS does not have: a recording without explanation would not ask it."""


@dataclass
class FollowedConnection:
    """A connection that a finding follows.

    Attributes:
        finding: The finding from its first packet.
        sent: Number of packets of the request that were seen.
        back: Number of packets of the answer that were seen.
    """

    finding: Finding
    sent: int = 1
    back: int = 0


@dataclass
class FindingContext:
    """What a finding can use besides the packet.

    Attributes:
        cluster: The API objects and the CNI cache.
        node: Reads the node. Only for the audit; a finding asks by `ask`, because a replay has no node.
        journal: Answers the questions: live, recorded, or from a capture.
        declared: The questions that may be asked; None = all, as in the audit.
        counts: Counters of the findings, by keys of their own choice.
        since: Times or counter values of the findings, by keys of their own choice.
        reported: Connections with a finding that later packets add to.
    """

    cluster: ClusterView = field(default_factory=ClusterView)
    node: HostReader = field(default_factory=HostReader)
    journal: Journal = live
    declared: Questions | None = None
    counts: LruCounter[Hashable] = field(default_factory=lambda: LruCounter(COUNTS_KEPT, "counts of findings"))
    since: LruDict[Hashable, int] = field(default_factory=lambda: LruDict(COUNTS_KEPT, "times of findings"))
    reported: LruDict[ConnectionKey, FollowedConnection] = field(
        default_factory=lambda: LruDict(CONNECTIONS_KEPT, "connections with a finding")
    )

    def ask(self, question: NodeQuestion[P, T], *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        """Asks a question about the node. Raises UndeclaredQuestion."""
        if self.declared is not None and question not in self.declared:
            raise UndeclaredQuestion(f"ASKS does not have {question}")
        return question.ask(self.node, self.journal, *args, **kwargs)

    def restricted(self, declared: Questions) -> FindingContext:
        """The same context for a finding that declares these questions."""
        return replace(self, declared=declared)

    def owner(self, rule: Rule, trace: RuleTrace) -> Owner:
        """Returns the owner of a rule in this rule trace."""
        return owner_of(rule, trace.ruleset or EMPTY, self.cluster)
