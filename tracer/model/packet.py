# SPDX-License-Identifier: Apache-2.0
"""The nouns that every part shares: endpoints, hops, packets.

A packet is one journey through the kernel: the hops it made, in order, and how it ended. Everything here is said in the
operator's words; kernel names stay in tracer/kernel and in the fields that quote them (a drop's reason and function).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracer.model.evidence import Evidence

if TYPE_CHECKING:
    from tracer.model.kube import Owner
    from tracer.model.rule import RuleTrace


@dataclass(frozen=True)
class Endpoints:
    """One direction of a conversation. Ports are 0 where the protocol has none."""

    src: str
    sport: int
    dst: str
    dport: int

    @property
    def reversed(self) -> Endpoints:
        return Endpoints(self.dst, self.dport, self.src, self.sport)


@dataclass(frozen=True)
class Flow:
    """The packet's connection as conntrack knew it at its last hop.

    state: NEW, ESTABLISHED, RELATED; reply: the packet goes in the reply direction. netns: the namespace that tracks it.
    """

    orig: Endpoints
    reply: Endpoints
    state: str
    is_reply: bool
    zone: int
    netns: str = field(default="", compare=False)


@dataclass(frozen=True)
class Nat:
    """A rewrite of the packet's header. kind: DNAT, SNAT, MASQUERADE, or "reverse DNAT", "reverse SNAT" for replies."""

    kind: str
    before: Endpoints
    after: Endpoints


@dataclass(frozen=True)
class Handshake:
    """What a listener did with a segment of a handshake.

    stage: "SYN", "ACK" (the last one) or "request". accepted: None when it could not be told. Queue lengths in connections.
    cookie: a SYN was answered with a SYN cookie, and is kept nowhere.
    """

    stage: str
    accepted: bool | None
    accept_queue: int
    accept_limit: int
    syn_queue: int
    cookie: bool = False

    @property
    def accept_queue_full(self) -> bool:
        """As the kernel's sk_acceptq_is_full: more waiting than the limit."""
        return self.accept_queue > self.accept_limit


@dataclass(frozen=True)
class Socket:
    """A socket that took a packet. inode 0: no process holds it (yet); pid 0: not found."""

    inode: int
    state: str
    pid: int
    command: str


@dataclass(frozen=True)
class DecisionDetail:
    """What the kernel knew when it decided. what: see tracer/events/decision_detail.py, which also names the facts."""

    what: str
    facts: Mapping[str, int | str]

    def number(self, name: str) -> int:
        """A fact that is a number; 0 when it is not known."""
        value = self.facts.get(name, 0)
        return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class Drop:
    """The end of a dropped packet: reason by the kernel's name ("" before 5.17), and the function that freed it.

    after_socket: a socket had taken the packet before.
    """

    reason: str
    function: str
    after_socket: bool = False


@dataclass(frozen=True)
class IpvsDecision:
    """What IPVS did with a packet.

    virtual: address of the virtual server, "fwmark N" of one that goes by mark, "" when it dropped the packet and did not say
    whose it was. protocol: "tcp". real: where the packet went, or came from; "" when there is no real server. persistent:
    clients keep their real server. chosen: "now" by the scheduler for this packet, or "earlier"; evidence: whether that was
    seen.
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


@dataclass(frozen=True)
class Hop:
    """One thing that happened to a packet.

    time: ns, CLOCK_MONOTONIC. what: "hook", "table", "chain", "nat", "nat-hook", "ipvs", "socket", "handshake", "clue" or
    "drop"; of a packet that is only explained also "route", with the kernel's answer as its verdict. hook: PREROUTING and so
    on, "" outside of netfilter. table: "filter", or "ip kube-proxy" for nftables; chain: an nftables base chain. verdict:
    ACCEPT, DROP, REJECT, STOLEN, QUEUE, "" where there is none. reject: how it was answered. ipvs: what IPVS did, its rewrite
    being in nat. walk: which rules acted; of a translation, those that decided it. from_conntrack: an earlier packet decided
    it. owner: whose the rule is that decided, or the rewrite; None when nobody asked.
    """

    time: int
    what: str
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
        """Worth a line when only decisions are shown."""
        if self.handshake and self.handshake.stage == "request":
            return self.handshake.accepted is False
        return self.what not in ("hook", "table", "chain", "nat-hook", "clue") or self.verdict not in ("ACCEPT", "")


@dataclass
class Packet:
    """One packet's journey.

    number: the order in which packets ended. identity: of the kernel side, unique in a run. time: of the first hop, ns since
    the epoch. verdict: how it ended, in words; outcome: the same as one word (see tracer/packets/outcome.py). complete: False
    when a part of its way was lost; nothing may be concluded from what is absent then. src_owner, dst_owner: who its ends are,
    None when nobody asked. untracked: "INVALID" or "UNTRACKED" when conntrack had no entry for it. continues: 0, or the `time`
    of the packet that this is the rest of: it was quiet for so long in between that it was taken to be over. icmp: type and
    code, None for other protocols. raw: its first bytes as it came in, from the IP header on; none without --snaplen.
    unexplained: in a replay, how it is known that the recorded run ended before it explained this packet; None when it did.
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
    hops: list[Hop] = field(default_factory=list)
    verdict: str = ""
    outcome: str = ""
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
        """Its last clue of that kind."""
        return next((h.detail for h in reversed(self.hops) if h.detail and h.detail.what == what), None)

    @property
    def handshake(self) -> Handshake | None:
        return next((h.handshake for h in reversed(self.hops) if h.handshake and not h.clone), None)
