# SPDX-License-Identifier: Apache-2.0
"""The plugin `kubectl k8snet-trace`: one run on several nodes. Imported only when it runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracer.capture.record.capture_files import RotationLimits
from tracer.cluster import cluster_objects, node_choice
from tracer.cluster.cluster_objects import ClusterObjects
from tracer.cluster.cluster_run import END_SECONDS, ClusterRun, NodeCommand
from tracer.cluster.cluster_totals import ClusterTotals
from tracer.cluster.endpoint_readings import EndpointReadings
from tracer.cluster.filter_coverage import FilterCoverage
from tracer.cluster.join_horizon import JoinHorizon
from tracer.cluster.kubectl import Kubectl
from tracer.cluster.node_captures import NodeCaptures
from tracer.cluster.node_choice import NodeRequest
from tracer.cluster.packet_stage import PacketStage, SingleViews
from tracer.cluster_findings import ClusterFindings
from tracer.cluster_findings.cluster_context import ClusterContext
from tracer.errors import BadOption, NoAgent, NoObjects
from tracer.joining.packet_joiner import PacketJoiner
from tracer.joining.traced_nodes import TracedNodes
from tracer.kube.api_client import SERVICES, SLICES
from tracer.kube.catalog import ClusterView
from tracer.kube.selectors import Selectors
from tracer.pipeline import sinks
from tracer.pipeline.shutdown import EXPLAINING, StopRequest, StopSignals
from tracer.pipeline.sinks import OutputSpec
from tracer.render.base import Output, hang_up
from tracer.selection.filter_options import FilterOptions

JOIN_SECONDS = 8.0
"""Time that packets wait for a node with an unknown clock, s: an agent sends a packet at most 5 s after its last event."""


@dataclass(frozen=True)
class ClusterRequest:
    """The options of a run on several nodes.

    Attributes:
        nodes: Names of nodes.
        clients: Objects that send.
        context: Context of the kubeconfig.
        kubeconfig: The kubeconfig.
        namespace: Namespace of the DaemonSet.
        image: Image for debug pods on nodes without a pod of the DaemonSet; "" = such nodes are not traced.
        kubectl: Name or path of kubectl.
    """

    nodes: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    context: str = ""
    kubeconfig: str = ""
    namespace: str = "kube-system"
    image: str = ""
    kubectl: str = "kubectl"


NODE_OPTIONS: Mapping[str, str] = {
    "ports": "--port", "hosts": "--host", "source_ports": "--sport", "destination_ports": "--dport", "sources": "--src",
    "destinations": "--dst", "excluded_ports": "--not-port", "excluded_hosts": "--not-host", "services": "--service",
    "pods": "--pod", "workloads": "--workload", "labels": "--selector", "namespaces": "--namespace",
    "node_ports": "--node-port", "host_ports": "--host-port", "proto": "--proto", "tcp_flags": "--tcp-flags",
    "expression": "--filter", "pids": "--pid", "commands": "--comm", "iface": "--iface", "netns": "--netns",
    "drops_only": "--drops-only", "quiet": "--quiet", "verbose": "--verbose", "no_rules": "--no-rules", "follow": "--follow",
    "attach": "--attach", "duration": "--duration", "snaplen": "--snaplen",
    "redact": "--redact", "write": "--record", "no_kube": "--no-kube",
}  # fmt: skip
"""The options that agents get as they were given, by the names of their parameters."""


def node_arguments(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of `agent` for these options of `trace`."""
    words: list[str] = []
    for name, option in NODE_OPTIONS.items():
        value = options.get(name)
        if value is True or (value and name == "write"):
            words.append(option)
        elif value and not (name == "attach" and value == "auto"):
            for each in value if isinstance(value, tuple) else (value,):
                words += (option, str(each))
    if options.get("family"):
        words.append(f"-{options['family']}")
    return tuple(words)


def result_arguments(options: Mapping[str, Any], outputs: Sequence[OutputSpec]) -> tuple[str, ...]:
    """The options of `agent` for what these outputs of `trace` show."""
    return ("--all-results",) if options["verbose"] or any(spec.form == "json" for spec in outputs) else ()


