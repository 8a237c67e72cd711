# SPDX-License-Identifier: Apache-2.0
"""Watching packets with the running probes: set a filter, let a test make packets, get what was seen of them."""

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
from tracer.pipeline.run import POLL_SECONDS, RULES_SECONDS
from tracer.rules import live_resolver

SETTLE_SECONDS = 0.4
"""After the last packet: time for what the kernel does on its own, closing ACKs among it."""


NOTHING = Filter(ports=(1,))


@dataclass
class Seen:
    """What a watch saw; filled when its block ends."""

    packets: list[Packet] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


class Watch:
    """The running probes, and the means to make packets of their events."""

    def __init__(self, kernel: Kernel, session: Session) -> None:
        self.kernel, self.session = kernel, session
        self.lost = 0

    @contextmanager
    def __call__(
        self, wanted: Filter, nft: bool = False, changed: Callable[[int, str, int], None] | None = None
    ) -> Iterator[Seen]:
        """Traces with this filter during the block. nft: also which rules of nftables act, which costs every packet.
        changed: told of replaced rules.
        """
        seen = Seen()
        self.session.drain()
        self.session.losses()
        namespaces = Namespaces()
        hops = HopBuilder(namespaces, Processes(), self.kernel.drop_reasons(), self.kernel.symbols.containing)
        with_nft = nft and any(row.probe.name == "nft_rule" for row in self.session.planned)
        with live_resolver.watching(namespaces, self.session.extensions, with_nft) as (rules, _):
            rules.replaced = changed
            assembler = PacketAssembler(hops, tracking=tracking(), rules=rules)
            self.session.set_filter(wanted)
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
