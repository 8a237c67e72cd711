# SPDX-License-Identifier: Apache-2.0
"""Compares what the kernel counted in each namespace with the packets of this run: N counted, N explained.

What was counted and not explained is no packet of this run, or one that was lost; it is said either way. docs/syns.md has the
table of counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tracer.handshakes import _cause_helpers
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.packet import Handshake, Hop, Packet
from tracer.node.namespace_view import NamespaceInspector

COUNTERS = (
    "ListenOverflows", "ListenDrops", "TCPReqQFullDrop", "TCPReqQFullDoCookies", "SyncookiesSent", "PAWSPassive", "PAWSEstab",
    "PAWSTimewait", "IPReversePathFilter", "conntrack_drop", "conntrack_insert_failed",
)  # fmt: skip


class CounterCheck:
    """Counters from when this is made to the end, of the namespaces that have a name by then."""

    def __init__(self, inspector: NamespaceInspector) -> None:
        self._spaces = inspector
        self._before: dict[str, dict[str, int]] = {}
        self._explained: Counter[tuple[str, str]] = Counter()
        for name in inspector.names():
            self._before[name] = inspector.counters(name)

    def feed(self, packet: Packet) -> None:
        """Takes a packet that is over."""
        for netns, counter in explained_by(packet):
            self._explained[netns, counter] += 1

    def differences(self) -> list[CounterMismatch]:
        """Each counter that has moved or should have, by namespace; also where both agree."""
        found = []
        for netns, before in sorted(self._before.items()):
            after = self._spaces.counters(netns)
            for counter in COUNTERS:
                # Counted since the start is only what is known from then; a module that was loaded since began with 0.
                if not before or counter not in after:
                    continue
                counted, explained = after[counter] - before.get(counter, 0), self._explained[netns, counter]
                if counted or explained:
                    found.append(CounterMismatch(netns, counter, counted, explained))
        return found


def explained_by(packet: Packet) -> Iterator[tuple[str, str]]:
    """(namespace, counter) of everything that the kernel counted because of this packet."""
    for hop in packet.hops:
        if hop.clone:
            continue
        for counter in _of_hop(packet, hop):
            yield hop.netns, counter


def _of_hop(packet: Packet, hop: Hop) -> Iterable[str]:
    if hop.handshake:
        return _of_handshake(packet, hop.handshake)
    if hop.detail and hop.detail.what == "table-full":
        return ("conntrack_drop",)
    if hop.detail and hop.detail.what == "confirm":
        return "conntrack_drop", "conntrack_insert_failed"
    if hop.detail and hop.detail.what == "time-wait" and hop.detail.facts.get("answer") != "taken over":
        # Counted under a name of its own since 6.14; only the one that the kernel has is compared.
        known = "tsval" in hop.detail.facts and "ts_recent" in hop.detail.facts
        old = known and _cause_helpers.is_older(hop.detail.number("tsval"), hop.detail.number("ts_recent"))
        return ("PAWSEstab", "PAWSTimewait") if old else ()
    if hop.drop and hop.drop.reason == "IP_RPFILTER":
        return ("IPReversePathFilter",)
    if hop.drop and hop.drop.reason == "TCP_RFC7323_PAWS" and "SYN" not in packet.tcp_flags:
        return ("PAWSEstab",)
    return ()


def _of_handshake(packet: Packet, shake: Handshake) -> Iterator[str]:
    """As tcp_conn_request and tcp_v4_syn_recv_sock count."""
    if shake.cookie:
        yield from ("TCPReqQFullDoCookies", "SyncookiesSent")
    if shake.accepted is not False or shake.stage == "request":
        return
    queue, limit = shake.accept_queue, shake.accept_limit
    detail = packet.detail("listener")
    if detail and shake.stage == "SYN":
        queue, limit, waiting = (detail.number(name) for name in ("accept_queue", "accept_limit", "syn_queue"))
        # Whether a SYN queue that is just as long as its limit is full has changed; that this SYN was dropped tells.
        if waiting > limit or (waiting == limit and queue <= limit):
            yield "TCPReqQFullDoCookies" if detail.number("syncookies") else "TCPReqQFullDrop"
            if not detail.number("syncookies"):
                yield "ListenDrops"
                return
    yield from (("ListenOverflows",) if queue > limit else ())
    yield "ListenDrops"
