# SPDX-License-Identifier: Apache-2.0
"""How full the accept queues of listeners were when segments of handshakes came."""

from __future__ import annotations

from tracer.metrics.family import HistogramFamily, MetricDescription, MetricKind
from tracer.metrics.label_value import label_value
from tracer.model.handshake import HandshakeVerdict
from tracer.model.hop import HandshakeHop, SocketHop, alike_of
from tracer.model.packet import Packet

BOUNDS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Upper bounds of the buckets. A queue is full for the kernel when it is longer than its limit: above the last bound."""


class AcceptQueueFill(HistogramFamily):
    """Measures each SYN, and each last ACK of a handshake, that met a listener."""

    DESCRIPTION = MetricDescription(
        MetricKind.HISTOGRAM,
        "Length of a listener's accept queue as a share of its limit, when a SYN or the last ACK of a handshake came.",
        labels=("netns", "process"),
        unit="ratio",
        bounds=BOUNDS,
    )

    def syn(self, verdict: HandshakeVerdict) -> None:
        attempt = verdict.attempt
        for packet in (attempt.syn, *attempt.acks) if attempt else ():
            self._add_hops(packet)

    def _add_hops(self, packet: Packet) -> None:
        sockets = alike_of(packet.hops, SocketHop)
        process = label_value(sockets[-1].socket.command if sockets else "")
        for hop in alike_of(packet.hops, HandshakeHop):
            queue, limit = hop.handshake.accept_queue, hop.handshake.accept_limit
            if hop.handshake.stage != "request":
                # A limit of 0 lets one connection wait: the queue is full when it has that one.
                self._add((label_value(hop.netns), process), queue / limit if limit else float(2 * queue))


METRIC = AcceptQueueFill
