# SPDX-License-Identifier: Apache-2.0
"""The interface of all output formats."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from tracer.errors import NO_ROOM
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.time_form import TimeForm
from tracer.model.timeline import Timeline
from tracer.packets.shared_packet import SharedPacket
from tracer.util.escape import escaped_line
from tracer.util.line_folding import folded, terminal_columns

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath
    from tracer.model.prediction_check import PredictionCheck


FLUSH_SECONDS = 0.02
"""Longest time that results of a batch wait in the buffer of their stream, as long as others follow, s."""


class LostEvents(Protocol):
    """Lost events of a probe.

    Attributes:
        cpu: The CPU; -1 = not known by CPU.
        count: Number of events.
        why: A clause, such as "the ring buffer was full".
    """

    @property
    def probe(self) -> str: ...
    @property
    def cpu(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def why(self) -> str: ...


class Output(ABC):
    """Writes a run.

    The order of calls is: begin, any number of packet, finding, lost and note, in batches, then summary. `doctor` is called
    alone.

    Results go to `out`, and are flushed at the end of their batch, and before that after FLUSH_SECONDS, so that the reader of a
    pipe sees a packet soon after it is closed. Notes go to `err`. Write errors, such as a broken pipe, reach the caller.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        verbose: bool = False,
        times: TimeForm = TimeForm.LOCAL,
    ) -> None:
        """Sets the streams.

        Args:
            out: Stream for results; None = standard output.
            err: Stream for notes; None = standard error.
            verbose: Show every hop, not only those that decided something.
            times: How a format for people shows the times of packets. Machine formats have their own.
        """
        self.out, self.err, self.verbose = out or sys.stdout, err or sys.stderr, verbose
        self.times, self.node, self.has_nodes = times, "", False
        self.lost_by_probe: Counter[str] = Counter()
        self._flush_at = 0.0

    def __init_subclass__(cls) -> None:
        """A format with its own `packet` and without its own `repeat` gets all packets whole, whatever it inherits."""
        super().__init_subclass__()
        if "packet" in cls.__dict__ and "repeat" not in cls.__dict__:
            cls.repeat = Output.repeat  # type: ignore[method-assign]

    def outputs(self) -> Iterator[Output]:
        """The outputs that write: itself, or those that it passes its calls to."""
        yield self

    def for_node(self, node: str) -> Output:
        """An output to the same streams that writes the name of a node with each result, for a run on several nodes."""
        other = type(self)(self.out, self.err, self.verbose, self.times)
        other.node, self.has_nodes = node, True
        return other

    def _marked(self, line: str) -> str:
        """A line of results with the node's name, if there is one."""
        return f"{escaped_line(self.node)}  {line}" if self.node and line else line

    @property
    def shows_all_results(self) -> bool:
        """Whether `begin` needs all results of `doctor`."""
        return self.verbose

    @abstractmethod
    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        """A run begins.

        Args:
            results: What this run cannot show, or all results of `doctor` (verbose, JSON).
            options_text: The options as on the command line.
            release: Release of the traced kernel; "" = the running one.
        """

    def set_clock(self, offset: int) -> None:
        """The clock of the run's packets. offset: ns to add to CLOCK_MONOTONIC to get their times. Optional for a format."""
        return

    def set_node_clock(self, offset: int) -> None:
        """The clock of the node of this output. A format for people shows all nodes' times in one clock; optional for a format.

        offset: What is added to the node's times to get times of the reference clock, ns.
        """
        return

    @abstractmethod
    def packet(self, packet: Packet) -> None:
        """A packet is closed."""

    def repeat(self, packet: SharedPacket) -> None:
        """A packet on the path of an earlier one is closed. A format that knows its path need not make it whole."""
        self.packet(packet.packet())

    def joined(self, joined: JoinedPacket) -> None:
        """A packet that several nodes saw, or of which the way to other nodes is not certain."""
        for view in joined.views:
            self.for_node(view.node).packet(view.packet)

    def lost(self, loss: LostEvents) -> None:
        """Events were lost. Counts them for the summary; a format also writes them."""
        self.lost_by_probe[loss.probe] += loss.count

    def not_sent(self, frames: Mapping[str, int]) -> None:
        """The node of this output did not send results, because the client was too slow. Optional for a format.

        frames: Their number by kind: packet, finding, verdict ...
        """
        return

    @abstractmethod
    def finding(self, finding: Finding) -> None:
        """A finding is certain. Called once per cause, right after the packet that made it certain."""

    def finding_again(self, finding: Finding) -> None:
        """One more packet shows a finding that was given before. Optional for a format. finding: with that packet counted."""
        return

    def syn(self, verdict: HandshakeVerdict) -> None:
        """A SYN has its verdict: one line. Optional for a format."""
        return

    def timeline(self, timeline: Timeline) -> None:
        """A connection's timeline, instead of its packets. Optional for a format.

        The first `timeline.printed` entries were written before.
        """
        return

    def connection(self, timeline: Timeline) -> None:
        """The totals of a connection that is over, beside its packets. Optional for a format. The timeline has no entries."""
        return

    def begin_batch(self) -> None:
        """The results of a batch follow; `end_batch` will be called. Optional for a format, which calls this one, too."""
        self._flush_at = time.monotonic() + FLUSH_SECONDS

    def settled(self, until: int) -> None:
        """All packets up to this time have been given, ns, CLOCK_MONOTONIC: the time of the batch, or less while rules are
        read. Optional for a format."""
        return

    def end_batch(self, now: int) -> None:
        """All results of a batch have been given. Optional for a format, which calls this one, too.

        Args:
            now: Time of the batch, ns, CLOCK_MONOTONIC.
        """
        self._flush_at = 0.0
        self.out.flush()

    @abstractmethod
    def summary(self, summary: RunSummary) -> None:
        """A run has ended."""

    def node_summary(self, summary: RunSummary) -> None:
        """The run on this output's node has ended. Those on other nodes, and the summary of all, may follow. Optional."""
        return

    @abstractmethod
    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """The results of `doctor`. status: the exit status of the command."""

    def audit(
        self,
        findings: Sequence[Finding],
        checks: Sequence[str],
        unread: Sequence[str],
        status: int,
        limits: Sequence[tuple[str, str]] = (),
    ) -> None:
        """The findings of an audit.

        Args:
            findings: The findings.
            checks: The names of the checks that ran.
            unread: What could not be read, a clause each.
            status: The exit status of the command.
            limits: What a check could not look at: its name, and why, a clause.
        """
        for finding in findings:
            self.finding(finding)

    def explained(self, predicted_paths: Sequence[PredictedPath]) -> None:
        """The predicted paths of a packet, the most likely one first."""
        for predicted in predicted_paths:
            self.packet(predicted.packet)

    def compared(self, packet: Packet, compared: PredictionCheck) -> None:
        """A traced packet and its comparison with the prediction."""
        self.packet(packet)

    def note(self, text: str) -> None:
        """Writes one line for the user, which is not part of the results; a terminal gets it folded at blanks.

        On a full disk it is written with a later line. Results that were given before are written before it.
        """
        if self._flush_at:
            self.out.flush()
        try:
            text = f"{self.node}: {text}" if self.node else text
            self.err.write(escaped_line(folded(text, terminal_columns(self.err), 2)) + "\n")
            self.err.flush()
        except OSError as e:
            if e.errno not in NO_ROOM:
                raise

    def note_limits(self, results: Sequence[CheckResult]) -> None:
        """Writes what this run cannot show, a line each."""
        for result in results:
            if result.state != "ok":
                self.note(f"{result.subject}: {result.text}")

    def note_finding(self, finding: Finding) -> None:
        """Writes a finding in one line, for outputs that show it nowhere else."""
        self.note(f"Finding {finding.name}: {finding.cause}")

    def put_escaped(self, line: str) -> None:
        """Writes one line of results in which nothing has to be escaped any more."""
        self.out.write(f"{self._marked(line) if self.node else line}\n")
        self._flush_when_due()

    def put(self, *lines: str) -> None:
        """Writes lines of results. Each one stays a single line, whatever characters it contains."""
        written = [escaped_line(line) for line in lines]
        written[:1] = map(self._marked, written[:1])
        self.out.write("".join(f"{line}\n" for line in written))
        self._flush_when_due()

    def _flush_when_due(self) -> None:
        """Flushes results, in a batch at most every FLUSH_SECONDS: a system call for each line takes longer than the line."""
        now = time.monotonic()
        if now >= self._flush_at:
            self.out.flush()
            if self._flush_at:
                self._flush_at = now + FLUSH_SECONDS


def hang_up(out: TextIO) -> None:
    """Redirects a stream without a reader to /dev/null, so that Python does not write to it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
