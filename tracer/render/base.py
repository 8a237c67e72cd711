# SPDX-License-Identifier: Apache-2.0
"""What every output format does."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from tracer.errors import NO_ROOM
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.util.visible import finished

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath
    from tracer.model.prediction_check import PredictionCheck


class LostEvents(Protocol):
    """`count` events of a probe that were lost. cpu -1: not known by CPU. why: a clause, "the ring buffer was full"."""

    @property
    def probe(self) -> str: ...
    @property
    def cpu(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def why(self) -> str: ...


class Output(ABC):
    """Writes a run, in this order: begin, any number of packet, finding, lost and note, then summary. Or doctor, alone.

    Results go to `out`, and each is flushed: whoever reads a pipe sees a packet when it ends. Talk goes to `err`.
    Errors of writing, a broken pipe among them, reach the caller; but when the run is recorded, a disk without room for its
    results does not end it.
    """

    recorded = False
    """Whether the run is recorded, too."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, verbose: bool = False) -> None:
        """out, err: this process's own if not given. verbose: show every hop, not only those that decided something."""
        self.out, self.err, self.verbose = out or sys.stdout, err or sys.stderr, verbose
        self.lost_by_probe: Counter[str] = Counter()

    @abstractmethod
    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        """A run begins. options_text: as on the command line. release: of the traced kernel, "" = the running one."""

    @abstractmethod
    def packet(self, packet: Packet) -> None:
        """A packet's journey has ended."""

    def lost(self, loss: LostEvents) -> None:
        """Events were lost. Counted here for the summary; formats say it as well."""
        self.lost_by_probe[loss.probe] += loss.count

    @abstractmethod
    def finding(self, finding: Finding) -> None:
        """Something is wrong, for certain. Comes once for each cause, right after the packet that made it certain."""

    def syn(self, verdict: HandshakeVerdict) -> None:
        """A SYN has its verdict: one line. A format may leave it out."""
        return

    def timeline(self, timeline: Timeline) -> None:
        """A connection's timeline, instead of its packets. A format may leave it out.

        Steps before timeline.told have been written before.
        """
        return

    @abstractmethod
    def summary(self, summary: RunSummary) -> None:
        """A run has ended."""

    @abstractmethod
    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """What works on this machine. status: what the command will exit with."""

    def audit(self, findings: Sequence[Finding], checks: Sequence[str], unread: Sequence[str], status: int) -> None:
        """What an audit found, alone. checks: the names of those made. unread: what could not be looked at, a clause each."""
        for finding in findings:
            self.finding(finding)

    def explained(self, predicted_paths: Sequence[PredictedPath]) -> None:
        """What would happen to a packet: all ways that it may go, the likeliest first."""
        for predicted in predicted_paths:
            self.packet(predicted.packet)

    def compared(self, packet: Packet, compared: PredictionCheck) -> None:
        """A packet that was traced beside what was told of it."""
        self.packet(packet)

    def note(self, text: str) -> None:
        """One line for the user; never part of the results. Without room on the disk it comes with a later one."""
        try:
            self.err.write(finished(text) + "\n")
            self.err.flush()
        except OSError as e:
            if e.errno not in NO_ROOM:
                raise

    def put(self, *lines: str) -> None:
        """Writes results: lines, each of which stays one whatever is in it."""
        try:
            self.out.write("".join(f"{finished(line)}\n" for line in lines))
            self.out.flush()
        except OSError as e:
            if not self.recorded or e.errno not in NO_ROOM:
                raise
            hang_up(self.out)
            self.note(f"Nothing is printed from here on: {e.strerror}. The recording goes on.")


def hang_up(out: TextIO) -> None:
    """Nobody takes what is written any more: it goes nowhere, and Python must not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
