# SPDX-License-Identifier: Apache-2.0
"""Watches packets with the running probes: sets a filter, lets a test make packets, and returns the packets that were seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tracer.kernel.loss_counters import Loss
from tracer.kernel.session import Kernel, Session
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.node.namespaces import Namespaces, tracking
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.packets.program_drops import AttachedPrograms
from tracer.pipeline.live_source import POLL_SECONDS, RULES_SECONDS
from tracer.rules import live_resolver

SETTLE_SECONDS = 0.4
"""Wait after the last packet: the kernel still sends packets of its own, such as closing ACKs."""
NOTHING = Filter(ports=(1,))
"""A filter that no packet of the tests matches."""


@dataclass
class Seen:
    """The packets and losses of a watch; filled when its block ends."""

    packets: list[Packet] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


class Watch:
    """Assembles packets from the events of the running probes."""

    def __init__(self, kernel: Kernel, session: Session) -> None:
        self.kernel, self.session = kernel, session
        self.lost = 0

    @contextmanager
    def __call__(
        self,
        packet_filter: Filter,
        nft: bool = False,
        on_rule_change: Callable[[int, str, int], None] | None = None,
        programs: AttachedPrograms | None = None,
        is_wall_time: bool = False,
    ) -> Iterator[Seen]:
        """Traces with this filter during the block. nft: also which rules of nftables act, which slows down every packet.
        on_rule_change: called when rules are replaced. programs: eBPF programs at interfaces. is_wall_time: times of packets
        are those of the day, as in a run of the tracer, not CLOCK_MONOTONIC.
        """
        seen = Seen()
        self.session.drain()
        self.session.losses()
        namespaces = Namespaces()
        reasons, function = self.kernel.drop_reasons(), self.kernel.symbols.containing
        hops = HopBuilder(namespaces, Processes(), reasons, function, programs=programs)
        with_nft = nft and any(row.probe.name == "nft_rule" for row in self.session.planned)
        with live_resolver.watching(namespaces, self.session.extensions, with_nft) as (rules, _):
            rules.replaced = on_rule_change
            wall_offset = time.time_ns() - time.monotonic_ns() if is_wall_time else 0
            assembler = PacketAssembler(hops, tracking=tracking(), rules=rules, wall_offset=wall_offset)
            self.session.set_filter(packet_filter)
            try:
                yield seen
                time.sleep(SETTLE_SECONDS)
            finally:
                self.session.set_filter(NOTHING)
            assembler.feed(self.session.events())
            last = time.monotonic() + RULES_SECONDS
            while assembler.is_waiting_for_rules and time.monotonic() < last:
                time.sleep(POLL_SECONDS)
                assembler.feed(self.session.events())
            seen.losses = self.session.losses()
            self.lost += sum(loss.count for loss in seen.losses)
            assembler.add_losses(seen.losses, time.monotonic_ns())
            seen.packets = assembler.flush()
