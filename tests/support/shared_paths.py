# SPDX-License-Identifier: Apache-2.0
"""Assembles packets in both ways: on shared paths, and each one on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tests.support.blobs import R, build
from tests.support.builders import FUNCTIONS, NODE, POD, REASONS, SECOND, Ends, Names, Owners, Trail, swapped
from tests.support.table_generations import READER_THREAD, FakeTableReader
from tracer.events.detail_row import DETAIL_DTYPE, DetailKind
from tracer.events.record import DTYPE, EventArray, Flag, Kind
from tracer.events.table_trace import WATCHED, TableLookup
from tracer.model.hop import trace_of
from tracer.model.namespace_name import Netns
from tracer.model.packet import Packet
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.rules.rule_resolver import RuleResolver

BLOB = 0x1000


class CountingNames(Names):
    """Counts the requests for names, as a recording does. after: number of requests from which POD has another name."""

    def __init__(self, after: int = 1 << 60) -> None:
        super().__init__()
        self.requests: Counter[int] = Counter()
        self._after = after

    def name(self, inode: int, requests: int = 1) -> Netns:
        self.requests[inode] += requests
        return Netns("pod-b") if inode == POD and self.requests[inode] > self._after else super().name(inode)


class CountingOwners(Owners):
    """Counts the requests for owners of sockets. after: number of requests from which a socket has an owner."""

    def __init__(self, after: int = 0) -> None:
        self.requests: Counter[int] = Counter()
        self._after = after

    def owner(self, inode: int) -> tuple[int, str]:
        self.requests[inode] += 1
        return super().owner(inode) if sum(self.requests.values()) > self._after else (0, "")


def rows_of(*trails: Trail) -> EventArray:
    """The rows of these packets in the order of their times."""
    rows = np.concatenate([trail.batch for trail in trails])
    return rows[np.argsort(rows["time"], kind="stable")]


def assembled(
    batches: Iterable[EventArray],
    is_sharing: bool,
    rules: RuleResolver | None = None,
    names: Names | None = None,
    owners: Owners | None = None,
    compared_every: int = 0,
) -> tuple[list[Packet], PacketAssembler]:
    """The packets of batches, each of which is closed before the next one comes."""
    hops = HopBuilder(names or Names(), owners or Owners(), REASONS, lambda address: FUNCTIONS.get(address, ""))
    assembler = PacketAssembler(hops, rules=rules, is_sharing=is_sharing, compared_every=compared_every)
    found = []
    for batch in batches:
        assembler.feed(batch)
        found += assembler.closed(int(batch["time"].max()) + SECOND)
    return found + assembler.flush(), assembler


def in_both_ways(*batches: EventArray, **parts: Callable[[], Any]) -> tuple[list[Packet], int]:
    """The packets of batches, which must be the same in both ways, and how many of them took a shared path.

    parts: Make the arguments of `assembled` for each run.
    """
    own, _ = assembled(batches, False, **{name: make() for name, make in parts.items()})
    shared, assembler = assembled(batches, True, **{name: make() for name, make in parts.items()})
    assert [repr(packet) for packet in shared] == [repr(packet) for packet in own]
    assert shared == own
    for a, b in zip(shared, own, strict=True):
        assert (a.flow and a.flow.netns) == (b.flow and b.flow.netns)
        assert [repr(trace_of(h)) for h in a.hops] == [repr(trace_of(h)) for h in b.hops]
    return shared, assembler.shared


def delivered(number: int, sport: int = 40000, start: int = 0, inode: int = 48213, **fields: Any) -> Trail:
    """A packet that a process in a pod receives."""
    ends: Ends = ("10.244.0.9", sport, "10.244.0.11", 8080)
    given = {"orig": ends, "reply": swapped(ends), "ct_info": 2, "pf": 2, "netns": POD, **fields}
    trail = Trail(ends, number << 8, start or SECOND + number * 100_000, **given)
    trail.hook("PREROUTING", in_name="eth0").hook("INPUT", in_name="eth0")
    return trail.add("SOCKET", object=inode, state=1)


def forwarded(number: int, sport: int = 40000, masqueraded: int = 0, start: int = 0, **fields: Any) -> Trail:
    """A packet to a Service that is translated and forwarded. masqueraded: its source port afterwards; 0 = the same."""
    ends: Ends = ("192.168.56.1", sport, "192.168.56.10", 30285)
    translated: Ends = ("10.244.0.1", masqueraded or sport, "10.244.0.11", 8080)
    given = {"orig": ends, "reply": swapped(translated), "ct_info": 2, "pf": 2, **fields}
    trail = Trail(ends, number << 8, start or SECOND + number * 100_000, **given)
    trail.nat("PREROUTING", 1, (ends[0], sport, "10.244.0.11", 8080), in_name="eth0").hook("PREROUTING", in_name="eth0")
    trail.hook("FORWARD", in_name="eth0", out_name="veth1")
    trail.nat("POSTROUTING", 0, translated, out_name="veth1")
    return trail.hook("POSTROUTING", out_name="veth1")


def detail(trail: Trail, kind: str, values: tuple[int, int, int, int], options: bytes = b"") -> Trail:
    """Adds a decision detail."""
    out = np.zeros(1, DTYPE)
    row = out.view(np.uint8)[: DETAIL_DTYPE.itemsize].view(DETAIL_DTYPE)
    row["time"], row["packet"], row["hop"], row["netns"] = trail.time, trail.packet, trail.hop, trail.fields["netns"]
    row["kind"], row["what"] = Kind.EVENT_CLUE, DetailKind[f"DETAIL_{kind}"]
    row["values"][0], row["options"][0, : len(options)], row["option_bytes"] = values, list(options), len(options)
    row["flags"] = Flag.FLAG_NO_HEADER
    trail.rows.append(out)
    trail.hop += 1
    trail.time += 1000
    return trail


def rules_of(chains: dict[str, list[R]], table: str = "filter") -> Callable[[], RuleResolver]:
    """Makes resolvers of a legacy table in the node's namespace, the rules of which have been read. Target DNAT is watched."""

    def make() -> RuleResolver:
        reader = FakeTableReader()
        node = TableGenerations(reader, lambda extension: extension == ("target", "DNAT", 2, "ip"))
        read(node, reader, chains, table)
        return RuleResolver(node)

    return make


