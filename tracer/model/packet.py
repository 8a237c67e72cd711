# SPDX-License-Identifier: Apache-2.0
"""Packets, their hops and endpoints: the data model that all packages share.

A packet is one path through the kernel: its hops in order, and its outcome. Names here are the operator's; kernel names
stay in tracer/kernel and in the fields that quote them (reason and function of a drop).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tracer.model.evidence import Evidence

if TYPE_CHECKING:
    from tracer.model.kube import Owner
    from tracer.model.rule import RuleTrace


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


class HopKind(StrEnum):
    """What a hop is. The values are those of the JSON output.

    ROUTE is in predicted paths only: the kernel's answer is the hop's verdict.
    """

    HOOK = "hook"
    TABLE = "table"
    CHAIN = "chain"
    NAT = "nat"
    NAT_HOOK = "nat-hook"
    IPVS = "ipvs"
    SOCKET = "socket"
    HANDSHAKE = "handshake"
    DETAIL = "clue"
    DROP = "drop"
    ROUTE = "route"


RULE_KINDS = frozenset({HopKind.TABLE, HopKind.CHAIN})
"""Kinds of hops where rules were run."""


@dataclass(frozen=True)
class Endpoints:
    """Source and destination of one direction of a connection. Ports are 0 if the protocol has none."""

    src: str
    sport: int
    dst: str
    dport: int

    @property
    def reversed(self) -> Endpoints:
        return Endpoints(self.dst, self.dport, self.src, self.sport)


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
    netns: str = field(default="", compare=False)


@dataclass(frozen=True)
class Nat:
    """A rewrite of the packet's header.

    Attributes:
        kind: DNAT, SNAT, MASQUERADE; for replies "reverse DNAT", "reverse SNAT".
        before: Endpoints before the rewrite.
        after: Endpoints after it.
    """

    kind: str
    before: Endpoints
    after: Endpoints


@dataclass(frozen=True)
class Handshake:
    """The listener's decision on a segment of a handshake.

    Attributes:
        stage: "SYN", "ACK" (the last segment) or "request" (a segment for a half-open connection).
        accepted: Whether the listener accepted the segment; None = not known.
        accept_queue: Length of the accept queue, connections.
        accept_limit: Limit of the accept queue, connections.
        syn_queue: Half-open connections of the listener.
        cookie: The SYN was answered with a SYN cookie, so the kernel keeps no request for it.
    """

    stage: str
    accepted: bool | None
    accept_queue: int
    accept_limit: int
    syn_queue: int
    cookie: bool = False

    @property
    def accept_queue_full(self) -> bool:
        """Whether more connections wait than the limit, as in the kernel's sk_acceptq_is_full."""
        return self.accept_queue > self.accept_limit


@dataclass(frozen=True)
class Socket:
    """A socket that received a packet.

    Attributes:
        inode: Inode of the socket; 0 = no process holds it (yet).
        state: TCP state.
        pid: Process that holds it; 0 = not found.
        command: Name of that process.
    """

    inode: int
    state: str
    pid: int
    command: str


@dataclass(frozen=True)
class DecisionDetail:
    """What the kernel knew when it decided.

    Attributes:
        what: The kind of detail; tracer/events/decision_detail.py has the kinds and names their facts.
        facts: Values by name.
    """

    what: str
    facts: Mapping[str, int | str]

    def number(self, name: str) -> int:
        """A numeric fact; 0 = not known."""
        value = self.facts.get(name, 0)
        return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class Drop:
    """The drop of a packet.

    Attributes:
        reason: The kernel's drop reason; "" before 5.17.
        function: The kernel function that freed the packet.
        after_socket: A socket had received the packet before.
    """

    reason: str
    function: str
    after_socket: bool = False


@dataclass(frozen=True)
class IpvsDecision:
    """The decision of IPVS on a packet.

    Attributes:
        virtual: Address of the virtual server; "fwmark N" = selected by mark; "" = dropped, virtual server not known.
        virtual_port: Port of the virtual server.
        protocol: "tcp".
        scheduler: Name of the scheduler.
        persistent: Clients keep their real server.
        real: Address of the real server that the packet went to or came from; "" = no real server.
        real_port: Port of the real server.
        chosen: "now" = the scheduler chose for this packet; "earlier" = for an earlier packet.
        evidence: Whether that choice was seen.
    """

    virtual: str = ""
    virtual_port: int = 0
    protocol: str = ""
    scheduler: str = ""
    persistent: bool = False
    real: str = ""
    real_port: int = 0
    chosen: str = ""
    evidence: Evidence = Evidence.OBSERVED


_PASSING_KINDS = frozenset({HopKind.HOOK, HopKind.TABLE, HopKind.CHAIN, HopKind.NAT_HOOK, HopKind.DETAIL})


@dataclass(frozen=True)
class Hop:
    """One step of a packet: a hook, a table, a translation, a socket, a drop.

    Attributes:
        time: ns, CLOCK_MONOTONIC.
        what: What the hop is.
        netns: The namespace.
        hook: PREROUTING and so on, "" = outside of netfilter.
        table: "filter"; with nftables "ip kube-proxy".
        chain: The nftables base chain.
        verdict: ACCEPT, DROP, REJECT, STOLEN, QUEUE; "" = none.
        evidence: How the hop is known.
        in_iface: Interface that the packet came in by, "" = none.
        out_iface: Interface that it leaves by, "" = none.
        mark: The packet mark.
        reject: How REJECT answered the packet.
        nat: The rewrite, also that of IPVS.
        ipvs: The decision of IPVS.
        handshake: The listener's decision.
        socket: The socket that received the packet.
        drop: The drop.
        detail: The decision detail.
        clone: The hop belongs to a copy of the packet.
        rule_trace: Rules that acted; for a translation, the rules that decided it.
        from_conntrack: An earlier packet of the connection decided the translation.
        owner: Owner of the deciding rule or of the rewrite; None = not requested.
    """

    time: int
    what: HopKind
    netns: str
    hook: str = ""
    table: str = ""
    chain: str = ""
    verdict: str = ""
    evidence: Evidence = Evidence.OBSERVED
    in_iface: str = ""
    out_iface: str = ""
    mark: int = 0
    reject: str = ""
    nat: Nat | None = None
    ipvs: IpvsDecision | None = None
    handshake: Handshake | None = None
    socket: Socket | None = None
    drop: Drop | None = None
    detail: DecisionDetail | None = None
    clone: bool = False
    rule_trace: RuleTrace | None = None
    from_conntrack: bool = False
    owner: Owner | None = None

    @property
    def decisive(self) -> bool:
        """Whether the hop is shown when only decisions are shown."""
        if self.handshake and self.handshake.stage == "request":
            return self.handshake.accepted is False
        return self.what not in _PASSING_KINDS or self.verdict not in ("ACCEPT", "")


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
    """

    identity: int
    time: int
    netns: str
    iface: str
    family: str
    protocol: str
    endpoints: Endpoints
    tcp_flags: str = ""
    length: int = 0
    seq: int = 0
    flow: Flow | None = None
    hops: tuple[Hop, ...] = ()
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

    @property
    def drop(self) -> Drop | None:
        return next((h.drop for h in reversed(self.hops) if h.drop and not h.clone), None)

    def detail(self, what: str) -> DecisionDetail | None:
        """The last decision detail of that kind."""
        return next((h.detail for h in reversed(self.hops) if h.detail and h.detail.what == what), None)

    @property
    def handshake(self) -> Handshake | None:
        return next((h.handshake for h in reversed(self.hops) if h.handshake and not h.clone), None)
