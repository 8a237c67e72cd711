# SPDX-License-Identifier: Apache-2.0
"""What a check needs beside rules. A check names them in NEEDS; what is missing is printed with the result of the audit.

A need is a function: it takes the state, and returns why the check could not look at something, "" = it looked at all.
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.audit.state import NodeState
from tracer.findings.conntrack_full import full
from tracer.findings.nfqueue_unattended import QUEUES
from tracer.util.questions import value_of

Need = Callable[[NodeState], str]

NO_OBJECTS = "neither an API nor --objects gave any"


def kube_proxy(state: NodeState) -> str:
    """Rules of kube-proxy: without them no traffic of Kubernetes passes."""
    return "" if state.has_kube_proxy else "there are no rules of kube-proxy here, so it does not apply"


def services(state: NodeState) -> str:
    """The Services of the cluster."""
    return "" if state.cluster.store.services else f"the Services are not known: {NO_OBJECTS}"


def node_ports(state: NodeState) -> str:
    """The NodePorts: in ipvs mode no rule names them."""
    known = not state.is_ipvs_mode or state.cluster.store.services
    return "" if known else f"NodePorts are not known: in ipvs mode no rule names them, and of Services {NO_OBJECTS}"


def pods(state: NodeState) -> str:
    """The pods, to see which of them are gone."""
    return "" if state.cluster.store.pods else f"hostPorts of pods that are gone: the pods are not known, {NO_OBJECTS}"


def this_node(state: NodeState) -> str:
    """The object of this node, which has the networks of its pods."""
    return "" if state.cluster.store.this_node() else "the networks of this node's pods: its object is not known"


def no_ipvs(state: NodeState) -> str:
    """A mode in which rules forward: packets that IPVS forwards are not followed."""
    return "kube-proxy is in ipvs mode: packets that IPVS forwards are not followed" if state.is_ipvs_mode else ""


def conntrack(state: NodeState) -> str:
    """The size of conntrack's table."""
    return "" if full(state.context)[1] else "the size of conntrack's table cannot be read: conntrack is not in use, perhaps"


def packet_queues(state: NodeState) -> str:
    """The queues of NFQUEUE rules with a process."""
    return "the queues with a process cannot be read" if value_of(state.context.ask(QUEUES)) is None else ""
