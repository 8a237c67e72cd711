# SPDX-License-Identifier: Apache-2.0
"""Recording without explaining: what a replay will ask of the machine is asked now, for each batch, while it can be answered.

In place of tracer/packets/assembler.py: it takes the batches, and no packet comes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.cni_journal import RecordedCniCache
from tracer.events import payload
from tracer.events.record import Kind
from tracer.events.record import address as address_of
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.node.namespace_view import NamespaceInspector
from tracer.node.namespaces import Namespaces
from tracer.node.node import HostReader
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.octets import c_text

NODE_SECONDS, COUNTER_SECONDS = 2.0, 10.0
"""How often the node is asked who listens and how it is set, and what the namespaces of listeners have counted."""
MOST_LISTENERS = 64
MOST_WAYS = 16
"""Destinations and interfaces of dropped packets that are asked for in one turn."""
LONG_BYTES = 1280
"""From this length on a dropped packet may have been too long for its way: IPv6's least MTU; few IPv4 networks have less."""
COUNT, LIMIT = "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"

OF_NODE = (
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/conf/all/route_localnet",
    COUNT,
    LIMIT,
)
OF_LISTENER = (
    "net/core/somaxconn",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_tw_recycle",
)
"""The settings that findings ask for, of the node, and of a listener's namespace."""
OF_SPACE = (
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_tw_recycle",
    "net/ipv4/tcp_tw_reuse",
    COUNT,
    LIMIT,
)
"""Those that verdicts on SYNs ask for, of each namespace that has a name."""
LISTEN = 10


class Prefetcher(PacketAssembler):
    """Asks what a replay will want to know."""

    def __init__(
        self,
        namespaces: Namespaces,
        processes: Processes,
        function: Callable[[int], str],
        rules: RuleResolver,
        node: HostReader,
        sandboxes: RecordedCniCache | None,
        inspector: NamespaceInspector,
    ) -> None:
        self._namespaces, self._processes, self._function = namespaces, processes, function
        self._hits, self._node, self._sandboxes, self._spaces = rules, node, sandboxes, inspector
        self._looked = self._counted = float("-inf")
        self._listeners: dict[int, None] = {}
        self.events = 0

    def feed(self, batch: npt.NDArray[Any]) -> None:
        events, _ = payload.split(self._hits.prefetch(batch))
        self.events += len(events)
        if len(events):
            self._ask(events)
        if self._sandboxes:
            self._sandboxes.look()
        now = time.monotonic()
        if now - self._looked >= NODE_SECONDS:
            self._looked = now
            self._ask_node(now)

    def _ask(self, events: npt.NDArray[Any]) -> None:
        for netns in np.unique(events["netns"]).tolist():
            self._namespaces.name(netns)
        sockets = events[(events["kind"] == Kind.EVENT_SOCKET) & (events["object"] > 0)]
        listening = set(sockets["object"][(sockets["state"] == LISTEN) & (sockets["protocol"] == 6)].tolist())
        for inode in np.unique(sockets["object"]).tolist():
            pid, _ = self._processes.owner(inode)
            if pid and inode in listening and len(self._listeners) < MOST_LISTENERS:
                self._listeners[pid] = None
        drops = events[events["kind"] == Kind.EVENT_DROP]
        if len(drops):
            self._ask_of_drops(drops, events)

    def _ask_of_drops(self, drops: npt.NDArray[Any], events: npt.NDArray[Any]) -> None:
        """What findings ask when a packet was dropped: counters as they are then, and where it should have left."""
        for address in np.unique(drops["object"]).tolist():
            self._function(address)
        node = self._node
        node.conntrack_counters()
        for name in (COUNT, LIMIT):
            node.setting(name)
        long = drops[drops["length"] >= LONG_BYTES]
        for to in sorted(set(long["dst"].tolist()))[:MOST_WAYS]:
            self._leaves(node.way_out(address_of(to)))
        here = events["netns"] == self._namespaces.node
        for name in np.unique(events["out_name"][here])[:MOST_WAYS].tolist():
            self._leaves(c_text(name))

    def _leaves(self, interface: str) -> None:
        """An interface by which a packet that was too long should have left."""
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
        for name in OF_NODE:
            node.setting(name)
        for name in OF_LISTENER:
            node.setting(name, 0)
        for name in self._spaces.names():
            self._spaces.bound(name)
            for setting in OF_SPACE:
                self._spaces.setting(name, setting)
        for pid in self._listeners:
            for name in OF_LISTENER:
                node.setting(name, pid)
            if now - self._counted >= COUNTER_SECONDS:
                node.counters(pid)
        self._counted = now if now - self._counted >= COUNTER_SECONDS else self._counted

    def add_losses(self, losses: Sequence[Loss], now: int) -> None:
        """Losses are on the tape."""

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that packets met are being read."""
        return self._hits.is_reading

    @property
    def open(self) -> int:
        return 0

    def chunks(self, now: int | None = None) -> Iterator[list[Packet]]:
        return iter(())
