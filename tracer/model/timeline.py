# SPDX-License-Identifier: Apache-2.0
"""Timelines of connections: the entries of a connection, and the timeline that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.model.connection import ConnectionKey
from tracer.model.endpoints import Endpoints
from tracer.model.namespace_name import NO_NETNS, Netns


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step on a packet's path. time: ns after the packet's first hop."""

    time: int
    netns: Netns
    text: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One entry of a timeline.

    Attributes:
        time: ns, CLOCK_MONOTONIC.
        kind: "packet", "conntrack", "change" or "verdict".
        text: What happened.
        direction: "->" = direction of the first packet, "<-" = the other direction, "!" = ICMP error, "" = not a packet.
        end: How the packet ended.
        remark: "sent again (2nd), the first ended: ...".
        stages: The steps on the packet's path.
        bad: The packet did not reach its destination.
        number: `number` of the packet.
        netns: The namespace where the packet was first seen.
        same: Equal for entries of one packet.
    """

    time: int
    kind: str
    text: str
    direction: str = ""
    end: str = ""
    remark: str = ""
    stages: tuple[PathStep, ...] = ()
    bad: bool = False
    number: int = 0
    netns: Netns = NO_NETNS
    same: int = 0


@dataclass
class Timeline:
    """The timeline of one connection.

    Attributes:
        key: The connection.
        began: Time of its first packet, ns since the epoch.
        origin: The same time, ns, CLOCK_MONOTONIC.
        asked: Endpoints of its first packet.
        entries: Entries that have not been printed, oldest first.
        packets: Packets seen, also those that were not kept.
        retransmitted: Packets that were sent again.
        lost: Packets that did not reach their destination.
        left_out: Entries that were not kept, between the first ones and the last ones.
        whole: The SYN was seen.
        cause: Cause of the latest SYN, "" = not known yet.
        good: Whether that cause is good.
        state: "open", "closed", "reset" or "refused"; "answered" for protocols without an end.
        why: Why it is printed now: "" = the connection ended, else "quiet", "aged out", "the run ended".
        last: Time of the last event, ns, CLOCK_MONOTONIC.
        printed: Number of entries printed before.
        over: No more packets are expected.
        number: Order in which connections began, from 1.
    """

    key: ConnectionKey
    began: int
    origin: int
    asked: Endpoints
    entries: list[TimelineEntry] = field(default_factory=list)
    packets: int = 0
    retransmitted: int = 0
    lost: int = 0
    left_out: int = 0
    whole: bool = False
    cause: str = ""
    good: bool = False
    state: str = "open"
    why: str = ""
    last: int = 0
    printed: int = 0
    over: bool = False
    number: int = 0

    @property
    def troubled(self) -> bool:
        """Whether a packet was lost or retransmitted, or the SYN has a bad cause."""
        return bool(self.lost or self.retransmitted or (self.cause and not self.good))
