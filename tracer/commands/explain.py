# SPDX-License-Identifier: Apache-2.0
"""The command `k8snet-trace explain`: tells the way of a packet; with --live, compares it with what packets really meet."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tracer import render
from tracer.errors import BadOption
from tracer.kernel.session import Kernel, Session
from tracer.kube.attribution import attribute
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
from tracer.node.namespaces import Namespaces, tracking
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.pipeline import live_source
from tracer.pipeline.child import end, start, write_ready
from tracer.pipeline.environment import Environment
from tracer.pipeline.run import Run, RunLimits
from tracer.pipeline.shutdown import StopSignals
from tracer.pipeline.wiring import rules_of
from tracer.predict.compare import compare
from tracer.predict.path import PathPredictor
from tracer.predict.query import PathQuery
from tracer.render.base import LostEvents, Output
from tracer.rules import inventory
from tracer.rules.backends import nft_loaded
from tracer.rules.iptables.assemble import UnknownOption
from tracer.rules.rule_path import TooManyPaths

UNREAD = "no rule that could not be read acts on it"
"""A doubt of each story when rules could not be read."""


@dataclass(frozen=True)
class LiveComparison:
    """What --live was asked for. seconds: 0 = until told to stop, or until the command has ended."""

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
        stories, unread = tell(query, kube)
        for why in unread:
            output.note(f"not looked at: {why}")
        output.explained(stories)
        return watch(query, stories, kube, output, live) if live else 11 if unread else 0


def tell(query: PathQuery, kube: OwnerResolver) -> tuple[list[PredictedPath], Sequence[str]]:
    """The stories with their owners, and what could not be read. Raises BadOption where the rules cannot be computed."""
    rules = inventory.read(nft_loaded())
    try:
        stories = PathPredictor(rules).predict(query)
    except UnknownOption as e:
        raise BadOption(f"The rules cannot be computed: {e}.") from e
    except TooManyPaths as e:
        raise BadOption(f"The rules leave too many ways open to tell them: {e}.") from e
    if rules.unread:
        stories = [replace(predicted, conditions=(*predicted.conditions, UNREAD)) for predicted in stories]
    for predicted in stories:
        attribute(predicted.packet, kube.cluster)
    return stories, rules.unread


def watch(
    query: PathQuery, predicted_paths: list[PredictedPath], kube: OwnerResolver, output: Output, live: LiveComparison
) -> int:
    """Traces what is sent until told to stop, and compares; returns the exit status."""
    kernel = Kernel.running()
    ports = (query.dport,) if query.dport else ()
    wanted = Filter(ports=ports, hosts=(parse_host(query.dst),), protocol=query.number)
    beside = PredictionOutput(query, predicted_paths, output)
    with ExitStack() as stack:
        give_up(tuple(BITS))
        session = stack.enter_context(Session(kernel, wanted, True))
        give_up()
        spaces = Namespaces()
        hops = HopBuilder(spaces, Processes(), kernel.drop_reasons(), kernel.symbols.containing)
        rules = rules_of(session, spaces, stack, Environment())
        assembler = PacketAssembler(hops, time.time_ns() - time.monotonic_ns(), tracking(), rules=rules)
        traced = Run(live_source.LiveSource(session, kube), assembler, beside, RunLimits(0, live.seconds), kube)
        stop, command = StopSignals(), None
        output.note("Watching: send the packet now. Ctrl-C ends it.")
        if live.ready_file:
            write_ready(live.ready_file, os.getpid())
        try:
            command = start(live.command) if live.command else None
            traced.trace(stop, command)
        finally:
            stop.restore()
            end(command)
    if not beside.told:
        output.note("No first packet of such a connection was seen.")
        return 11 if traced.summary.lost else 12
    return 10 if any(c.difference for c in beside.told) else 0


class PredictionOutput(Output):
    """Takes the packets of a run, and gives an output those that were asked about, beside what was told of them."""

    def __init__(self, query: PathQuery, predicted_paths: list[PredictedPath], output: Output) -> None:
        super().__init__(output.out, output.err, output.verbose)
        self._question, self._predicted_paths, self._output = query, predicted_paths, output
        self.told: list[PredictionCheck] = []

    def packet(self, packet: Packet) -> None:
        if asked(packet, self._question):
            told = compare(self._predicted_paths, packet)
            self.told.append(told)
            self._output.compared(packet, told)

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


def asked(packet: Packet, query: PathQuery) -> bool:
    """Whether it is the first packet of a connection that was asked about; nothing is compared with one that lost a part."""
    ends, flow = packet.endpoints, packet.flow
    same = (ends.src, ends.dst, ends.dport) == (query.src, query.dst, query.dport)
    first = packet.tcp_flags in ("SYN", "") and not (flow and (flow.is_reply or flow.state == "ESTABLISHED"))
    return same and first and packet.complete and query.sport in (0, ends.sport)
