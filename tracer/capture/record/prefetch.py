# SPDX-License-Identifier: Apache-2.0
"""Recording without explanation: asks the machine, for each batch, the questions that a replay will need answers to.

It replaces tracer/packets/assembler.py: it takes the batches, and yields no packets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from tracer.capture.cni_journal import RecordedCniCache
from tracer.events import payload
from tracer.events.record import EventArray, Kind
from tracer.events.record import address as address_of
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.pipeline.assembly import AssemblyParts
from tracer.util.octets import c_text

NODE_SECONDS, COUNTER_SECONDS = 2.0, 10.0
"""Intervals of questions, seconds: about the node's listeners and settings; about the counters of listeners' namespaces."""
MAX_LISTENERS = 64
"""Maximum number of listening processes with recorded settings and counters."""
MAX_DESTINATIONS = 16
"""Maximum number of destinations, and of interfaces, of dropped packets that are asked for in one batch."""
LONG_BYTES = 1280
"""Length from which a dropped packet may be too long for its path, bytes: IPv6's minimum MTU; few IPv4 networks have less."""
CONNTRACK_COUNT, CONNTRACK_MAX = "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"

NODE_SETTINGS = (
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/conf/all/route_localnet",
    CONNTRACK_COUNT,
    CONNTRACK_MAX,
)
LISTENER_SETTINGS = (
    "net/core/somaxconn",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_tw_recycle",
)
"""The settings that findings need: of the node, and of a listener's namespace."""
NAMESPACE_SETTINGS = (
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_tw_recycle",
    "net/ipv4/tcp_tw_reuse",
    CONNTRACK_COUNT,
    CONNTRACK_MAX,
)
"""The settings that SYN verdicts need, of each namespace that has a name."""
LISTEN = 10
"""Kernel state TCP_LISTEN."""


class Prefetcher:
    """Asks the questions of a replay while they can be answered; the journal records the answers."""

    def __init__(self, parts: AssemblyParts, sandboxes: RecordedCniCache | None) -> None:
        self._namespaces, self._processes, self._function = parts.namespaces, parts.processes, parts.names.function
        self._resolver, self._node, self._sandboxes, self._inspector = parts.rules, parts.node, sandboxes, parts.inspector
        self._node_asked_at = self._counters_asked_at = float("-inf")
        self._listeners: dict[int, None] = {}
        self.events = self.unaddressed = 0

    def feed(self, batch: EventArray) -> None:
        events, _ = payload.split(self._resolver.prefetch(batch))
        self.events += len(events)
        if len(events):
            self._ask_of_events(events)
        if self._sandboxes:
            self._sandboxes.refresh()
        now = time.monotonic()
        if now - self._node_asked_at >= NODE_SECONDS:
            self._node_asked_at = now
            self._ask_node(now)

    def _ask_of_events(self, events: EventArray) -> None:
        for netns in np.unique(events["netns"]).tolist():
            self._namespaces.name(netns)
        sockets = events[(events["kind"] == Kind.EVENT_SOCKET) & (events["object"] > 0)]
        listening = set(sockets["object"][(sockets["state"] == LISTEN) & (sockets["protocol"] == 6)].tolist())
        for inode in np.unique(sockets["object"]).tolist():
            pid, _ = self._processes.owner(inode)
            if pid and inode in listening and len(self._listeners) < MAX_LISTENERS:
                self._listeners[pid] = None
        drops = events[events["kind"] == Kind.EVENT_DROP]
        if len(drops):
            self._ask_of_drops(drops, events)

    def _ask_of_drops(self, drops: EventArray, events: EventArray) -> None:
        """Asks what findings need for a dropped packet: counters at that time, and its outgoing interface."""
        for address in np.unique(drops["object"]).tolist():
            self._function(address)
        node = self._node
        node.conntrack_counters()
        for name in (CONNTRACK_COUNT, CONNTRACK_MAX):
            node.setting(name)
        long = drops[drops["length"] >= LONG_BYTES]
        for to in sorted(set(long["dst"].tolist()))[:MAX_DESTINATIONS]:
            self._ask_mtu(node.way_out(address_of(to)))
        here = events["netns"] == self._namespaces.node
        for name in np.unique(events["out_name"][here])[:MAX_DESTINATIONS].tolist():
            self._ask_mtu(c_text(name))

    def _ask_mtu(self, interface: str) -> None:
        """Asks for the MTU of an interface that a long dropped packet should have used."""
        if interface:
            self._node.mtu(interface)

    def _ask_node(self, now: float) -> None:
        node = self._node
        for protocol in ("tcp", "udp"):
            for bound in node.bound(protocol):
                found = node.listener(bound.address, bound.port, protocol)
                if found and found.pid:
                    node.is_kube_proxy(found.pid)
        node.kube_proxy()
        node.addresses()
        node.flannel_subnets()
        node.conntrack_counters()
        for name in NODE_SETTINGS:
            node.setting(name)
        for name in LISTENER_SETTINGS:
            node.setting(name, 0)
        for name in self._inspector.names():
            self._inspector.bound(name)
            for setting in NAMESPACE_SETTINGS:
                self._inspector.setting(name, setting)
        for pid in self._listeners:
            for name in LISTENER_SETTINGS:
                node.setting(name, pid)
            if now - self._counters_asked_at >= COUNTER_SECONDS:
                node.counters(pid)
        self._counters_asked_at = now if now - self._counters_asked_at >= COUNTER_SECONDS else self._counters_asked_at

    def add_losses(self, losses: Sequence[Loss], now: int) -> None:
        """Does nothing: the source records losses."""

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that packets have passed are being read."""
        return self._resolver.is_reading

    @property
    def open(self) -> int:
        return 0

    def chunks(self, now: int | None = None) -> Iterator[list[Packet]]:
        return iter(())
