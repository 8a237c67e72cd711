# SPDX-License-Identifier: Apache-2.0
"""Packets: the data model that all packages share.

A packet is one path through the kernel: its hops in order, and its outcome. Names here are the operator's; kernel names
stay in tracer/kernel and in the fields that quote them (reason and function of a drop).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import DecisionDetail, DetailHop, Drop, DropHop, Handshake, HandshakeHop, Hop, alike, alike_of, places_of
from tracer.model.namespace_name import NO_NETNS, Netns

if TYPE_CHECKING:
    from tracer.model.kube import Owner


class Outcome(StrEnum):
    """How a packet ended, as one word. The values are those of the JSON output."""

    FORWARDED = "forwarded"
    SENT = "sent"
    DELIVERED = "delivered"
    DROPPED = "dropped"
    REJECTED = "rejected"
    REFUSED = "refused"
    STOLEN = "stolen"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Flow:
    """The packet's connection in conntrack at the packet's last hop.

    Attributes:
        orig: The original tuple.
        reply: The reply tuple.
        state: NEW, ESTABLISHED or RELATED.
        is_reply: The packet goes in the reply direction.
        zone: The conntrack zone.
        netns: The namespace that tracks the connection.
    """

    orig: Endpoints
    reply: Endpoints
    state: str
    is_reply: bool
    zone: int
    netns: Netns = field(default=NO_NETNS, compare=False)


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet with its hops and its outcome. A packet never changes: what is learned later makes another packet.

    Attributes:
        identity: Identity given by the BPF programs, unique in a run.
        time: Time of the first hop, ns since the epoch.
        netns: Namespace of the first hop.
        iface: Interface of the first event.
        family: "IPv4" or "IPv6".
        protocol: Name of the protocol, or its number.
        endpoints: Source and destination at the first event.
        tcp_flags: "SYN ACK" and the like, "" = not TCP.
        length: Bytes from the IP header on.
        seq: TCP sequence number.
        flow: The conntrack connection; None = none.
        hops: Hops in order.
        verdict: How the packet ended, as a sentence.
        outcome: How the packet ended; tracer/packets/outcome.py classifies it.
        complete: False = a part of its path was lost; what is absent proves nothing then.
        number: Order in which packets ended.
        src_owner: Owner of the source; None = not requested.
        dst_owner: Owner of the destination; None = not requested.
        ack: TCP acknowledgement number.
        untracked: "INVALID" or "UNTRACKED" if conntrack had no entry for the packet.
        continues: `time` of the packet that this one continues, 0 = none. That packet was closed after the idle timeout.
        icmp: ICMP type and code; None = other protocol.
        raw: First bytes of the packet as it arrived, from the IP header on; empty without --snaplen.
        unexplained: In a replay: the evidence that the recorded run ended before it explained this packet; None = explained.
        connection: Number of the packet's connection, from 1; 0 = connections are not numbered.
        ident: IPv4 identification; 0 with IPv6.
    """

    identity: int
    time: int
    netns: Netns
    iface: str
    family: str
    protocol: str
    endpoints: Endpoints
    tcp_flags: str = ""
    length: int = 0
    seq: int = 0
    flow: Flow | None = None
    hops: Sequence[Hop] = ()
    verdict: str = ""
    outcome: Outcome = Outcome.UNKNOWN
    complete: bool = True
    number: int = 0
    src_owner: Owner | None = None
    dst_owner: Owner | None = None
    ack: int = 0
    untracked: str = ""
    continues: int = 0
    icmp: tuple[int, int] | None = None
    raw: bytes = b""
    unexplained: Evidence | None = None
    connection: int = 0
    ident: int = 0

    @property
    def drop(self) -> Drop | None:
        found = alike_of(self.hops, DropHop)
        return found[-1].drop if found else None

    def detail(self, what: str) -> DecisionDetail | None:
        """The last decision detail of that kind."""
        known = alike(self.hops)
        for at in reversed(places_of(self.hops, DetailHop)):
            if isinstance(hop := known[at], DetailHop) and hop.detail.what == what:
                own = self.hops[at]
                return own.detail if isinstance(own, DetailHop) else None
        return None

    @property
    def handshake(self) -> Handshake | None:
        found = alike_of(self.hops, HandshakeHop)
        return found[-1].handshake if found else None
