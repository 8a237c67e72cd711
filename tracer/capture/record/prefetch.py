# SPDX-License-Identifier: Apache-2.0
"""Recording without explanation: asks the machine, for each batch, the questions that a replay will need answers to.

It replaces tracer/packets/assembler.py: it takes the batches, and yields no packets. It asks what the assembly of packets asks
(namespaces, processes of sockets, functions), and all questions that findings and causes of SYNs declare as their ASKS.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from tracer import findings
from tracer.capture.cni_journal import RecordedCniCache
from tracer.events import payload, record
from tracer.events.detail_row import DetailKind, read_row
from tracer.events.record import EventArray, Kind
from tracer.events.record import address as address_of
from tracer.handshakes import causes
from tracer.model.bpf_program import AttachPoint
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.node.node_questions import Occasion
from tracer.packets import program_steps
from tracer.packets.program_drops import (
    LOOKUP,
    NO_INTERFACE,
    NO_NETNS_INODE,
    AttachedPrograms,
    place_key,
    place_of,
    replacing_place,
)
from tracer.pipeline.assembly import AssemblyParts, KernelNames
from tracer.util.octets import c_text
from tracer.util.questions import value_of

NODE_SECONDS, COUNTER_SECONDS = 2.0, 10.0
"""Intervals of questions, seconds: about the node, its listeners and namespaces; about counters of listeners' namespaces."""
MAX_LISTENERS = 64
"""Maximum number of listening processes with recorded settings and counters."""
MAX_DESTINATIONS = 16
"""Maximum number of destinations, of interfaces, and of namespaces of dropped packets that are asked for in one batch."""
LONG_BYTES = 1280
"""Length from which a dropped packet may be too long for its path, bytes: IPv6's minimum MTU; few IPv4 networks have less."""
LISTEN = 10
"""Kernel state TCP_LISTEN."""
TCP, UDP = 6, 17
_PROTOCOLS = {TCP: "tcp", UDP: "udp"}
NEW, SYN = 2, 2
"""Number of IP_CT_NEW in `ct_info`; flags of a segment that begins a connection."""


def ask_of_drops(events: EventArray, names: KernelNames, programs: AttachedPrograms) -> None:
    """Asks what the assembly of packets asks about drops: functions, and programs at interfaces."""
    drops = events[events["kind"] == Kind.EVENT_DROP]
    last: dict[tuple[int, int, int, int, bytes, int], int] = {}
    for *key, at in drops[["netns", "in_ifindex", "reason", "object", "table", "manip", "time"]].tolist():
        netns, ifindex, reason, address, table, manip = key
        asked = netns, ifindex, reason, address, table, manip
        last[asked] = max(at, last.get(asked, 0))
    for (netns, ifindex, reason, address, table, manip), at in last.items():
        place = place_of(names.drop_reasons.get(reason, ""), names.function(address), manip)
        if place and (where := place_key(place, netns, ifindex, table)):
            programs.periods(*where, place.point, at)


def ask_of_sockets(events: EventArray, programs: AttachedPrograms) -> None:
    """Asks for the programs that may have replaced an address at connect() or sendmsg(), or have chosen a socket."""
    last: dict[tuple[int, int, AttachPoint], int] = {}
    for row in events[events["kind"] == Kind.EVENT_CLUE]:
        detail = read_row(row.tobytes())
        if detail.what == DetailKind.DETAIL_CONNECT and detail.object:
            last[NO_NETNS_INODE, detail.object, replacing_place(detail).point] = detail.time
        elif detail.what == DetailKind.DETAIL_LOOKUP:
            last[detail.netns, NO_INTERFACE, LOOKUP.point] = detail.time
    for (netns, number, point), at in last.items():
        programs.periods(netns, number, point, at)


def ask_of_programs(events: EventArray, programs: AttachedPrograms) -> None:
    """Asks for the programs that may have redirected or rewritten packets."""
    last: dict[program_steps.Question, int] = {}
    for row in record.chosen(events, record.of_kinds(events, Kind.EVENT_REDIRECT, Kind.EVENT_REWRITE)):
        e = record.event(row)
        last.update(dict.fromkeys(program_steps.questions(e), e.time))
    for (netns, ifindex, point), at in last.items():
        programs.periods(netns, ifindex, point, at)


