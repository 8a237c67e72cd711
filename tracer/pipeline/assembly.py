# SPDX-License-Identifier: Apache-2.0
"""What a run needs of the stage that makes packets out of events: an assembler, or the prefetcher of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.node.namespaces import Namespaces
from tracer.node.node import HostReader
from tracer.node.processes import Processes
from tracer.rules.rule_resolver import RuleResolver


class Assembler(Protocol):
    """Takes the events of batches, and yields closed packets.

    Attributes:
        events: Number of events so far.
        unaddressed: Packets that were not yielded, because no event had their addresses.
    """

    events: int
    unaddressed: int

    def feed(self, batch: npt.NDArray[Any]) -> None:
        """Takes the events of a batch: an array of `struct event`."""

    def add_losses(self, losses: Sequence[Loss], now: int) -> None:
        """Takes losses that were noticed at `now`, ns, CLOCK_MONOTONIC."""

    def chunks(self, now: int | None = None) -> Iterator[list[Packet]]:
        """Yields closed packets in chunks, oldest first. now: ns, CLOCK_MONOTONIC; None = all packets are closed."""
        ...

    @property
    def open(self) -> int:
        """Number of packets that have not been yielded."""
        ...

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that packets have passed are being read."""
        ...


@dataclass(frozen=True)
class AssemblyParts:
    """What an assembler is made of.

    Attributes:
        namespaces: Names of network namespaces.
        processes: Owners of sockets.
        node: Answers about the node.
        rules: Gives the rules that a packet met.
        function: Gives the kernel function at an address.
        drop_reasons: Names of the kernel's drop reasons.
        clock: ns to add to CLOCK_MONOTONIC to get ns since the epoch.
        tracking: Inodes of namespaces that track connections.
    """

    namespaces: Namespaces
    processes: Processes
    node: HostReader
    rules: RuleResolver
    function: Callable[[int], str]
    drop_reasons: dict[int, str]
    clock: int
    tracking: set[int]
