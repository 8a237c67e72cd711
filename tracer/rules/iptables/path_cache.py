# SPDX-License-Identifier: Apache-2.0
"""Rule traces of table runs. Most runs repeat an earlier one: the same rules, header and notes give the same path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tracer.events import record
from tracer.events.record import Event, Flag
from tracer.events.table_trace import SHAPE_AT, SHAPE_MASK, TableTrace
from tracer.model.rule import RuleTrace
from tracer.rules.iptables.conntrack import connection_of
from tracer.rules.iptables.matches import PortTest
from tracer.rules.iptables.path_search import TableObservation, reconstruct
from tracer.rules.iptables.table_reader import TableSnapshot
from tracer.rules.packet_view import PacketView
from tracer.util.lru_dict import LruDict

TRACES_KEPT = 4096
"""Most rule traces kept for identical table runs."""


class TestedPort(NamedTuple):
    """A port of a packet that was compared with a range of ports."""

    port: int
    low: int
    high: int


class TableRun(NamedTuple):
    """What is known of one run of a table.

    Attributes:
        trace: The rule trace, without its ruleset.
        tested: Ports on which it depends, with the ranges that they were compared with.
    """

    trace: RuleTrace
    tested: frozenset[TestedPort]


class PathCache:
    """Computes the rule traces of table runs, and keeps them.

    Args:
        watched: Whether the function of (kind, name, revision, family) is watched.
    """

    def __init__(self, watched: Callable[[tuple[str, str, int, str]], bool]) -> None:
        self._watched = watched
        self._traces: LruDict[object, TableRun] = LruDict(TRACES_KEPT, "rule traces of table runs")

    def find(self, e: Event, snapshot: TableSnapshot, address: int, table_traces: Sequence[TableTrace]) -> TableRun:
        """The run of a TABLE event.

        Args:
            e: The event.
            snapshot: The rules, with their table.
            address: Address of the rules' blob.
            table_traces: The records of the run's steps.

        Raises:
            MalformedTable: The rules cannot be decoded.
        """
        assert snapshot.table
        table_traces = sorted(table_traces, key=lambda n: n.first)
        steps = tuple(s for n in table_traces for s in n.steps)
        lost = table_traces[0].count - len(steps) if table_traces else 0
        packet = _packet_view(e, snapshot.table.name, table_traces[0].mark if table_traces else e.mark)
        jumps = table_traces[0].jumps if table_traces else ()
        verdict = record.verdict(e)
        hotdrop = table_traces[0].hotdrop if table_traces else 0
        key = (snapshot.ended, address, e.hook, verdict, packet, steps, lost, jumps, hotdrop, e.mark)
        found = self._traces.get(key)
        if found is None:
            rules = snapshot.rules
            observation = TableObservation(steps, lost, jumps, self._watched, hotdrop, e.mark)
            tests: set[PortTest] = set()
            trace = reconstruct(snapshot.table, lambda entry: rules[entry.at], e.hook, verdict, packet, observation, tests)
            ports = packet.ports
            tested = frozenset(TestedPort(ports[t.place], t.low, t.high) for t in tests if t.place < len(ports))
            found = self._traces[key] = TableRun(trace, tested)
        return found


def _packet_view(e: Event, table: str, mark: int) -> PacketView:
    v4, icmp = e.pf == 2, e.protocol in (1, 58)
    src, dst = (int.from_bytes(a[12:] if v4 else a, "big") for a in (e.src, e.dst))
    arrived, leaves = (int.from_bytes(n.ljust(16, b"\0"), "big") for n in (e.in_name, e.out_name))
    ports: tuple[int, int] = (0, 0) if icmp else (e.sport, e.dport)
    kind = record.icmp(e) or (0, 0)
    fragment = bool(e.flags & Flag.FLAG_FRAGMENT)
    family = "ip" if v4 else "ip6"
    shape = e.state >> SHAPE_AT & SHAPE_MASK
    connection = connection_of(e, table)
    return PacketView(
        family, src, dst, arrived, leaves, e.protocol, fragment, *ports, kind, e.tcp_flags, mark, shape, connection
    )
