# SPDX-License-Identifier: Apache-2.0
"""Makes the kernel's data for tests: arrays of `struct event`, BTF blobs, and the names of the numbers in them."""

from __future__ import annotations

import ipaddress
import struct
from typing import Any

import numpy as np

from tracer.events import record
from tracer.events.record import DTYPE, Event, EventArray, Flag, Kind
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import IP_HOOKS, KERNEL_VERDICTS
from tracer.model.packet import Packet
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder

Ends = tuple[str, int, str, int]
NODE, POD, OTHER_POD = 100, 200, 300
NAMES = {NODE: HOST, POD: Netns("pod-a"), OTHER_POD: Netns("pod-b")}
REASONS = {2: "NO_SOCKET", 6: "NETFILTER_DROP", 7: "TCP_RESET", 11: "OTHERHOST"}
FUNCTIONS = {
    0x10: "nf_hook_slow", 0x20: "tcp_v4_rcv", 0x30: "__udp4_lib_rcv", 0x40: "skb_queue_purge",
    0x50: "udp_destruct_common", 0x60: "neigh_invalidate", 0x70: "ip_rcv_core",
}  # fmt: skip
SECOND = 1_000_000_000
PARTS = frozenset({Kind.EVENT_NFT_RULE, Kind.EVENT_STEPS, Kind.EVENT_RULESET, Kind.EVENT_RAW})
"""Kinds of records that are no hop of their own; they add data to the hop that follows."""


def raw(address: str) -> bytes:
    """16 bytes, IPv4 as ::ffff:a.b.c.d."""
    packed = ipaddress.ip_address(address).packed
    return b"\0" * 10 + b"\xff\xff" + packed if len(packed) == 4 else packed


def swapped(ends: Ends) -> Ends:
    return ends[2], ends[3], ends[0], ends[1]


def event(kind: str, **given: Any) -> EventArray:
    """An array of one event. Kinds, hooks, verdicts and flags are given by name; header, orig and reply as (src, sport, dst,
    dport); any other field as in bpf/records/event.h."""
    out = np.zeros(1, DTYPE)
    row = out[0]
    hook, verdict = given.pop("hook", ""), given.pop("verdict", "ACCEPT")
    row["kind"], row["hook"] = Kind["EVENT_" + kind], IP_HOOKS.index(hook) if hook else 255
    row["verdict"] = KERNEL_VERDICTS.index(verdict) if isinstance(verdict, str) else verdict
    row["flags"] = sum(Flag["FLAG_" + name] for name in given.pop("flags", "").split())
    for name, prefix in (("header", ""), ("orig", "orig_"), ("reply", "reply_")):
        ends = given.pop(name, None)
        if ends:
            row[prefix + "src"], row[prefix + "dst"] = raw(ends[0]), raw(ends[2])
            row[prefix + "sport"], row[prefix + "dport"] = ends[1], ends[3]
    for way in ("in", "out"):
        iface = given.get(way + "_name")
        if iface:
            row[way + "_ifindex"] = 2 + sum(iface if isinstance(iface, bytes) else iface.encode())
    for name, value in given.items():
        row[name] = value.encode() if isinstance(value, str) else value
    return out


class Trail:
    """The events of one packet, numbered in order, one microsecond apart.

    Fields given to the constructor or to `now` hold for all later events, as a header does until it is rewritten.
    """

    def __init__(self, header: Ends, packet: int = 1 << 8, start: int = SECOND, **fields: Any) -> None:
        self.packet, self.time, self.hop = packet, start, 0
        self.fields = {"header": header, "netns": NODE, "protocol": 6, "tcp_flags": 2, "length": 60, "seq": 7, **fields}
        self.rows: list[EventArray] = []

    def now(self, **fields: Any) -> Trail:
        self.fields.update(fields)
        return self

    def add(self, kind: str, **fields: Any) -> Trail:
        """Adds one event. With orig and reply it has a conntrack entry; flags="NO_HEADER" omits the header."""
        given = {**self.fields, **fields}
        flags = given.pop("flags", "")
        if "NO_HEADER" in flags:
            for name in ("header", "orig", "reply", "protocol", "tcp_flags", "length", "seq", "ct_info"):
                given.pop(name, None)
        elif given.get("orig"):
            flags += " HAS_CT"
        numbers = {"packet": self.packet, "time": self.time, "hop": self.hop}
        self.rows.append(event(kind, flags=flags, **{**numbers, **given}))
        self.hop += 1
        self.time += 1000
        return self

    def hook(self, hook: str, **fields: Any) -> Trail:
        return self.add("HOOK", hook=hook, **fields)

    def table(self, hook: str, table: str, **fields: Any) -> Trail:
        return self.add("TABLE", hook=hook, table=table, **fields)

    def nat(self, hook: str, manip: int, after: Ends, **fields: Any) -> Trail:
        """Adds a translation; `after` is the header from then on. manip: 0 source, 1 destination, +2 in the reply direction."""
        self.add("NAT", hook=hook, manip=manip, **fields)
        return self.now(header=after)

    def lose(self) -> Trail:
        """Leaves out the number of one event, as when the ring buffer had no room for it."""
        self.hop += 1
        return self

    @property
    def batch(self) -> EventArray:
        return np.concatenate(self.rows)