def read(
    node: TableGenerations, reader: FakeTableReader, chains: dict[str, list[R]], table: str = "filter", time: int = 100
) -> None:
    """Reads a table at a time, ns."""
    blob = build(chains, name=table).table()
    request = TableRequest(NODE, "ip", table)
    reader.ready.append(TableSnapshot(request, READER_THREAD, time, time + 100, blob, SavedRules(blob, None)))
    node.request(request)
    node.add_changes([TableLookup(time + 10, READER_THREAD, NODE, "ip", table, BLOB)])


def filtered(number: int, sport: int, dport: int = 80, protocol: int = 6, **fields: Any) -> Trail:
    """A packet that the table filter accepts in FORWARD."""
    ends: Ends = ("10.244.0.9", sport, "10.0.0.2", dport)
    given = {"orig": ends, "reply": swapped(ends), "ct_info": 2, "pf": 2, "protocol": protocol, **fields}
    trail = Trail(ends, number << 8, SECOND + number * 100_000, **given)
    trail.table("FORWARD", "filter", object=BLOB, state=WATCHED).hook("FORWARD")
    return trail.hook("POSTROUTING", out_name="eth0")


def hits_of(packets: Sequence[Packet]) -> list[list[int]]:
    """The numbers of the rules that acted on each packet."""
    return [[hit.location.number for h in p.hops if (trace := trace_of(h)) for hit in trace.hits] for p in packets]
