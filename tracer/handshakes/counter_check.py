# SPDX-License-Identifier: Apache-2.0
"""Compares the kernel's counters of each namespace with the packets of this run: N counted, N explained.

A counted packet that is not explained is not a packet of this run, or it was lost; the output shows it in both cases.
docs/syns.md has the table of counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tracer.handshakes import _cause_helpers
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.hop import DecisionDetail, DetailHop, DropHop, Handshake, HandshakeHop, Hop
from tracer.model.namespace_name import Netns
from tracer.model.packet import Packet
from tracer.node.namespace_questions import NamespaceInspector
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import AnyPacket
from tracer.util.questions import value_of

COUNTERS = (
    "ListenOverflows", "ListenDrops", "TCPReqQFullDrop", "TCPReqQFullDoCookies", "SyncookiesSent", "PAWSPassive", "PAWSEstab",
    "PAWSTimewait", "IPReversePathFilter", "conntrack_drop", "conntrack_insert_failed",
)  # fmt: skip


class CounterCheck:
    """Counters from the creation of this object to the end, of the namespaces that have a name at its creation."""

    def __init__(self, inspector: NamespaceInspector) -> None:
        self._inspector = inspector
        self._counters = PathMemo(lambda packet: tuple(explained_by(packet)))
        self._before: dict[Netns, dict[str, int]] = {}
        self._explained: Counter[tuple[Netns, str]] = Counter()
        for name in value_of(inspector.names()) or ():
            self._before[name] = value_of(inspector.counters(name)) or {}

    def feed(self, packet: AnyPacket) -> None:
        """Takes a closed packet."""
        for netns, counter in self._counters.of(packet):
            if netns in self._before:
                self._explained[netns, counter] += 1

    def differences(self) -> list[CounterMismatch]:
        """Each counter that changed or should have changed, by namespace, also where both numbers agree."""
        found = []
        for netns, before in sorted(self._before.items()):
            after = value_of(self._inspector.counters(netns)) or {}
            for counter in COUNTERS:
                # A difference needs a value from the start. The counters of a module that was loaded later began with 0.
                if not before or counter not in after:
                    continue
                counted, explained = after[counter] - before.get(counter, 0), self._explained[netns, counter]
                if counted or explained:
                    found.append(CounterMismatch(netns, counter, counted, explained))
        return found


def explained_by(packet: Packet) -> Iterator[tuple[Netns, str]]:
    """Yields (namespace, counter) for each count that this packet caused in the kernel."""
    for hop in packet.hops:
        if hop.clone:
            continue
        for counter in _counters_of_hop(packet, hop):
            yield hop.netns, counter


def _counters_of_hop(packet: Packet, hop: Hop) -> Iterable[str]:
    match hop:
        case HandshakeHop():
            return _counters_of_handshake(packet, hop.handshake)
        case DetailHop():
            return _counters_of_detail(hop.detail)
        case DropHop() if hop.drop.reason == "IP_RPFILTER":
            return ("IPReversePathFilter",)
        case DropHop() if hop.drop.reason == "TCP_RFC7323_PAWS" and "SYN" not in packet.tcp_flags:
            return ("PAWSEstab",)
    return ()


def _counters_of_detail(detail: DecisionDetail) -> Iterable[str]:
    if detail.what == "table-full":
        return ("conntrack_drop",)
    if detail.what == "confirm":
        return "conntrack_drop", "conntrack_insert_failed"
    if detail.what == "time-wait" and detail.facts.get("answer") != "taken over":
        # The counter has its own name since 6.14; only the one that the kernel has is compared.
        return ("PAWSEstab", "PAWSTimewait") if _cause_helpers.is_old(detail) else ()
    return ()


def _counters_of_handshake(packet: Packet, handshake: Handshake) -> Iterator[str]:
    """The counters that tcp_conn_request and tcp_v4_syn_recv_sock increase."""
    if handshake.cookie:
        yield from ("TCPReqQFullDoCookies", "SyncookiesSent")
    if handshake.accepted is not False or handshake.stage == "request":
        return
    queue, limit = handshake.accept_queue, handshake.accept_limit
    detail = packet.detail("listener")
    if detail and handshake.stage == "SYN":
        queue, limit, syn_queue = (detail.number(name) for name in ("accept_queue", "accept_limit", "syn_queue"))
        # Kernels differ in whether a SYN queue as long as its limit is full. This SYN was dropped, which decides it.
        if syn_queue > limit or (syn_queue == limit and queue <= limit):
            yield "TCPReqQFullDoCookies" if detail.number("syncookies") else "TCPReqQFullDrop"
            if not detail.number("syncookies"):
                yield "ListenDrops"
                return
    yield from (("ListenOverflows",) if queue > limit else ())
    yield "ListenDrops"
