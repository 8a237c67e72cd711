# SPDX-License-Identifier: Apache-2.0
"""The inputs of a run: from the live machine or from a capture.

A batch holds the events that one read of the ring buffer returns. Every input that depends on the time comes with a batch, or
as the answer to a question that is asked while the packets of a batch are explained. So the recorded batches and answers are
enough to repeat the run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tracer.events.record import EventArray
from tracer.model.loss import Loss
from tracer.pipeline.shutdown import StopRequest

if TYPE_CHECKING:
    from tracer.kube.filter_renewal import RenewedFilter
    from tracer.model.filter import Filter


@dataclass(frozen=True)
class Batch:
    """Events of one read of the ring buffer.

    Attributes:
        now: ns, CLOCK_MONOTONIC, taken before the ring is drained.
        events: array of `struct event`.
        losses: losses since the previous batch.
        last: no batch follows, so every open packet is closed.
        is_uniform: for a recorded batch: each question to the machine has one answer throughout the batch.
        explained: for a recorded batch: how many chunks of packets its run had explained when it ended; None = all.
    """

    now: int
    events: EventArray
    losses: Sequence[Loss] = ()
    last: bool = False
    explained: int | None = None
    is_uniform: bool = True


@dataclass(frozen=True)
class RunLimits:
    """When a run ends by itself.

    Attributes:
        count: number of printed packets; 0 = no limit.
        seconds: duration; 0 = no limit.
        stops_at_count: no further batch is read at that number of packets; False: the rest of a capture is read, but not
            printed, as in the run that recorded it.
    """

    count: int = 0
    seconds: float = 0
    stops_at_count: bool = True


class RunProgress(Protocol):
    """What a source needs to know about the run that reads it.

    Attributes:
        limits: when the run ends by itself.
        stop: request to end.
        command: the traced command; None = none.
    """

    @property
    def limits(self) -> RunLimits: ...
    @property
    def stop(self) -> StopRequest: ...
    @property
    def command(self) -> subprocess.Popen[bytes] | None: ...

    @property
    def is_limit_reached(self) -> bool:
        """Whether the run has printed as many packets as it should."""

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that open packets have passed are being read."""


class EventSource(Protocol):
    """Gives a run its batches, and messages for the user.

    Attributes:
        explains_backlog: packets that the run left unexplained are printed after it.
        seconds: duration of the run; valid after the last batch.
    """

    explains_backlog: bool
    seconds: float

    def batches(self, run: RunProgress) -> Generator[Batch, None, None]:
        """Yields batches until the run should end; the last one has `last` set.

        While a batch is processed, the Kubernetes objects do not change: all its packets are explained by the same objects.
        """

    def notes(self) -> list[str]:
        """Messages for the user since the previous call."""

    def poll_losses(self) -> None:
        """Called often while packets are explained, which may take long. A source that counts losses notes their time."""

    def set_filter(self, new_filter: Filter) -> None:
        """The filter of the probes from now on."""

    def mark_unexplained(self, chunks: int) -> None:
        """Explaining has ended. chunks: number of chunks of this batch that are explained."""

    def was_unexplained(self) -> bool:
        """Whether explaining the last chunk needed an answer that the recorded run never requested: it had ended before."""

    def renewals(self) -> list[RenewedFilter]:
        """Filters that the probes have received since the previous batch."""
