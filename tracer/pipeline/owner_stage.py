# SPDX-License-Identifier: Apache-2.0
"""Selects packets by Kubernetes objects, and sets their owners."""

from __future__ import annotations

from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.packet import Packet
from tracer.packets.shared_packet import AnyPacket, SharedPacket
from tracer.pipeline.shared_owners import SharedOwners
from tracer.pipeline.source import EventSource
from tracer.pipeline.stage import Stage
from tracer.render.base import Output


class OwnerStage(Stage):
    """Selects and attributes packets; renews the filter of the probes when a selected object changes its addresses.

    Args:
        kube: the objects and the selectors.
        source: gives renewed filters, and takes new ones.
    """

    def __init__(self, kube: OwnerResolver, source: EventSource) -> None:
        self._kube, self._source = kube, source
        self._owners, self._selects = SharedOwners(kube), bool(kube.selectors)

    def begin_batch(self) -> None:
        for renewed in self._source.renewals():
            self._kube.apply_filter(renewed)

    def feed(self, packet: Packet, output: Output) -> Packet | None:
        if not self._kube.wants(packet):
            return None
        return self._owners.attribute(packet)

    def repeat(self, packet: SharedPacket, output: Output) -> AnyPacket | None:
        return self.feed(packet.packet(), output) if self._selects else self._owners.repeat(packet)

    def feed_unexplained(self, packet: Packet, output: Output) -> Packet | None:
        return self.feed(packet, output)

    def end_batch(self, now: int, output: Output) -> None:
        new = self._kube.new_filter()
        if new:
            self._source.set_filter(new)
