# SPDX-License-Identifier: Apache-2.0
"""Converts one event into one hop. Each event kind has one method here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypedDict

from tracer.events import decision_detail, record
from tracer.events.record import CUT, SUBSYSTEM_SHIFT, DetailEvent, Event, Flag, Kind, RedirectWay
from tracer.model.bpf_program import CGROUP_POINTS, ProgramAction
from tracer.model.evidence import Evidence
from tracer.model.hop import (
    ChainHop,
    DetailHop,
    Drop,
    DropHop,
    Handshake,
    HandshakeHop,
    HookHop,
    Hop,
    IpvsHop,
    IpvsNatHop,
    IpvsRefusalHop,
    Nat,
    NatHookHop,
    NatHop,
    Redirect,
    RedirectHop,
    Socket,
    SocketHop,
    TableHop,
)
from tracer.model.namespace_name import Netns
from tracer.model.netfilter import AnyVerdict, Hook, Verdict
from tracer.model.rule import NFT_FAMILIES
from tracer.node.namespaces import NamespaceNames
from tracer.node.processes import SocketOwners
from tracer.packets import program_steps
from tracer.packets.ipvs_connections import IpvsConnections
from tracer.packets.lookups import Lookups
from tracer.packets.program_drops import (
    LOOKUP,
    NO_INTERFACE,
    NO_NETNS_INODE,
    AttachedPrograms,
    lookup_decision,
    place_key,
    place_of,
    program_drop,
    replacing_place,
)
from tracer.rules.rule_resolver import NO_RULES, ResolvedRules
from tracer.util.lru_dict import LruDict
from tracer.util.octets import c_text

ICMP_UNREACHABLE = {
    0: "icmp-net-unreachable", 1: "icmp-host-unreachable", 2: "icmp-proto-unreachable", 3: "icmp-port-unreachable",
    9: "icmp-net-prohibited", 10: "icmp-host-prohibited", 13: "icmp-admin-prohibited",
}  # fmt: skip
ICMP6_UNREACHABLE = {
    0: "icmp6-no-route", 1: "icmp6-adm-prohibited", 3: "icmp6-addr-unreachable", 4: "icmp6-port-unreachable",
    5: "icmp6-policy-fail", 6: "icmp6-reject-route",
}  # fmt: skip
TCP_RESET = 256
"""Value of `reason` in a REJECT event that stands for a TCP reset; smaller values are ICMP codes."""

LISTENERS_KEPT = 1 << 14
"""Most listening sockets kept, by namespace, address and port."""


class SocketUse(NamedTuple):
    """A socket that received a packet.

    Attributes:
        inode: Inode of the socket.
        state: TCP state.
        netns: Inode of the namespace.
        address: The packet's destination address.
        port: The packet's destination port.
    """

    inode: int
    state: str
    netns: int
    address: str
    port: int


class _Step(TypedDict):
    """The fields that every hop has."""

    time: int
    netns: Netns
    hook: Hook
    in_iface: str
    out_iface: str
    mark: int
    clone: bool


class HopBuilder:
    """Builds hops from events, with the names of the numbers in them.

    Args:
        namespaces: Names of network namespaces, by inode.
        processes: SocketOwners that own sockets.
        drop_reasons: Drop reason name by number, of the kernel that wrote the events.
        function: Gives the name of the kernel function that contains an address.
        version: See Lookups.
        programs: eBPF programs at interfaces; None = they are not known.

    Attributes:
        lookups: The look-ups of the packet that is being explained.
    """

    def __init__(
        self,
        namespaces: NamespaceNames,
        processes: SocketOwners,
        drop_reasons: Mapping[int, str],
        function: Callable[[int], str],
        version: Callable[[], int] | None = None,
        programs: AttachedPrograms | None = None,
    ) -> None:
        self.lookups, self._reasons = Lookups(namespaces, processes, function, version, programs), drop_reasons
        self._ipvs_connections = IpvsConnections()
        self._listeners: LruDict[tuple[int, str, int], int] = LruDict(LISTENERS_KEPT, "listening sockets")
        self._listener_changes = 0
        self._makers: dict[int, Callable[[Event, _Step, ResolvedRules], Hop]] = {
            Kind.EVENT_HOOK: self._hook,
            Kind.EVENT_TABLE: self._table,
            Kind.EVENT_CHAIN: self._chain,
            Kind.EVENT_NAT: self._nat,
            Kind.EVENT_NAT_HOOK: self._nat_hook,
            Kind.EVENT_IPVS: self._ipvs,
            Kind.EVENT_SOCKET: self._socket,
            Kind.EVENT_SYN: self._syn,
            Kind.EVENT_ACCEPT: self._accept,
            Kind.EVENT_REQUEST: self._request,
            Kind.EVENT_DROP: self._drop,
            Kind.EVENT_REDIRECT: self._redirect,
            Kind.EVENT_REWRITE: self._program_rewrite,
            Kind.EVENT_CLUE: self._detail,
        }

    @property
    def version(self) -> int | None:
        """Equal as long as whatever was looked up for a packet would be found again; None = not known."""
        version = self.lookups.version
        return None if version is None else version + self._listener_changes + self._listeners.evicted

    def make(self, e: Event, rules: ResolvedRules = NO_RULES) -> Hop:
        """Builds the hop of an event. `rules`: the rules that acted at it."""
        step: _Step = {
            "time": e.time,
            "netns": self.lookups.name(e.netns),
            "hook": record.hook(e),
            "in_iface": _text(e.in_name),
            "out_iface": _text(e.out_name),
            "mark": e.mark,
            "clone": bool(e.flags & Flag.FLAG_CLONE),
        }
        return self._makers[e.kind](e, step, rules)

    def _hook(self, e: Event, step: _Step, rules: ResolvedRules) -> HookHop:
        return HookHop(verdict=record.verdict(e), **step)

    def _table(self, e: Event, step: _Step, rules: ResolvedRules) -> TableHop:
        verdict, reject = _decision(e)
        return TableHop(table=_text(e.table), verdict=verdict, reject=reject, rule_trace=rules.trace, **step)

    def _chain(self, e: Event, step: _Step, rules: ResolvedRules) -> ChainHop:
        table = rules.table or f"{NFT_FAMILIES.get(e.state, '')} {_text(e.table)}{CUT if e.manip & 1 else ''}".strip()
        chain = rules.chain or _text(e.chain) + (CUT if e.manip & 2 else "")
        verdict, reject = _decision(e)
        return ChainHop(table=table, chain=chain, verdict=verdict, reject=reject, rule_trace=rules.trace, **step)

    def _nat(self, e: Event, step: _Step, rules: ResolvedRules) -> NatHop:
        return NatHop(
            nat=rewrite(e),
            evidence=Evidence.DERIVED,
            rule_trace=rules.trace,
            from_conntrack=rules.from_conntrack,
            **step,
        )

    def _ipvs(self, e: Event, step: _Step, rules: ResolvedRules) -> IpvsHop:
        decision = self._ipvs_connections.decision(e)
        if decision.real:
            return IpvsNatHop(decision=decision, nat=rewrite(e), evidence=Evidence.DERIVED, **step)
        verdict, reject = _decision(e)
        return IpvsRefusalHop(decision=decision, verdict=verdict, reject=reject, **step)

    def _nat_hook(self, e: Event, step: _Step, rules: ResolvedRules) -> NatHookHop:
        return NatHookHop(verdict=record.verdict(e), **step)

    def _socket(self, e: Event, step: _Step, rules: ResolvedRules) -> SocketHop:
        socket, evidence = self.find_socket(self.socket_use(e))
        return SocketHop(socket=socket, evidence=evidence, **step)

    @staticmethod
    def socket_use(e: Event) -> SocketUse:
        """The socket of a SOCKET event."""
        state = record.TCP_STATES[e.state] if e.protocol == 6 and e.state < len(record.TCP_STATES) else ""
        return SocketUse(e.object, state, e.netns, record.address(e.dst), e.dport)

    def find_socket(self, use: SocketUse) -> tuple[Socket, Evidence]:
        """The socket that received a packet, with its process, and how the process is known."""
        listener_key = use.netns, use.address, use.port
        if use.state == "LISTEN":
            self._listener_changes += self._listeners.get(listener_key) != use.inode
            self._listeners[listener_key] = use.inode
        pid, command = self.lookups.owner(use.inode)
        if pid or use.state == "LISTEN" or listener_key not in self._listeners:
            return Socket(use.inode, use.state, pid, command), Evidence.OBSERVED
        # Not accepted yet, or already closed: it belongs to the process of its listener.
        owner = self.lookups.owner(self._listeners[listener_key])
        return Socket(use.inode, use.state, *owner), Evidence.DERIVED

    def _handshake(self, e: Event, step: _Step, stage: str) -> HandshakeHop:
        accepted = {0: False, 1: True}.get(e.verdict)
        handshake = Handshake(stage, accepted, e.accept_len, e.accept_max, e.syn_len, stage == "SYN" and e.reason == 1)
        return HandshakeHop(handshake=handshake, **step)

    def _syn(self, e: Event, step: _Step, rules: ResolvedRules) -> HandshakeHop:
        return self._handshake(e, step, "SYN")

    def _accept(self, e: Event, step: _Step, rules: ResolvedRules) -> HandshakeHop:
        return self._handshake(e, step, "ACK")

    def _request(self, e: Event, step: _Step, rules: ResolvedRules) -> HandshakeHop:
        return self._handshake(e, step, "request")

    def _detail(self, e: Event, step: _Step, rules: ResolvedRules) -> DetailHop:
        detail = decision_detail.read(e)
        if isinstance(e, DetailEvent) and detail.what == decision_detail.CONNECT and (program := self._replacing(e)):
            detail = replace(detail, facts={**detail.facts, "changed": program.text})
        if isinstance(e, DetailEvent) and detail.what == decision_detail.LOOKUP:
            chosen = lookup_decision(e.time, self.lookups.programs(e.netns, NO_INTERFACE, LOOKUP.point, e.time))
            detail = replace(detail, facts={**detail.facts, "chosen": chosen.text})
        return DetailHop(detail=detail, **step)

    def _replacing(self, e: DetailEvent) -> ProgramAction | None:
        """What is known of the program that replaced the address that a socket asked for; None = nothing."""
        place = replacing_place(e.detail)
        if not e.detail.object:
            return None
        periods = self.lookups.programs(NO_NETNS_INODE, e.detail.object, place.point, e.time)
        return program_drop(place, "", e.time, periods) if periods else None

    def _drop(self, e: Event, step: _Step, rules: ResolvedRules) -> DropHop:
        reason = reason_name(e.reason, self._reasons)
        after_socket = bool(e.flags & Flag.FLAG_AT_SOCKET)
        function = self.lookups.function(e.object)
        program = self._program(e, step["in_iface"], reason, function)
        return DropHop(verdict=Verdict.DROP, drop=Drop(reason, function, after_socket, program), **step)

    def _redirect(self, e: Event, step: _Step, rules: ResolvedRules) -> RedirectHop:
        target = _text(e.chain) or (f"interface {e.accept_len}" if e.accept_len else "")
        way = program_steps.helper(e), bool(e.manip & RedirectWay.REDIRECT_INGRESS)
        return RedirectHop(redirect=Redirect(target, *way, self._acting(e)), **step)

    def _program_rewrite(self, e: Event, step: _Step, rules: ResolvedRules) -> NatHop:
        nat = Nat(program_steps.REWRITTEN, record.header(e), record.original(e))
        return NatHop(nat=nat, program=self._acting(e), **step)

    def _acting(self, e: Event) -> ProgramAction | None:
        """What is known of the program that redirected or rewrote the packet; None = nothing."""
        asked = program_steps.questions(e)
        answers = [self.lookups.programs(netns, ifindex, point, e.time) for netns, ifindex, point in asked]
        return program_steps.acting_program(e, asked, answers)

    def _program(self, e: Event, iface: str, reason: str, function: str) -> ProgramAction | None:
        """What is known of the program that dropped the packet; None = nothing, or no program did."""
        place = place_of(reason, function, e.manip)
        key = place_key(place, e.netns, e.in_ifindex, e.table) if place else None
        if place is None or key is None:
            return None
        periods = self.lookups.programs(*key, place.point, e.time)
        if place is LOOKUP:
            return lookup_decision(e.time, periods)
        iface = "" if place.point in CGROUP_POINTS else iface
        return program_drop(place, iface, e.time, periods, bool(e.manip & record.DROP_FILTERED)) if periods else None


def reason_name(number: int, names: Mapping[int, str]) -> str:
    """The name of a drop reason; of one that is not known, its subsystem and its number there. "" = no reason."""
    if number in names:
        return names[number]
    subsystem = names.get(number >> SUBSYSTEM_SHIFT << SUBSYSTEM_SHIFT, "") if number >> SUBSYSTEM_SHIFT else ""
    if subsystem:
        return f"{subsystem} {number - (number >> SUBSYSTEM_SHIFT << SUBSYSTEM_SHIFT)}"
    return str(number) if number else ""


@lru_cache(4096)
def _text(name: bytes) -> str:
    """A NUL-terminated kernel name. Bytes after the NUL are left over from an earlier, longer name."""
    return c_text(name)


def _decision(e: Event) -> tuple[AnyVerdict, str]:
    """The verdict of rules or of IPVS, and how REJECT answered the packet ("" = another verdict)."""
    if not e.flags & Flag.FLAG_REJECT:
        return record.verdict(e), ""
    if e.reason == TCP_RESET:
        return Verdict.REJECT, "tcp-reset"
    family = {2: "IPv4", 10: "IPv6"}.get(e.pf) or record.family(e)  # the packet may be gone, and its header with it
    names = ICMP_UNREACHABLE if family == "IPv4" else ICMP6_UNREACHABLE
    return Verdict.REJECT, names.get(e.reason, f"icmp code {e.reason}")


def rewrite(e: Event) -> Nat:
    """The header before and after NAT, with the kind of translation."""
    before, after = record.header(e), record.header(record.rewritten(e))
    destination, in_reply = e.manip & 1, e.manip & 2
    masquerade = e.flags & Flag.FLAG_MASQ
    # In the reply direction the source was the original destination, so a rewritten source undoes a DNAT.
    of_destination = bool(destination) != bool(in_reply)
    kind = "DNAT" if of_destination else "MASQUERADE" if masquerade else "SNAT"
    return Nat(f"reverse {kind}" if in_reply else kind, before, after)
