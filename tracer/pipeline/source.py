# SPDX-License-Identifier: Apache-2.0
"""Where a run's inputs come from: the machine as it is now, or a capture of it.

A turn is one look at what has happened. Whatever depends on the moment comes in with a turn, or as the answer to a question
that is asked while a turn's packets are explained. So whoever keeps the turns and the answers can do the run again.
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
    """now: ns, CLOCK_MONOTONIC, taken before the drain. batch: of `struct event`. losses: since the turn before.

    last: no turn follows, so every packet that is open is over. explained: of a recorded turn, how many parcels of packets its
    run had explained when it ended; None = all.
    """

    now: int
    events: npt.NDArray[Any]
    losses: Sequence[Loss] = ()
    last: bool = False
    explained: int | None = None


class EventSource(Protocol):
    """What a run asks for its next turn, and for what the user should be told after it.

    glance: called often while packets are explained, which may take long: a source that counts losses notes when they were.
    to: the filter that the probes are to have from now on. left: explaining has ended, and so many parcels of this turn are
    explained. renewals: filters that the probes have got since the turn before. unasked: whether explaining the last parcel
    asked what the recorded run never asked, so that it had ended before.
    """

    def read(self, last: bool) -> Batch: ...
    def notes(self) -> list[str]: ...
    def poll_losses(self) -> None: ...
    def set_filter(self, to: Filter) -> None: ...
    def mark_unexplained(self, chunks: int) -> None: ...
    def was_unexplained(self) -> bool: ...
    def renewals(self) -> list[RenewedFilter]: ...
