# SPDX-License-Identifier: Apache-2.0
"""The inputs of a run: from the live machine or from a capture.

A batch holds the events that one read of the ring buffer returns. Every input that depends on the time comes with a batch, or
as the answer to a question that is asked while the packets of a batch are explained. So the recorded batches and answers are
enough to repeat the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from tracer.model.loss import Loss

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
        explained: for a recorded batch: how many chunks of packets its run had explained when it ended; None = all.
    """

    now: int
    events: npt.NDArray[Any]
    losses: Sequence[Loss] = ()
    last: bool = False
    explained: int | None = None


class EventSource(Protocol):
    """Gives a run its batches, and messages for the user."""

    def read(self, last: bool) -> Batch:
        """The next batch. last: it is the last one."""

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
