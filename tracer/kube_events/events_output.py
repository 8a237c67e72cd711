# SPDX-License-Identifier: Apache-2.0
"""The output of an agent that reports findings as Events of Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from tracer.errors import NoObjects
from tracer.kube import kubeconfig
from tracer.kube.api_client import ApiClient
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube_events.event_counts import EventCounts
from tracer.kube_events.event_sender import EventSender
from tracer.kube_events.waiting_findings import WaitingFindings
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.shared_packet import SharedPacket
from tracer.pipeline.sending_thread import SendingThread
from tracer.render.base import LostEvents, Output

POLL_SECONDS = 0.5
"""Interval at which the thread looks for findings, s."""
END_SECONDS = 2.0
"""Longest time that the end of a run waits for the API, s."""


def event_access(path: str | None) -> ApiAccess:
    """The access to the API. path: a kubeconfig; None = the usual places. Raises NoObjects."""
    access = kubeconfig.find(path)
    if not access:
        raise NoObjects("--events needs the Kubernetes API: give --kubeconfig FILE, or run the agent in a pod with an account.")
    return access


class EventsOutput(Output):
    """Gives findings to a thread of its own, and never waits for it but at the end.

    Args:
        access: The access to the API.
        node: Name of this node.
        counts: What became of the Events.
        err: Stream for notes; None = standard error.
        clock: Gives a monotonic time, s.
        end_seconds: Longest time that the end waits for the API, s.
    """

    def __init__(
        self,
        access: ApiAccess,
        node: str,
        counts: EventCounts,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        end_seconds: float = END_SECONDS,
    ) -> None:
        super().__init__(err=err)
        self._clock, self._end_seconds = clock, end_seconds
        self._client = ApiClient(access)
        self._sender = EventSender(self._client, access, node, counts, clock())
        self._waiting = WaitingFindings(counts)
        self._thread = SendingThread("Kubernetes Events", self._step, POLL_SECONDS)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self._thread.start()

    def _step(self, is_over: bool) -> bool:
        """Sends what is there; returns whether nothing is left."""
        for waiting in self._waiting.read():
            self._sender.take(waiting, self._clock())
        if is_over and not self._sender.is_ending:
            self._sender.end()
        return self._sender.step(self._clock())

    def packet(self, packet: Packet) -> None:
        """Events are about findings."""

    def repeat(self, packet: SharedPacket) -> None:
        """As `packet`."""

    def lost(self, loss: LostEvents) -> None:
        """As `packet`."""

    def finding(self, finding: Finding) -> None:
        self._waiting.add(finding, finding.last or time.time_ns())
        self._thread.wake()

    def finding_again(self, finding: Finding) -> None:
        self._waiting.add(finding, finding.last or time.time_ns(), is_new=False)

    def end_batch(self, now: int) -> None:
        for note in self._sender.notes():
            self.note(note)

    def summary(self, summary: RunSummary) -> None:
        self._thread.end(self._end_seconds, self._client.interrupt)
        for waiting in self._waiting.read():
            self._sender.take(waiting, self._clock())
        self.end_batch(0)
        if missing := self._sender.give_up():
            self.note(f"{missing} Events about findings are missing or not up to date: the run has ended.")

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """An agent runs no `doctor`."""