@dataclass(frozen=True)
class PreparedCluster:
    """A run on several nodes that can begin.

    Attributes:
        nodes: Names of the nodes.
        commands: The command of each node.
        findings: What looks at the packets of all nodes together; None = nothing does.
        endpoints: Reads endpoints of Services again for the findings, in a thread that begins when one asks.
    """

    nodes: Sequence[str]
    commands: Sequence[NodeCommand]
    findings: ClusterFindings | None
    endpoints: EndpointReadings

    @property
    def sentence(self) -> str:
        """What is traced, for the user."""
        return f"Tracing {_count(len(self.nodes), 'node')}: {_listed(self.nodes)}. Press Ctrl-C to stop."


def prepare(request: ClusterRequest, results: Sequence[str], options: dict[str, Any]) -> PreparedCluster:
    """Chooses the nodes, and makes their commands.

    Args:
        request: The nodes, and how they are reached.
        results: The options of `agent` for what is shown (`result_arguments`).
        options: The options of `trace`.

    Raises:
        NoAgent: kubectl, or the agent of a node, is not there.
        TraceError: The run is impossible.
    """
    words = Selectors.of(options)
    FilterOptions.of(options)
    if shutil.which(request.kubectl) is None:
        raise NoAgent(f"{request.kubectl} is not there: install kubectl, which starts the agents.")
    objects = ClusterObjects(request.kubeconfig, request.context)
    view = objects.read((*cluster_objects.ALL_NODES, *(cluster_objects.NAMED if words or request.clients else ())))
    nodes = node_choice.choose(NodeRequest(request.nodes, request.clients, words), view)
    commands = _commands(nodes, objects.agents(request.namespace), request, options, results, words, view)
    endpoints = EndpointReadings(objects.slices)
    findings = _cluster_findings(len(nodes), options, objects, bool(words or request.clients), endpoints)
    return PreparedCluster(nodes, commands, findings, endpoints)


def complete(cluster: PreparedCluster, output: Output, options: Mapping[str, Any], stop: StopRequest) -> ClusterTotals:
    """Traces until the end of the run, and writes its summary.

    Args:
        cluster: The run.
        output: Where results are written.
        options: The options of `trace`.
        stop: Request to end the run.

    Raises:
        NoAgent: No node could be traced.
    """
    with ExitStack() as stack:
        captures = _captures(options, output, stack)
        stack.callback(cluster.endpoints.close)
        stage, horizon = packet_stage(len(cluster.commands))
        count = options.get("count", 0)
        totals = ClusterRun(cluster.commands, output, stage, count, captures, horizon, cluster.findings).run(stop)
    output.summary(totals.summary)
    _require_traced(totals)
    return totals


def run(request: ClusterRequest, outputs: Sequence[OutputSpec], options: dict[str, Any]) -> int:
    """Traces several nodes until the end of the run, and prints their packets. Returns the exit status.

    Args:
        request: The nodes, and how they are reached.
        outputs: Where results are written.
        options: The options of `trace`.

    Raises:
        NoAgent: No node could be traced.
        TraceError: The run is impossible.
    """
    cluster = prepare(request, result_arguments(options, outputs), options)
    with sinks.opened(outputs, options["verbose"]) as output:
        output.note(cluster.sentence)
        return driven(output, lambda stop: complete(cluster, output, options, stop))


def driven(output: Output, work: Callable[[StopRequest], object]) -> int:
    """Runs work that a signal ends. Returns the exit status. output: gets notes; its stream may have lost its reader."""
    with StopSignals(END_SECONDS, lambda: output.note(EXPLAINING)) as stop:
        try:
            work(stop)
        except BrokenPipeError:
            hang_up(sys.stdout)
    return 0


def _captures(options: Mapping[str, Any], output: Output, stack: ExitStack) -> NodeCaptures | None:
    """The captures of the nodes, until the stack unwinds; None = none are written."""
    if not options["write"]:
        return None
    limits = RotationLimits(options["ring"] or 0, options["rotate_size"] or 0, options["rotate_time"] or 0)
    captures = NodeCaptures(Path(options["write"]), limits)

    def close() -> None:
        names = captures.close()
        output.note(f"Captures: {_listed([str(name) for name in names])}." if names else "No capture was written.")

    stack.callback(close)
    return captures


def packet_stage(nodes: int) -> tuple[PacketStage, JoinHorizon | None]:
    """What packets of so many nodes pass, and how long they wait there. One node's packets wait for nothing."""
    return (PacketJoiner(), JoinHorizon(int(JOIN_SECONDS * 1e9))) if nodes > 1 else (SingleViews(), None)


