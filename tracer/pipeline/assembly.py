# SPDX-License-Identifier: Apache-2.0
"""What a run needs of the part that makes packets out of events: an assembler, or the prefetcher of a recording."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tracer.events.record import EventArray
from tracer.model.loss import Loss
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespaces import NamespaceNames
from tracer.node.node import HostReader
from tracer.node.processes import SocketOwners
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.packets.program_drops import AttachedPrograms, NoPrograms
from tracer.packets.shared_packet import AnyPacket
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.questions import Journal

COMPARED_EVERY = 1000
"""Of the packets that take a shared path, each one of this number is also explained on its own, and compared."""
COMPARED_VARIABLE = "K8SNET_COMPARED_EVERY"
"""Environment variable with another number; tests compare every packet."""


class Assembler(Protocol):
    """Takes the events of batches, and yields closed packets.

    Attributes:
        events: Number of events so far.
        unaddressed: Packets that were not yielded, because no event had their addresses.
        is_uniform: Each question to the machine has one answer while the packets of this batch are assembled.
    """

    events: int
    unaddressed: int
    is_uniform: bool

    def feed(self, batch: EventArray) -> None:
        """Takes the events of a batch: an array of `struct event`."""

    def add_losses(self, losses: Sequence[Loss], now: int) -> None:
        """Takes losses that were noticed at `now`, ns, CLOCK_MONOTONIC."""

    def chunks(self, now: int | None = None) -> Iterator[Sequence[AnyPacket]]:
        """Yields closed packets in chunks, oldest first. now: ns, CLOCK_MONOTONIC; None = all packets are closed."""
        ...

    def horizon(self, now: int) -> int:
        """Time up to which all packets have been yielded, ns, CLOCK_MONOTONIC; `now` unless a packet waits for its rules."""
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
class KernelNames:
    """Names of the numbers that the traced kernel writes.

    Attributes:
        function: Gives the kernel function at an address; "" = not known.
        drop_reasons: Names of drop reasons by number.
    """

    function: Callable[[int], str]
    drop_reasons: Mapping[int, str]
    programs: AttachedPrograms = field(default_factory=NoPrograms)


@dataclass(frozen=True)
class AssemblyParts:
    """What explaining the packets of a run needs of its host.

    Attributes:
        namespaces: Names of network namespaces.
        processes: Owners of sockets.
        inspector: Answers what SYN verdicts need to know about network namespaces.
        node: Reads what findings need to know about the node.
        journal: Answers the questions of findings.
        rules: Gives the rules that a packet met.
        names: Names of the kernel's numbers.
        clock: ns to add to CLOCK_MONOTONIC to get ns since the epoch.
        tracking: Inodes of namespaces that track connections.
        programs: Gives the eBPF programs at interfaces.
    """

    namespaces: NamespaceNames
    processes: SocketOwners
    inspector: NamespaceInspector
    node: HostReader
    journal: Journal
    rules: RuleResolver
    names: KernelNames
    clock: int
    tracking: Collection[int]
    programs: AttachedPrograms = field(default_factory=NoPrograms)


def packet_assembler(
    parts: AssemblyParts,
    compares_paths: bool = True,
    holds_answers: bool = True,
    version: Callable[[], int] | None = None,
) -> PacketAssembler:
    """The assembler of a run that explains its packets.

    Args:
        parts: What explaining needs.
        compares_paths: Some packets on shared paths are explained in two ways and compared; see PacketAssembler.compared_every.
        holds_answers: See PacketAssembler.
        version: See Lookups.
    """
    names = parts.names
    hops = HopBuilder(parts.namespaces, parts.processes, names.drop_reasons, names.function, version, parts.programs)
    number = os.environ.get(COMPARED_VARIABLE, "")
    every = (int(number) if number.isdecimal() else COMPARED_EVERY) if compares_paths else 0
    return PacketAssembler(
        hops, parts.clock, parts.tracking, rules=parts.rules, compared_every=every, holds_answers=holds_answers
    )
