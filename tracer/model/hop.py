# SPDX-License-Identifier: Apache-2.0
"""Hops: the steps of a packet, one class a kind, each with the fields of its kind only.

What several kinds have in common is in their base classes: `VerdictHop`, `DecidingHop`, `RuleHop`, `RewriteHop`. A `Hop` is an
object of one of the final classes. The functions at the end answer what is asked of a hop of any kind.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar, final

from tracer.model.bpf_program import ProgramAction
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.namespace_name import Netns
from tracer.model.netfilter import PASSES, AnyVerdict, Hook, Verdict

if TYPE_CHECKING:
    from tracer.model.kube import Owner
    from tracer.model.rule import RuleHit, RuleTrace


class HopKind(StrEnum):
    """The kind of a hop, by its name in the JSON output."""

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
    REDIRECT = "redirect"
    ROUTE = "route"


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


QUEUE_ANSWER, QUEUE_REFUSED = "queue-answer", "queue-refused"
"""Kinds of decision details: a queue (NFQUEUE) gave the packet back, or did not take it."""


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
        program: What is known of the eBPF program that dropped it; None = none did.
    """

    reason: str
    function: str
    after_socket: bool = False
    program: ProgramAction | None = None


class RedirectHelper(StrEnum):
    """How an eBPF program redirected a packet: the function that it called, or the result of a program of XDP."""

    PLAIN = "bpf_redirect"
    NEIGHBOUR = "bpf_redirect_neigh"
    PEER = "bpf_redirect_peer"
    COPY = "bpf_clone_redirect"
    XDP = "XDP_REDIRECT"


@dataclass(frozen=True)
class Redirect:
    """A redirection by an eBPF program.

    Attributes:
        target: The interface that the program named; "" = not known.
        helper: How.
        is_ingress: The target gets the packet as if it had received it; of PEER, the other end of the target does.
        program: What is known of the program; None = nothing.
    """

    target: str
    helper: RedirectHelper
    is_ingress: bool = False
    program: ProgramAction | None = None

    @property
    def text(self) -> str:
        """Where to, and by which program: "to eth1, by eBPF program x (id 42) at tc ingress of veth-a, loader unknown"."""
        target = self.target or "an unknown interface"
        what = {
            RedirectHelper.NEIGHBOUR: f"to {target}, to a neighbour",
            RedirectHelper.PEER: f"to the other end of {target}",
            RedirectHelper.COPY: f"a copy to {target}",
        }.get(self.helper, f"to {target}")
        received = " as received there" if self.is_ingress and self.helper is not RedirectHelper.PEER else ""
        return what + received + (f", {self.program.text}" if self.program else ", program unknown")


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


@dataclass(frozen=True, slots=True)
class HopBase:
    """What every hop has.

    Attributes:
        kind: The kind, the same for all hops of a class.
        time: ns, CLOCK_MONOTONIC.
        netns: The namespace.
        hook: The hook; NONE = outside of netfilter.
        evidence: How the hop is known.
        in_iface: Interface that the packet came in by, "" = none.
        out_iface: Interface that it leaves by, "" = none.
        mark: The packet mark.
        clone: The hop belongs to a copy of the packet.
    """

    kind: ClassVar[HopKind]

    time: int
    netns: Netns
    hook: Hook = Hook.NONE
    evidence: Evidence = Evidence.OBSERVED
    in_iface: str = ""
    out_iface: str = ""
    mark: int = 0
    clone: bool = False

    @property
    def is_decisive(self) -> bool:
        """Whether the hop is shown when only decisions are shown."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictHop(HopBase):
    """A hop with a verdict. verdict: NONE = not given, or not seen."""

    verdict: AnyVerdict = Verdict.NONE

    @property
    def is_decisive(self) -> bool:
        return self.verdict not in PASSES


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HookHop(VerdictHop):
    """All chains of a hook were run. A hook of a device has no verdict."""

    kind = HopKind.HOOK


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NatHookHop(VerdictHop):
    """The NAT functions of a hook were run."""

    kind = HopKind.NAT_HOOK


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingHop(VerdictHop):
    """Rules or IPVS decided about the packet.

    Attributes:
        reject: How REJECT answered the packet; "" = another verdict.
        owner: Owner of the deciding rule or of the virtual server; None = not requested.
    """

    reject: str = ""
    owner: Owner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHop(DecidingHop):
    """Rules were run.

    Attributes:
        table: "filter"; with nftables "ip kube-proxy".
        rule_trace: Rules that acted; None = not requested.
    """

    table: str
    rule_trace: RuleTrace | None = None

    @property
    def base_chain(self) -> str:
        """The nftables base chain; "" with legacy iptables, where it has the name of the hook."""
        return ""

    @property
    def place(self) -> str:
        """Table and chain: filter/INPUT, or ip kube-proxy/filter-output for nftables."""
        return f"{self.table}/{self.base_chain or self.hook}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableHop(RuleHop):
    """A table of legacy iptables was run."""

    kind = HopKind.TABLE


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHop(RuleHop):
    """A base chain of nftables was run. chain: Its name."""

    kind = HopKind.CHAIN

    chain: str

    @property
    def base_chain(self) -> str:
        return self.chain


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteHop(HopBase):
    """The packet's header was rewritten.

    Attributes:
        nat: The rewrite.
        owner: Owner of the rewrite; None = not requested.
    """

    nat: Nat
    owner: Owner | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NatHop(RewriteHop):
    """A translation by conntrack, or a header that something else rewrote.

    Attributes:
        rule_trace: Rules that decided it; None = not requested.
        from_conntrack: An earlier packet of the connection decided it.
        program: What is known of the eBPF program that rewrote it; None = none did, or it is not known.
    """

    kind = HopKind.NAT

    rule_trace: RuleTrace | None = None
    from_conntrack: bool = False
    program: ProgramAction | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IpvsNatHop(RewriteHop):
    """IPVS sent the packet to a real server, or an answer of it back. decision: It has a real server."""

    kind = HopKind.IPVS

    decision: IpvsDecision


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IpvsRefusalHop(DecidingHop):
    """IPVS refused the packet. decision: It has no real server."""

    kind = HopKind.IPVS

    decision: IpvsDecision

    @property
    def is_decisive(self) -> bool:
        return True


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SocketHop(HopBase):
    """A socket received the packet."""

    kind = HopKind.SOCKET

    socket: Socket


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeHop(HopBase):
    """A listener decided on a segment of a handshake."""

    kind = HopKind.HANDSHAKE

    handshake: Handshake

    @property
    def verdict(self) -> Verdict:
        return Verdict.DROP if self.handshake.accepted is False else Verdict.NONE

    @property
    def is_decisive(self) -> bool:
        return self.handshake.stage != "request" or self.handshake.accepted is False


SHOWN_DETAILS = frozenset({"connect", "lookup", QUEUE_ANSWER, QUEUE_REFUSED})
"""Details that are no reason of another decision, but a decision themselves."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DetailHop(HopBase):
    """The kernel decided, and this is what it knew."""

    kind = HopKind.DETAIL

    detail: DecisionDetail

    @property
    def is_decisive(self) -> bool:
        return self.detail.what in SHOWN_DETAILS


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DropHop(VerdictHop):
    """The kernel freed the packet. A traced drop has the verdict DROP, a predicted one has none."""

    kind = HopKind.DROP

    drop: Drop

    @property
    def is_decisive(self) -> bool:
        return True


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectHop(HopBase):
    """An eBPF program redirected the packet, or a copy of it."""

    kind = HopKind.REDIRECT

    redirect: Redirect

    @property
    def is_copy(self) -> bool:
        """Whether a copy went there, and the packet itself went on."""
        return self.redirect.helper is RedirectHelper.COPY


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RouteHop(HopBase):
    """A routing decision, in predicted paths only. route: The kernel's answer."""

    kind = HopKind.ROUTE

    route: str


