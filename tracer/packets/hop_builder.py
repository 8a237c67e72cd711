# SPDX-License-Identifier: Apache-2.0
"""From one event to one hop: each kind of event has its function here, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tracer.events import decision_detail, record
from tracer.events.record import CUT, Event, Flag, Kind
from tracer.model.evidence import Evidence
from tracer.model.packet import Drop, Handshake, Hop, Nat, Socket
from tracer.model.rule import NFT_FAMILIES
from tracer.node.namespaces import Namespaces
from tracer.node.processes import Processes
from tracer.packets.ipvs_connections import IpvsConnections
from tracer.util.bounded import Bounded
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

LISTENERS_KEPT = 1 << 14
"""Listening sockets that are remembered, by namespace, address and port."""


class HopBuilder:
    """Makes hops; knows the names that numbers stand for.

    drop_reasons: name by number, of the kernel that wrote the events. function: the kernel function an address lies in.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        processes: Processes,
        drop_reasons: dict[int, str],
        function: Callable[[int], str],
    ) -> None:
        self.namespaces, self._processes = namespaces, processes
        self._reasons, self._function = drop_reasons, function
        self._ipvs_connections = IpvsConnections()
        self._listeners: Bounded[tuple[int, str, int], int] = Bounded(LISTENERS_KEPT)
        self._makers: dict[int, Callable[[Event], dict[str, Any]]] = {
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
            Kind.EVENT_CLUE: self._detail,
        }

    def make(self, e: Event, **more: Any) -> Hop:
        """The hop that an event tells of. more: fields that others know, or know better."""
        return Hop(
            time=e.time,
            netns=self.namespaces.name(e.netns),
            hook=record.hook(e),
            in_iface=_text(e.in_name),
            out_iface=_text(e.out_name),
            mark=e.mark,
            clone=bool(e.flags & Flag.FLAG_CLONE),
            **(self._makers[e.kind](e) | more),
        )

    def _hook(self, e: Event) -> dict[str, Any]:
        return {"what": "hook", "verdict": record.verdict(e)}

    def _table(self, e: Event) -> dict[str, Any]:
        return {"what": "table", "table": _text(e.table), **_verdict_of_rules(e)}

    def _chain(self, e: Event) -> dict[str, Any]:
        table = f"{NFT_FAMILIES.get(e.state, '')} {_text(e.table)}{CUT if e.manip & 1 else ''}".strip()
        names = {"table": table, "chain": _text(e.chain) + (CUT if e.manip & 2 else "")}
        return {"what": "chain", **names, **_verdict_of_rules(e)}

    def _nat(self, e: Event) -> dict[str, Any]:
        return {"what": "nat", "verdict": "", "nat": rewrite(e), "evidence": Evidence.DERIVED}

    def _ipvs(self, e: Event) -> dict[str, Any]:
        told = self._ipvs_connections.decision(e)
        if not told.real:
            return {"what": "ipvs", "ipvs": told, **_verdict_of_rules(e)}
        return {"what": "ipvs", "ipvs": told, "verdict": "", "nat": rewrite(e), "evidence": Evidence.DERIVED}

    def _nat_hook(self, e: Event) -> dict[str, Any]:
        return {"what": "nat-hook", "verdict": record.verdict(e)}

    def _socket(self, e: Event) -> dict[str, Any]:
        state = record.TCP_STATES[e.state] if e.protocol == 6 and e.state < len(record.TCP_STATES) else ""
        place = (e.netns, *_receiver(e))
        inode = e.object
        if state == "LISTEN":
            self._listeners[place] = inode
        pid, command = self._processes.owner(inode)
        if pid or state == "LISTEN" or place not in self._listeners:
            return {"what": "socket", "socket": Socket(inode, state, pid, command)}
        # Not accepted yet, or closed by now: its listener's process is the one that has it.
        owner = self._processes.owner(self._listeners[place])
        return {"what": "socket", "socket": Socket(inode, state, *owner), "evidence": Evidence.DERIVED}

    def _handshake(self, e: Event, stage: str) -> dict[str, Any]:
        accepted = {0: False, 1: True}.get(e.verdict)
        told = Handshake(stage, accepted, e.accept_len, e.accept_max, e.syn_len, stage == "SYN" and e.reason == 1)
        return {"what": "handshake", "verdict": "DROP" if accepted is False else "", "handshake": told}

    def _syn(self, e: Event) -> dict[str, Any]:
        return self._handshake(e, "SYN")

    def _accept(self, e: Event) -> dict[str, Any]:
        return self._handshake(e, "ACK")

    def _request(self, e: Event) -> dict[str, Any]:
        return self._handshake(e, "request")

    def _detail(self, e: Event) -> dict[str, Any]:
        return {"what": "clue", "detail": decision_detail.read(e.object)}

    def _drop(self, e: Event) -> dict[str, Any]:
        reason = self._reasons.get(e.reason, str(e.reason) if e.reason else "")
        after_socket = bool(e.flags & Flag.FLAG_AT_SOCKET)
        return {"what": "drop", "verdict": "DROP", "drop": Drop(reason, self._function(e.object), after_socket)}


@lru_cache(4096)
def _text(name: bytes) -> str:
    """A kernel name. What stands behind its end is left from an earlier, longer one."""
    return c_text(name)


def _receiver(e: Event) -> tuple[str, int]:
    return record.address(e.dst), e.dport


def _verdict_of_rules(e: Event) -> dict[str, Any]:
    if not e.flags & Flag.FLAG_REJECT:
        return {"verdict": record.verdict(e)}
    if e.reason == TCP_RESET:
        return {"verdict": "REJECT", "reject": "tcp-reset"}
    family = {2: "IPv4", 10: "IPv6"}.get(e.pf) or record.family(e)  # the packet may be gone, and its header with it
    names = ICMP_UNREACHABLE if family == "IPv4" else ICMP6_UNREACHABLE
    return {"verdict": "REJECT", "reject": names.get(e.reason, f"icmp code {e.reason}")}


def rewrite(e: Event) -> Nat:
    """What NAT makes of the header."""
    before, after = record.header(e), record.header(record.rewritten(e))
    destination, in_reply = e.manip & 1, e.manip & 2
    masquerade = e.flags & Flag.FLAG_MASQ
    # In the reply direction the source was the original destination, so a rewritten source undoes a DNAT.
    of_destination = bool(destination) != bool(in_reply)
    kind = "DNAT" if of_destination else "MASQUERADE" if masquerade else "SNAT"
    return Nat(f"reverse {kind}" if in_reply else kind, before, after)
