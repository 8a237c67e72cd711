# SPDX-License-Identifier: Apache-2.0
"""The option `-r FILE` with captures of several nodes: they are explained at the same time, and joined as in a live run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracer.capture.replay.capture_reader import CaptureReader
from tracer.cluster.cluster_run import ClusterRun, NodeCommand
from tracer.cluster.cluster_totals import ClusterTotals
from tracer.cluster.filter_coverage import FilterCoverage
from tracer.cluster.join_horizon import RecordedHorizon
from tracer.cluster.recorded_node import RecordedNodes
from tracer.cluster_findings import ClusterFindings
from tracer.cluster_findings.cluster_context import ClusterContext
from tracer.commands.cluster import node_arguments, result_arguments
from tracer.errors import BadOption, DamagedCapture
from tracer.joining.packet_joiner import PacketJoiner
from tracer.joining.traced_nodes import END_OF_TIME, TracedNodes
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.pipeline import sinks
from tracer.pipeline.shutdown import StopRequest, reading
from tracer.render.base import Output

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tracer.cli.main import main; main()"
"""This program, in a process of its own: -I keeps Python from importing modules of the current directory."""


def by_node(paths: Sequence[str]) -> dict[str, list[str]]:
    """The captures of each node, by the name of the machine that was traced.

    Raises:
        CaptureUnreadable, NewerCapture: One of them is no capture that can be read.
        BadOption: One machine has two names, as in a run in a container and one outside. Its packets would be joined with
            themselves.
    """
    found: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for path in paths:
        with CaptureReader(path) as capture:
            name, boot = capture.host.get("name", ""), capture.host.get("boot", "")
        if boot and names.setdefault(boot, name) != name:
            raise BadOption(f"{names[boot]} and {name} are one machine, traced under two names: read its captures one by one.")
        found.setdefault(name, []).append(path)
    return found


def read(captures: Mapping[str, Sequence[str]], options: dict[str, Any]) -> int:
    """Prints the packets of all nodes as one stream. Returns the exit status.

    Args:
        captures: The captures of each node.
        options: Those of `trace`.

    Raises:
        DamagedCapture: Not all captures could be read to their ends.
        BadOption: Captures of one node are not of one run.
    """
    outputs = sinks.opened(options["outputs"], options["verbose"], waits=True)
    with reading(files(captures)) as stop, outputs as output:
        totals = replayed(captures, result_arguments(options, options["outputs"]), options, output, stop)
        output.summary(totals.summary)
    require_whole(totals)
    return 0


def files(captures: Mapping[str, Sequence[str]]) -> list[str]:
    """The names of all files."""
    return [path for paths in captures.values() for path in paths]


def replayed(
    captures: Mapping[str, Sequence[str]], results: Sequence[str], options: dict[str, Any], output: Output, stop: StopRequest
) -> ClusterTotals:
    """Reads captures of several nodes into an output, without its summary.

    Args:
        captures: The captures of each node.
        results: The options of `agent` for what is shown.
        options: Those of `trace`.
        output: Where results are written.
        stop: Request to end.

    Raises:
        BadOption: Captures of one node are not of one run.
    """
    words, recorded = (*results, *node_arguments(options)), RecordedNodes.read(captures)
    commands = [NodeCommand(node, _command(captures[node], words), each.clock) for node, each in recorded.nodes.items()]
    horizon, findings = RecordedHorizon(captures), _findings(recorded, options)
    return ClusterRun(commands, output, PacketJoiner(), options.get("count", 0), None, horizon, findings).run(stop)


def _findings(recorded: RecordedNodes, options: Mapping[str, Any]) -> ClusterFindings:
    """What looks at the packets of all nodes together.

    A packet is expected on a node if both the recorded run and these options select it there, and the capture lacks nothing.
    """
    asked = FilterCoverage.of(options, ClusterView(recorded.store))
    nodes = TracedNodes(recorded.store)
    for name, each in recorded.nodes.items():
        if not each.is_whole:
            nodes.note_loss(name, 0, END_OF_TIME)

    def covers(node: str, packet: Packet, ends: Endpoints) -> bool:
        return recorded.nodes[node].covers(node, packet, ends) and asked(node, packet, ends)

    is_by_name = asked.is_by_name or any(each.covers.is_by_name for each in recorded.nodes.values())
    return ClusterFindings(ClusterContext(nodes, covers, is_by_name))


def require_whole(totals: ClusterTotals) -> None:
    """Raises DamagedCapture if not all captures were read to their ends."""
    if totals.failed:
        reasons = "; ".join(f"{node}: {why}" for node, why in totals.failed.items())
        raise DamagedCapture(f"Not all captures could be read; what could be is above. {reasons}.")


def _command(paths: Sequence[str], words: Sequence[str]) -> list[str]:
    files = [word for path in paths for word in ("-r", path)]
    return [sys.executable, "-I", "-c", PROGRAM, str(ROOT), "agent", "--stdio", *files, *words]
