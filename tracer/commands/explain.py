# SPDX-License-Identifier: Apache-2.0
"""The command `k8snet-trace explain`: predicts the path of a packet; with --live, compares it with traced packets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tracer import render
from tracer.commands.start_notes import StartNotes
from tracer.errors import BadOption
from tracer.findings import no_policy_allows
from tracer.findings.context import FindingContext
from tracer.kernel.session import Announcements, Kernel, Session
from tracer.kube.attribution import attribute_path
from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.model.filter import Filter, parse_host
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.prediction import PredictedPath
from tracer.model.prediction_check import PredictionCheck
from tracer.model.summary import RunSummary
from tracer.node.capabilities import BITS, give_up, require_root, require_tracing
from tracer.node.nfnetlink import nft_loaded
from tracer.pipeline import builder
from tracer.pipeline.builder import RunOptions
from tracer.pipeline.child import end, start, write_ready
from tracer.pipeline.live_environment import LiveEnvironment
from tracer.pipeline.shutdown import StopSignals
from tracer.pipeline.source import RunLimits
from tracer.predict.compare import compare
from tracer.predict.other_datapaths import OtherDatapaths, with_other_datapaths
from tracer.predict.path import PathPredictor
from tracer.predict.query import PathQuery
from tracer.render.base import LostEvents, Output
from tracer.rules import inventory
from tracer.rules.iptables.assemble import UnknownOption
from tracer.rules.rule_path import TooManyPaths

UNREAD_RULES_CONDITION = "no rule that could not be read acts on it"
"""The condition of each predicted path when rules could not be read."""


@dataclass(frozen=True)
class LiveComparison:
    """The options of --live.

    Attributes:
        seconds: Duration of the trace, s; 0 = until Ctrl-C or the end of the command.
        ready_file: Path that is written when the probes are attached; "" = none.
        command: The program to run and its arguments; empty = none.
    """

    seconds: float = 0
    ready_file: str = ""
    command: tuple[str, ...] = ()


def run(query: PathQuery, form: str, verbose: bool, source: ObjectSource, live: LiveComparison | None) -> int:
    """The command `k8snet-trace explain`; returns its exit status. Raises TraceError."""
    (require_tracing if live else require_root)()
    with OwnerResolver(source, Selectors(), Filter()) as kube:
        output = render.find(form)(verbose=verbose)
        kube.settle()
        for note in kube.notes():
            output.note(note)
        paths, unread = predict_paths(query, kube, output.note)
        for why in unread:
            output.note(f"not read: {why}")
        output.explained(paths)
        return compare_live(query, paths, kube, output, live) if live else 11 if unread else 0


def predict_paths(
    query: PathQuery, kube: OwnerResolver, notes: Callable[[str], None] = lambda note: None
) -> tuple[list[PredictedPath], Sequence[str]]:
    """Predicts the paths of a packet.

    Args:
        query: The packet.
        kube: Gives the owners.
        notes: Called with each note of the reading.

    Returns:
        The predicted paths with owners, and the rules that could not be read, a clause each.

    Raises:
        BadOption: The rules cannot be computed.
    """
    rules = inventory.read(nft_loaded())
    predictor = PathPredictor(rules)
    try:
        paths = predictor.predict(query)
    except UnknownOption as e:
        raise BadOption(f"The rules cannot be computed: {e}.") from e
    except TooManyPaths as e:
        raise BadOption(f"The rules allow too many possible paths: {e}.") from e
    for note in rules.notes:
        notes(note)
    if rules.unread:
        paths = [replace(predicted, conditions=(*predicted.conditions, UNREAD_RULES_CONDITION)) for predicted in paths]
    others, cluster = OtherDatapaths.of_machine(predictor.routes.links()), kube.cluster
    found = [with_policies(attribute_path(predicted, cluster), cluster) for predicted in paths]
    return [with_other_datapaths(predicted, others, cluster) for predicted in found], rules.unread


def with_policies(predicted: PredictedPath, cluster: ClusterView) -> PredictedPath:
    """Adds what each NetworkPolicy would have needed, to a path on which none allows the packet. The path has its owners."""
    found = no_policy_allows.find(predicted.packet, FindingContext(cluster))
    reasons = tuple(proof.text for proof in found.proofs if proof.what == "object") if found else ()
    return replace(predicted, notes=(*predicted.notes, *reasons))


def compare_live(
    query: PathQuery, predicted_paths: list[PredictedPath], kube: OwnerResolver, output: Output, live: LiveComparison
) -> int:
    """Traces packets until Ctrl-C, the limit or the end of the command, and compares them; returns the exit status."""
    with StartNotes() as notes:
        return _compare_live(query, predicted_paths, kube, output, live, notes)


def _compare_live(
    query: PathQuery,
    predicted_paths: list[PredictedPath],
    kube: OwnerResolver,
    output: Output,
    live: LiveComparison,
    notes: StartNotes,
) -> int:
    notes.report("reading the kernel's types")
    kernel = Kernel.running()
    ports = (query.dport,) if query.dport else ()
    packet_filter = Filter(ports=ports, hosts=(parse_host(query.dst),), protocol=query.number)
    comparison = ComparisonOutput(query, predicted_paths, output)
    with ExitStack() as stack:
        give_up(tuple(BITS))
        announcements = Announcements(notes.report, notes.warn)
        session = stack.enter_context(Session(kernel, packet_filter, True, announcements=announcements))
        give_up()
        environment = LiveEnvironment()
        environment.attach(kernel, session)
        options = RunOptions(RunLimits(seconds=live.seconds), is_judged=False)
        trace_run = builder.build(environment, kube, comparison, options, stack).run
        trace_run.begin()
        notes.ready()
        command = None
        try:
            with StopSignals() as stop:
                output.note("Tracing: send the packet now. Press Ctrl-C to stop.")
                if live.ready_file:
                    write_ready(live.ready_file, os.getpid())
                command = start(live.command) if live.command else None
                trace_run.run(stop, command)
        finally:
            end(command)
    if not comparison.checks:
        output.note("No first packet of such a connection was traced.")
        return 11 if trace_run.summary.lost else 12
    return 10 if any(c.difference for c in comparison.checks) else 0


MAX_CHECKS = 1000
"""Maximum number of comparisons that are kept; one with a difference is kept beyond it."""


class ComparisonOutput(Output):
    """Passes the packets that match the query to another output, each with its comparison.

    Attributes:
        checks: The first comparisons, and one with a difference if there was any.
    """

    def __init__(self, query: PathQuery, predicted_paths: list[PredictedPath], output: Output) -> None:
        super().__init__(output.out, output.err, output.verbose)
        self._query, self._predicted_paths, self._output = query, predicted_paths, output
        self.checks: list[PredictionCheck] = []

    def packet(self, packet: Packet) -> None:
        if is_first_packet_of(packet, self._query):
            check = compare(self._predicted_paths, packet)
            if len(self.checks) < MAX_CHECKS or (check.difference and not any(each.difference for each in self.checks)):
                self.checks.append(check)
            self._output.compared(packet, check)

    def lost(self, loss: LostEvents) -> None:
        self._output.lost(loss)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        pass

    def finding(self, finding: Finding) -> None:
        pass

    def summary(self, summary: RunSummary) -> None:
        pass

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        pass


def is_first_packet_of(packet: Packet, query: PathQuery) -> bool:
    """Whether a packet is the first one of a connection that matches the query. An incomplete packet never matches."""
    ends, flow = packet.endpoints, packet.flow
    same = (ends.src, ends.dst, ends.dport) == (query.src, query.dst, query.dport)
    first = packet.tcp_flags in ("SYN", "") and not (flow and (flow.is_reply or flow.state == "ESTABLISHED"))
    return same and first and packet.complete and query.sport in (0, ends.sport)