H = TypeVar("H", bound=HopBase)
IpvsHop: TypeAlias = IpvsNatHop | IpvsRefusalHop
Hop: TypeAlias = (
    HookHop
    | NatHookHop
    | TableHop
    | ChainHop
    | NatHop
    | IpvsHop
    | SocketHop
    | HandshakeHop
    | DetailHop
    | DropHop
    | RedirectHop
    | RouteHop
)
OwnedHop: TypeAlias = DecidingHop | RewriteHop
"""A hop that a rule or a virtual server decided."""
_OWNED, _TRACED, _JUDGED = (DecidingHop, RewriteHop), (RuleHop, NatHop), (VerdictHop, HandshakeHop)


class SharedHops:
    """The hops of a packet on the path of an earlier packet, a sequence. Each one is made when it is looked at.

    No abstract class itself: asking whether an object is an instance of one takes ten times as long.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def alike(self) -> Sequence[Hop]:
        """The earlier packet's hops. They differ in times, ports, inodes of sockets and facts of decision details."""

    @abstractmethod
    def places(self, kind: type[HopBase]) -> Sequence[int]:
        """The places of the hops of a class, in order."""


def alike(hops: Sequence[Hop]) -> Sequence[Hop]:
    """Hops that are equal to these but for what SharedHops.alike may differ in; none is made to look at them."""
    return hops.alike if isinstance(hops, SharedHops) else hops


def places_of(hops: Sequence[Hop], kind: type[HopBase]) -> Sequence[int]:
    """The places of the hops of a class, in order. Those of a path are found once."""
    return hops.places(kind) if isinstance(hops, SharedHops) else [at for at, hop in enumerate(hops) if isinstance(hop, kind)]


def alike_of(hops: Sequence[Hop], kind: type[H]) -> list[H]:
    """Hops alike those of a class that do not belong to a copy of the packet, in order."""
    found = alike(hops)
    return [hop for at in places_of(hops, kind) if isinstance(hop := found[at], kind) and not hop.clone]


def verdict_of(hop: HopBase) -> AnyVerdict:
    """The verdict; NONE = a hop without one."""
    return hop.verdict if isinstance(hop, _JUDGED) else Verdict.NONE


def nat_of(hop: HopBase) -> Nat | None:
    """The rewrite of the packet's header, also that by IPVS."""
    return hop.nat if isinstance(hop, RewriteHop) else None


def owner_of(hop: HopBase) -> Owner | None:
    """The owner of the rule or virtual server that decided; None = no rule decided, or the owner was not requested."""
    return hop.owner if isinstance(hop, _OWNED) else None


def trace_of(hop: HopBase) -> RuleTrace | None:
    """The rules that acted; None = no rule could act, or they were not requested."""
    return hop.rule_trace if isinstance(hop, _TRACED) else None


def decision_of(hop: HopBase) -> RuleHit | None:
    """The rule or policy that decided; None = none, or it is not known."""
    trace = trace_of(hop)
    return trace.decision if trace else None


def is_from_conntrack(hop: HopBase) -> bool:
    """Whether an earlier packet of the connection decided the translation."""
    return isinstance(hop, NatHop) and hop.from_conntrack