def _cluster_findings(
    nodes: int, options: Mapping[str, Any], objects: ClusterObjects, has_pods: bool, endpoints: EndpointReadings
) -> ClusterFindings | None:
    """What looks at the packets of all nodes together; None = there is only one node.

    Args:
        nodes: Number of nodes.
        options: The options of `trace`.
        objects: The objects of the cluster.
        has_pods: Pods, Services and their endpoints were read. Otherwise they are read here; without a right to it, only nodes
            are known.
        endpoints: Reads endpoints of Services again.
    """
    if nodes < 2:
        return None
    if not has_pods:
        for resource in (cluster_objects.PODS, SERVICES, SLICES):
            with suppress(NoObjects):
                objects.read((resource,))
    coverage = FilterCoverage.of(options, objects.view)
    nodes_of_run = TracedNodes(objects.view.store)
    return ClusterFindings(ClusterContext(nodes_of_run, coverage, coverage.is_by_name, endpoints=endpoints))


def _commands(
    nodes: Sequence[str],
    agents: Mapping[str, str],
    request: ClusterRequest,
    options: dict[str, Any],
    results: Sequence[str],
    words: Selectors,
    view: ClusterView,
) -> list[NodeCommand]:
    """The command of each node. Raises NoAgent if a node has no pod of the DaemonSet and no image is given."""
    missing = [node for node in nodes if node not in agents]
    if missing and not request.image:
        raise NoAgent(
            f"{_listed(missing)} {'has' if len(missing) == 1 else 'have'} no running pod of the DaemonSet in"
            f" {request.namespace}: apply deploy/rbac.yaml and deploy/daemonset.yaml, or give --image IMAGE for debug pods."
        )
    kubectl = Kubectl(request.kubectl, request.context, request.kubeconfig)
    found = []
    for node in nodes:
        # A debug pod has no account for the API.
        adapted = options_for(node, options, words, view, has_api=node in agents)
        arguments = (*results, *node_arguments(adapted))
        if node in agents:
            found.append(NodeCommand(node, kubectl.exec(request.namespace, agents[node], arguments)))
        else:
            found.append(NodeCommand(node, kubectl.debug(node, request.image, arguments)))
    return found


def options_for(node: str, options: dict[str, Any], words: Selectors, view: ClusterView, has_api: bool) -> dict[str, Any]:
    """The options for one node.

    A node looks up Services, and its own pods. Pods of other nodes, and everything where there is no access to the API, are
    given by their addresses.
    """
    by_name = replace(words, pods=(), workloads=(), labels=(), host_ports=())
    if not has_api:
        by_name = Selectors()
    local = {(pod.namespace, pod.name) for pod in view.store.pods.values() if pod.node == node}
    rest = replace(words, services=(), node_ports=(), namespaces=words.namespaces if words.labels else ())
    if has_api and rest.has_either_end and node_choice.has_local_pods(rest, local, view):
        by_name = words
    if by_name == words:
        return options
    chosen = {
        name: getattr(by_name, name) for name in Selectors.__dataclass_fields__ if name not in ("sources", "destinations")
    }
    adapted = options | chosen
    for name in ("sources", "destinations"):
        named = getattr(words, name)
        if named and not has_api:
            adapted[name] = node_choice.directed_addresses(words, name, view)
    if not by_name.has_either_end and words.has_either_end:
        adapted["hosts"] = (*options.get("hosts", ()), *node_choice.addresses_of(words, view))
        adapted["ports"] = (*options.get("ports", ()), *(str(p) for p in (*words.node_ports, *words.host_ports)))
    if not has_api:
        adapted["no_kube"] = True
    return adapted


def _require_traced(totals: ClusterTotals) -> None:
    """Raises NoAgent if no node was traced."""
    if not totals.traced:
        raise NoAgent(f"No node was traced: {_listed([f'{node}: {why}' for node, why in totals.failed.items()], '; ')}.")


MOST_LISTED = 5


def _listed(names: Sequence[str], between: str = ", ") -> str:
    shown = [name.removesuffix(".") for name in names[:MOST_LISTED]]
    more = len(names) - len(shown)
    return between.join(shown) + (f" and {more} more" if more else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def require_no_program(cmd: Sequence[str]) -> None:
    """Raises BadOption: a program runs on one machine only."""
    if cmd:
        raise BadOption("kubectl k8snet-trace runs no command after `--`: run it elsewhere, and stop the trace with Ctrl-C.")