class Names:
    """Namespaces that do not exist on the machine."""

    def __init__(self) -> None:
        self.node = self.own = NODE

    def name(self, inode: int, requests: int = 1) -> Netns:
        return NAMES.get(inode, Netns(f"netns {inode}"))

    def own_name(self) -> Netns:
        return self.name(self.own)

    def named(self) -> list[int]:
        return list(NAMES)

    def find(self, name: str) -> int:
        return next(inode for inode, known in NAMES.items() if known == name)


class Owners:
    """Processes that do not exist on the machine: (pid, command) by socket inode."""

    def owner(self, inode: int) -> tuple[int, str]:
        return {48213: (4242, "nginx"), 48300: (4343, "dnsmasq")}.get(inode, (0, ""))


def hops() -> HopBuilder:
    return HopBuilder(Names(), Owners(), REASONS, lambda address: FUNCTIONS.get(address, ""))


def packets(*trails: Trail) -> list[Packet]:
    """The packets assembled from all these events, in the order of their times."""
    assembler = PacketAssembler(hops())
    rows = np.concatenate([t.batch for t in trails])
    assembler.feed(rows[np.argsort(rows["time"], kind="stable")])
    return assembler.flush()


def packet(trail: Trail) -> Packet:
    (only,) = packets(trail)
    return only


class BtfBuilder:
    """Writes BTF (Documentation/bpf/btf.rst). base: the BTF that this one extends, as a module's BTF extends vmlinux's.

    Each method returns the number of the type it adds; 0 is void. A name that begins with a space means a nameless member, so
    that several nameless members fit into one dictionary.
    """

    def __init__(self, base: BtfBuilder | None = None) -> None:
        self.types, self.strings = b"", b"" if base else b"\0"
        self.next: int = base.next if base else 1
        self.known: dict[str, int] = dict(base.known) if base else {"": 0}
        self.first_string: int = base.first_string + len(base.strings) if base else 0

    def string(self, text: str) -> int:
        text = "" if text.startswith(" ") else text
        if text not in self.known:
            self.known[text] = self.first_string + len(self.strings)
            self.strings += text.encode() + b"\0"
        return self.known[text]

    def add(self, kind: int, name: str, vlen: int, size: int, tail: bytes = b"", flag: bool = False) -> int:
        info = vlen | kind << 24 | flag << 31
        self.types += struct.pack("<III", self.string(name), info, size) + tail
        self.next += 1
        return self.next - 1

    def integer(self, name: str, size: int) -> int:
        return self.add(1, name, 0, size, struct.pack("<I", size * 8))

    def pointer(self, to: int) -> int:
        return self.add(2, "", 0, to)

    def array(self, element: int, count: int) -> int:
        return self.add(3, "", 0, 0, struct.pack("<III", element, element, count))

    def struct(self, name: str, size: int, members: dict[str, tuple[int, int]], kind: int = 4) -> int:
        """members: type and offset in bytes, by name."""
        tail = b"".join(struct.pack("<III", self.string(n), t, at * 8) for n, (t, at) in members.items())
        return self.add(kind, name, len(members), size, tail)

    def bit_fields(self, name: str, size: int, members: dict[str, tuple[int, int, int]]) -> int:
        """A structure of bit fields. members: type, offset and width in bits, by name."""
        tail = b"".join(struct.pack("<III", self.string(n), t, at | width << 24) for n, (t, at, width) in members.items())
        return self.add(4, name, len(members), size, tail, flag=True)

    def union(self, name: str, size: int, members: dict[str, int]) -> int:
        return self.struct(name, size, {n: (t, 0) for n, t in members.items()}, 5)

    def enum(self, name: str, values: dict[str, int]) -> int:
        tail = b"".join(struct.pack("<Ii", self.string(n), v) for n, v in values.items())
        return self.add(6, name, len(values), 4, tail)

    def enum64(self, name: str, values: dict[str, int]) -> int:
        tail = b"".join(struct.pack("<IQ", self.string(n), v) for n, v in values.items())
        return self.add(19, name, len(values), 8, tail)

    def forward(self, name: str) -> int:
        return self.add(7, name, 0, 0)

    def typedef(self, name: str, of: int) -> int:
        return self.add(8, name, 0, of)

    def const(self, of: int) -> int:
        return self.add(10, "", 0, of)

    def function(self, name: str, parameters: dict[str, int], returns: int = 0) -> int:
        return self.add(12, name, 1, self.prototype(parameters, returns))

    def prototype(self, parameters: dict[str, int], returns: int = 0) -> int:
        tail = b"".join(struct.pack("<II", self.string(n), t) for n, t in parameters.items())
        return self.add(13, "", len(parameters), returns, tail)

    def blob(self) -> bytes:
        sizes = (0, len(self.types), len(self.types), len(self.strings))
        return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, *sizes) + self.types + self.strings


FIELDS: tuple[str, ...] = DTYPE.names or ()
SHORT = FIELDS.index("protocol")


def shortened(batch: EventArray) -> EventArray:
    """The same events as the kernel writes them: short where they repeat the last whole event, or its rewritten header."""
    out = batch.copy()
    whole: Event | None = None
    for row, e in zip(out, map(record.event, batch), strict=True):
        if e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_CLONE):
            continue
        if whole and e[SHORT:] == record.completed(e, whole)[SHORT:]:
            row["flags"] |= Flag.FLAG_SAME
            for name in FIELDS[SHORT:]:
                row[name] = np.zeros((), DTYPE[name])
        else:
            whole = e
        if e.kind == Kind.EVENT_NAT:
            whole = record.rewritten(e)
    return out