class Prefetcher:
    """Asks the questions of a replay while they can be answered; the journal records the answers."""

    def __init__(self, parts: AssemblyParts, sandboxes: RecordedCniCache | None) -> None:
        self._namespaces, self._processes, self._names = parts.namespaces, parts.processes, parts.names
        self._resolver, self._node, self._sandboxes, self._inspector = parts.rules, parts.node, sandboxes, parts.inspector
        self._journal, self._programs = parts.journal, parts.programs
        self._node_questions = tuple(dict.fromkeys(q for asked in findings.declared_questions().values() for q in asked))
        self._namespace_questions = tuple(dict.fromkeys(q for asked in causes.declared_questions().values() for q in asked))
        self._node_asked_at = self._counters_asked_at = float("-inf")
        self._listeners: dict[int, None] = {}
        self._has_datagrams = False
        self.is_uniform = True
        self.events = self.unaddressed = 0

    def feed(self, batch: EventArray) -> None:
        events, _ = payload.split(self._resolver.prefetch(batch))
        self.events += len(events)
        new_listeners = self._ask_of_events(events) if len(events) else []
        if self._sandboxes:
            self._sandboxes.refresh()
        occasion = self._occasion(events, new_listeners, time.monotonic())
        if occasion == Occasion():
            return
        for node_question in self._node_questions:
            node_question.prefetch(self._node, self._journal, occasion)
        for question in self._namespace_questions:
            question.prefetch(self._inspector.reader, self._inspector.journal, occasion)

    def _ask_of_events(self, events: EventArray) -> list[int]:
        """Asks what the assembly of packets asks. Returns the pids of listening processes that were not met before."""
        for netns in np.unique(events["netns"]).tolist():
            self._namespaces.name(netns)
        ask_of_drops(events, self._names, self._programs)
        ask_of_sockets(events, self._programs)
        ask_of_programs(events, self._programs)
        sockets = events[(events["kind"] == Kind.EVENT_SOCKET) & (events["object"] > 0)]
        listening = set(sockets["object"][(sockets["state"] == LISTEN) & (sockets["protocol"] == TCP)].tolist())
        found = []
        for inode in np.unique(sockets["object"]).tolist():
            pid, _ = self._processes.owner(inode)
            if pid and inode in listening and pid not in self._listeners and len(self._listeners) < MAX_LISTENERS:
                self._listeners[pid] = None
                found.append(pid)
        return found

    def _occasion(self, events: EventArray, new_listeners: list[int], now: float) -> Occasion:
        """What this batch gives reason to ask. new_listeners: pids. now: seconds, CLOCK_MONOTONIC."""
        is_periodic = now - self._node_asked_at >= NODE_SECONDS
        are_counters_due = is_periodic and now - self._counters_asked_at >= COUNTER_SECONDS
        self._node_asked_at = now if is_periodic else self._node_asked_at
        self._counters_asked_at = now if are_counters_due else self._counters_asked_at
        has_first_datagram = not self._has_datagrams and bool((events["protocol"] == UDP).any())
        self._has_datagrams |= has_first_datagram
        drops = events[events["kind"] == Kind.EVENT_DROP]
        # The event of a drop may be short: then an earlier event of the packet has its header.
        dropped = events[np.isin(events["packet"], drops["packet"])] if len(drops) else events[:0]
        long = dropped[dropped["length"] >= LONG_BYTES]
        on_node = events[events["netns"] == self._namespaces.node] if len(drops) else events[:0]
        return Occasion(
            is_periodic=is_periodic,
            has_drops=bool(len(drops)),
            has_first_datagram=has_first_datagram,
            destinations=tuple(address_of(to) for to in sorted(set(long["dst"].tolist()))[:MAX_DESTINATIONS]),
            interfaces=tuple(c_text(name) for name in np.unique(on_node["out_name"])[:MAX_DESTINATIONS].tolist()),
            listeners=tuple(self._listeners if is_periodic else new_listeners),
            counted_listeners=tuple(self._listeners if are_counters_due else new_listeners),
            drop_namespaces=tuple(self._namespaces.name(n) for n in np.unique(drops["netns"]).tolist()[:MAX_DESTINATIONS]),
            translated_ports=self._translated_ports(events),
            namespaces=tuple(value_of(self._inspector.names()) or ()) if is_periodic else (),
        )

    def _translated_ports(self, events: EventArray) -> tuple[tuple[str, int], ...]:
        """Protocols and ports of packets that NAT or IPVS sends elsewhere now, without SYNs, for which nothing is asked."""
        rows = events[(events["manip"] == 1) & (events["netns"] == self._namespaces.node)]
        sent = rows[((rows["kind"] == Kind.EVENT_NAT) & (rows["ct_info"] == NEW)) | (rows["kind"] == Kind.EVENT_IPVS)]
        if not len(sent):
            return ()
        # The event of a translation may be short: then an earlier event of the packet has its header.
        headers = events[np.isin(events["packet"], sent["packet"]) & (events["dport"] > 0)]
        begins = (headers["protocol"] == TCP) & (headers["tcp_flags"] == SYN)
        ports = {
            (_PROTOCOLS[protocol], port)
            for protocol, port in headers[~begins][["protocol", "dport"]].tolist()
            if protocol in _PROTOCOLS
        }
        return tuple(sorted(ports)[:MAX_DESTINATIONS])

    def add_losses(self, losses: Sequence[Loss], now: int) -> None:
        """Does nothing: the source records losses."""

    def horizon(self, now: int) -> int:
        return now

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that packets have passed are being read."""
        return self._resolver.is_reading

    @property
    def open(self) -> int:
        return 0

    def chunks(self, now: int | None = None) -> Iterator[list[Packet]]:
        return iter(())
