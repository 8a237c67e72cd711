# SPDX-License-Identifier: Apache-2.0
"""Where a run's inputs come from: the machine as it is now, or a capture of it.

A turn is one look at what has happened. Whatever depends on the moment comes in with a turn, or as the answer to a question
that is asked while a turn's packets are explained. So whoever keeps the turns and the answers can do the run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy.typing as npt

from tracer.worker import troubles

if TYPE_CHECKING:
    from tracer.filters import Filter
    from tracer.kernel.session import Session
    from tracer.kube.live import Kube
    from tracer.kube.renewal import Renewed

T = TypeVar("T")
U = TypeVar("U")
Question = tuple[Hashable, ...]
"""What is asked of, and what about: ("process", 48213)."""


class NotAsked(LookupError):
    """A capture does not have the answer: its run did not ask. It is no answer, and nothing is shown by it."""


class Asking(Protocol):
    """Gives the answer to a question. ask: has it from the machine. Raises NotAsked where there is none.

    default: the answer that was not written down by programs of before, which kept only answers that differ from it.
    """

    def __call__(self, question: Question, ask: Callable[[], T], default: T) -> T: ...


def live(question: Question, ask: Callable[[], T], default: T) -> T:
    """The machine is asked each time."""
    return ask()


def answered(ask: Callable[[], T], otherwise: U) -> T | U:
    """The answer; `otherwise` where a capture does not have it, which must not be a claim."""
    try:
        return ask()
    except NotAsked:
        return otherwise


LEFT_OUT = "packet"
"""What stands for a probe where whole packets were left out."""
NO_ROOM = "the ring buffer was full"
"""Why an event is lost whose number its packet lacks: the number is taken before there is found to be no room."""


@dataclass(frozen=True)
class Loss:
    """`count` events of a probe lost since the counters were last read, or packets of which not one event was written (probe
    LEFT_OUT). cpu -1 = not known by CPU. since, until: when the counter was read before, and now: it was lost in between; ns,
    CLOCK_MONOTONIC, 0 = not known."""

    probe: str
    cpu: int
    count: int
    why: str
    since: int = 0
    until: int = 0

    @property
    def numbered(self) -> bool:
        """Whether a later event of the same packet shows that this one is missing."""
        return self.why == NO_ROOM


@dataclass(frozen=True)
class Turn:
    """now: ns, CLOCK_MONOTONIC, taken before the drain. batch: of `struct event`. losses: since the turn before.

    last: no turn follows, so every packet that is open is over. explained: of a recorded turn, how many parcels of packets its
    run had explained when it ended; None = all.
    """

    now: int
    batch: npt.NDArray[Any]
    losses: Sequence[Loss] = ()
    last: bool = False
    explained: int | None = None


class Source(Protocol):
    """What a run asks for its next turn, and for what the user should be told after it.

    glance: called often while packets are explained, which may take long: a source that counts losses notes when they were.
    to: the filter that the probes are to have from now on. left: explaining has ended, and so many parcels of this turn are
    explained. renewals: filters that the probes have got since the turn before. unasked: whether explaining the last parcel
    asked what the recorded run never asked, so that it had ended before.
    """

    def turn(self, last: bool) -> Turn: ...
    def notes(self) -> list[str]: ...
    def glance(self) -> None: ...
    def set_filter(self, to: Filter) -> None: ...
    def left(self, parcels: int) -> None: ...
    def unasked(self) -> bool: ...
    def renewals(self) -> list[Renewed]: ...


class Live:
    """The running probes. kube: has something to say now and then."""

    def __init__(self, session: Session, kube: Kube | None = None) -> None:
        self.session, self._kube = session, kube
        if kube:
            kube.attach(self.set_filter)

    def turn(self, last: bool) -> Turn:
        now = time.monotonic_ns()
        batch = self.session.events()
        return Turn(now, batch, self.session.losses(), last)

    def glance(self) -> None:
        self.session.glance()

    def notes(self) -> list[str]:
        return (self._kube.notes() if self._kube else []) + troubles.take()

    def set_filter(self, to: Filter) -> None:
        self.session.set_filter(to)

    def left(self, parcels: int) -> None: ...

    def unasked(self) -> bool:
        return False

    def renewals(self) -> list[Renewed]:
        return self._kube.renewals() if self._kube else []
