# SPDX-License-Identifier: Apache-2.0
"""What IPVS did with a packet, and whether the choice of its real server was observed.

The scheduler runs for the first packet of a connection only. Later packets follow the connection. So the observed choices are
kept here by connection. For any other connection it is only known that the choice was made before.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from tracer.events import cstruct, record
from tracer.events.record import Event
from tracer.model.evidence import Evidence
from tracer.model.hop import IpvsDecision
from tracer.util.frozen import evolve
from tracer.util.lru_dict import LruDict
from tracer.util.octets import c_text

PERSISTENT = cstruct.define("records/event.h", "IPVS_PERSISTENT")
CONNECTIONS_KEPT = 65536
"""Most IPVS connections with an observed choice; the least recently chosen is evicted first."""
_NONE = bytes(16)


@cstruct.enumeration("records/event.h", "ipvs_act")
class Act(IntEnum):
    """What IPVS did, in `state` of an EVENT_IPVS."""

    IPVS_CHOSEN = 1
    IPVS_KNOWN = 2
    IPVS_REPLY = 3
    IPVS_NO_SERVER = 4
    IPVS_DROPPED = 5


IpvsKey: TypeAlias = tuple[int, int, int, bytes, int, bytes, int, bytes, int]
"""A connection of IPVS, which conntrack may not know: address of the kernel's object, which is used again, namespace's inode,
protocol number, client, virtual server, real server. As an event has it."""


class IpvsConnections:
    """IPVS connections of which the scheduler's choice was observed."""

    def __init__(self) -> None:
        self._seen: LruDict[IpvsKey, None] = LruDict(CONNECTIONS_KEPT, "connections of IPVS")

    def decision(self, e: Event) -> IpvsDecision:
        """Decodes an EVENT_IPVS. Must be called in the order of a packet's events, with packets in the order of their time."""
        if e.state == Act.IPVS_DROPPED:
            return IpvsDecision()
        by_mark = bytes(e.orig_dst) == _NONE
        virtual = f"fwmark {e.mark}" if by_mark else record.address(e.orig_dst)
        protocol, scheduler = record.protocol(e).lower(), c_text(e.table)
        decision = IpvsDecision(virtual, e.orig_dport, protocol, scheduler, bool(e.ct_info & PERSISTENT))
        if e.state == Act.IPVS_NO_SERVER:
            return decision
        chosen, evidence = self._chosen(e)
        real, port = record.address(e.reply_src), e.reply_sport
        return evolve(decision, real=real, real_port=port, chosen=chosen, evidence=evidence)

    def _chosen(self, e: Event) -> tuple[str, Evidence]:
        ends = (e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport, e.reply_src, e.reply_sport)
        connection = (e.object, e.netns, e.protocol, *ends)
        if e.state == Act.IPVS_CHOSEN:
            self._seen[connection] = None
            return "now", Evidence.OBSERVED
        return "earlier", Evidence.OBSERVED if connection in self._seen else Evidence.DERIVED
