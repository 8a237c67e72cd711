# SPDX-License-Identifier: Apache-2.0
"""The nouns of timelines: a connection's identity, its steps, and the timeline they are on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.model.packet import Endpoints


@dataclass(frozen=True)
class ConnectionKey:
    """What conntrack knows a connection by. netns: "" when nobody tracks it, and it is known by its ends alone."""

    protocol: str
    orig: Endpoints
    zone: int = 0
    netns: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """Something that happened to a packet on its way. time: ns after the packet's first hop."""

    time: int
    netns: str
    text: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One thing on a timeline.

    time: ns, CLOCK_MONOTONIC. kind: "packet", "conntrack", "change" or "verdict". way: "->" as the first packet, "<-" back, "!"
    for an ICMP error, "" for what is no packet. text: what it is; end: how a packet ended; remark: "sent again (2nd), the
    first ended: ...". bad: it did not get where it should. netns: where a packet was first seen; same: equal for what is one
    packet.
    """

    time: int
    kind: str
    text: str
    direction: str = ""
    end: str = ""
    remark: str = ""
    stages: tuple[Stage, ...] = ()
    bad: bool = False
    number: int = 0
    netns: str = ""
    same: int = 0


@dataclass
class Timeline:
    """A connection's steps that have not been told, oldest first.

    began: ns since the epoch, of its first packet; origin: the same in CLOCK_MONOTONIC; asked: its ends. packets: seen, also
    those not kept; again: of them, sent again; lost: of them, those that did not get where they should. left_out: steps that
    were not kept, between the first ones and the last. state: "open", "closed", "reset", "refused"; "answered" where nothing
    is ever closed. whole: its SYN was seen. cause: of its latest SYN, "" while that is not known; good: that cause is. why: why
    it is told now: "" at its end, else "quiet", "aged out", "the run ended". told: how many steps were told before. over:
    nothing comes any more.
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

    @property
    def troubled(self) -> bool:
        """Whether something of it did not go as it should."""
        return bool(self.lost or self.retransmitted or (self.cause and not self.good))
