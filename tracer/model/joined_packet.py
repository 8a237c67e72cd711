# SPDX-License-Identifier: Apache-2.0
"""One packet as several nodes saw it: a view for each node that it passed, and what joins the views."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tracer.model.packet import Packet


class JoinKey(StrEnum):
    """What two views have in common. The values are those of the JSON output."""

    HEADER = "header"
    """TCP: addresses, ports, sequence and acknowledgement number, flags, length and IP identification on the wire."""
    PAYLOAD = "payload"
    """Other protocols: addresses, ports, IP identification, length and, where they were recorded, first payload bytes."""
    RANGE = "range"
    """TCP: the sequence numbers of one view contain those of the other (segments that were merged or divided)."""
    SEQUENCE = "sequence"
    """The initial sequence number alone: the addresses were translated between the nodes."""


class Certainty(StrEnum):
    """How well two views are known to be one packet. The values are those of the JSON output."""

    OBSERVED = "observed"
    DERIVED = "derived"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A packet as one node saw it.

    Attributes:
        node: Name of the node.
        packet: The packet, explained on that node.
        offset: What is added to the node's times to get times of the reference clock, ns; None = not known.
        error: Largest error of `offset`, ns; meaningless without an offset.
    """

    node: str
    packet: Packet
    offset: int | None = None
    error: int = 0

    @property
    def shift(self) -> int:
        """What is added to the node's times as far as it is known, ns: `offset`, or 0."""
        return self.offset or 0

    @property
    def time(self) -> int:
        """When the packet came to the node, ns since the epoch, in the reference clock as far as it is known."""
        return self.packet.time + self.shift


@dataclass(frozen=True, slots=True)
class JoinLink:
    """Two views that are one packet, in the order in which it passed them; or a view of which the other one is not certain.

    Attributes:
        earlier: Index of the view that the packet left; None = one of several views, all of which are packets of their own.
        later: Index of the view at which it arrived; None likewise.
        key: What the views have in common.
        certainty: OBSERVED: only this pair has the key. DERIVED: something was concluded. AMBIGUOUS: several views have it, or
            a view that has it may have been lost; either `earlier` or `later` is None.
        candidates: Number of views that can be the other one. An ambiguous one may also be that of another equal packet, or a
            lost one.
        delay: Time from the departure to the arrival, ns; None = the clocks were not compared.
        error: Largest error of `delay`, ns.
    """

    earlier: int | None
    later: int | None
    key: JoinKey
    certainty: Certainty
    candidates: int = 1
    delay: int | None = None
    error: int = 0


@dataclass(frozen=True, slots=True)
class JoinedPacket:
    """One packet with its views on all nodes that saw it.

    Attributes:
        views: The views in the order in which the packet passed the nodes; at least one.
        links: What joins them; empty with one view without doubt.
        complete: False = a view was given up before its views on other nodes could come: what is absent proves nothing.
    """

    views: tuple[NodeView, ...]
    links: tuple[JoinLink, ...] = ()
    complete: bool = True

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, in the order in which the packet passed them, each once."""
        return tuple(dict.fromkeys(view.node for view in self.views))

    @property
    def is_doubtful(self) -> bool:
        """Whether another joined packet may be this one, too: a view was given up early, or several views can be the next."""
        return not self.complete or any(link.certainty is Certainty.AMBIGUOUS for link in self.links)


ShownPacket = Packet | JoinedPacket
"""A packet of a run on one node, or on several ones."""
