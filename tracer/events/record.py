# SPDX-License-Identifier: Apache-2.0
"""Event records as named tuples, made from the arrays that the ring buffer reader returns.

bpf/records/event.h describes the record. `Kind`, `Flag` and `Event` repeat its members and fields for the type checker, and are
compared with it when this module is imported.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct
from tracer.events.detail_row import DecisionDetailRow, read_row
from tracer.events.nft_trace import HIT_DTYPE, NftHit
from tracer.model.endpoints import Endpoints
from tracer.model.netfilter import IP_HOOKS, KERNEL_VERDICTS, AnyVerdict, Hook, UnknownVerdict, Verdict

EventArray = npt.NDArray[np.void]
"""A batch: an array of `struct event`, or of another record of the same size."""
Slots = npt.NDArray[np.uint8]
"""Ring slots: an array of shape (n, SLOT)."""


@cstruct.enumeration("records/event.h", "event_kind")
class Kind(IntEnum):
    """Kinds of records, in `kind`."""

    EVENT_HOOK = 1
    EVENT_TABLE = 2
    EVENT_CHAIN = 3
    EVENT_NAT = 4
    EVENT_NAT_HOOK = 5
    EVENT_SOCKET = 6
    EVENT_SYN = 7
    EVENT_ACCEPT = 8
    EVENT_REQUEST = 9
    EVENT_DROP = 10
    EVENT_IPVS = 11
    EVENT_NFT_RULE = 12
    EVENT_STEPS = 13
    EVENT_RULESET = 14
    EVENT_RAW = 15
    EVENT_REDIRECT = 16
    EVENT_REWRITE = 17
    EVENT_CLUE = 20


@cstruct.enumeration("records/event.h", "event_flag")
class Flag(IntEnum):
    """Bits of `flags`. No IntFlag, which computes each `&` in Python."""

    FLAG_CLONE = 1
    FLAG_FRAGMENT = 2
    FLAG_MASQ = 4
    FLAG_HAS_CT = 8
    FLAG_NO_HEADER = 16
    FLAG_AT_SOCKET = 64
    FLAG_REJECT = 32
    FLAG_SAME = 128


@cstruct.enumeration("records/event.h", "program_place")
class ProgramPlace(IntEnum):
    """Where an eBPF program ran, in `state` of a REDIRECT or REWRITE."""

    PLACE_UNKNOWN = 0
    PLACE_TC_INGRESS = 1
    PLACE_TC_EGRESS = 2
    PLACE_XDP = 3


@cstruct.enumeration("records/event.h", "redirect_way")
class RedirectWay(IntEnum):
    """How a packet was redirected, bits of `manip` of a REDIRECT."""

    REDIRECT_INGRESS = 1
    REDIRECT_NEIGHBOUR = 2
    REDIRECT_PEER = 4
    REDIRECT_COPY = 8


@cstruct.structure("records/event.h", "event")
class Event(NamedTuple):
    """One event. Addresses have 16 bytes; names are bytes up to the last one that is not zero."""

    time: int  # ns, CLOCK_MONOTONIC
    packet: int  # identity of the packet: time when it was first seen, ns << 8 | CPU
    object: int  # DROP: code address; SOCKET, SYN, ACCEPT: socket inode; TABLE, CHAIN, IPVS: address in the kernel
    netns: int  # inode of the network namespace
    in_ifindex: int  # 0 = none
    out_ifindex: int  # 0 = none
    mark: int  # packet mark
    reason: int  # DROP: drop reason; with FLAG_REJECT: ICMP code, or 256 for a TCP reset; SYN: 1 = answered with a SYN cookie
    hop: int  # number of this event in its packet, from 0
    kind: int  # Kind
    flags: int  # Flag, or-ed
    hook: int  # index in IP_HOOKS or DEVICE_HOOKS, NO_HOOK = none
    pf: int  # protocol family of the hook: 2 ip, 7 bridge, 10 ip6, 1 inet, 5 netdev
    verdict: int  # index in KERNEL_VERDICTS, NO_VERDICT = none yet; SYN, ACCEPT, REQUEST: 1 accepted, 0 dropped, 255 not known
    ct_info: int  # enum ip_conntrack_info; IPVS: IP_VS_CONN_F_*
    manip: int  # NAT, IPVS: 0 source, 1 destination, +2 in reply direction; CHAIN: 1 table cut, +2 chain cut; TABLE, DROP: bits
    state: int  # SOCKET: index in TCP_STATES; TABLE: STEPS_*; CHAIN: family of the table; IPVS: enum ipvs_act
    table: bytes  # TABLE, CHAIN: table name; IPVS: name of the scheduler; DROP: see socket_cgroup
    protocol: int  # IP protocol number
    tcp_flags: int  # TCP_FLAGS, or-ed
    ident: int  # IPv4 identification
    zone: int  # conntrack zone
    seq: int  # TCP sequence number
    joint1: int  # 0
    src: bytes  # source address
    dst: bytes  # destination address
    orig_src: bytes  # conntrack, original direction
    orig_dst: bytes
    reply_src: bytes  # conntrack, reply direction
    reply_dst: bytes
    joint2: int  # 0
    length: int  # bytes, from the IP header on
    ack: int  # TCP acknowledgement number
    accept_len: int  # SOCKET, SYN, ACCEPT: length of the accept queue, connections; CHAIN: lower half of its run
    accept_max: int  # SOCKET, SYN, ACCEPT: the listener's backlog, connections; CHAIN: upper half of its run
    syn_len: int  # SOCKET, SYN, ACCEPT: half-open connections of the listener
    sport: int  # source port, or ICMP id
    dport: int  # destination port, or ICMP type << 8 | code
    orig_sport: int
    orig_dport: int
    reply_sport: int
    reply_dport: int
    in_name: bytes  # interface name
    out_name: bytes  # interface name
    chain: bytes  # CHAIN: name of the base chain


class DetailEvent(Event):
    """An event of kind EVENT_CLUE. It has no header; its other fields are 0 or empty."""

    detail: DecisionDetailRow


EventRow = Event | NftHit
"""One row of a batch."""

DTYPE = cstruct.dtype("records/event.h", "event")
NOTHING: EventArray = np.zeros(0, DTYPE)
"""A batch without events."""

NO_ICMP_TYPE = cstruct.define("records/event.h", "NO_ICMP_TYPE")
NO_VERDICT = cstruct.define("records/event.h", "NO_VERDICT")
DROP_FILTERED, DROP_LOOKUP = (cstruct.define("records/event.h", f"DROP_{name}") for name in ("FILTERED", "LOOKUP"))
SLOT = cstruct.define("records/event.h", "SHORT_EVENT") + 8
"""Size of a ring slot, bytes: a short event with its ring header."""
_WHOLE, DISCARDED = DTYPE.itemsize, 1 << 30
_SLOTS = (_WHOLE + 8) // SLOT
"""Ring slots of a whole event."""
CUT = "…"
"""Mark at the end of a name that a record had to cut."""
NO_HOOK = 255
UNTRACKED = 7
SUBSYSTEM_SHIFT = 16
"""Position of the subsystem's number in a drop reason, bits; 0 = the kernel itself (include/net/dropreason.h)."""
"""Value of `ct_info`: conntrack does not track the packet."""
DEVICE_HOOKS = (Hook.INGRESS, Hook.EGRESS)
NETDEV, BRIDGE = 5, 7
PROTOCOLS = {1: "ICMP", 6: "TCP", 17: "UDP", 33: "DCCP", 47: "GRE", 58: "ICMPv6", 132: "SCTP", 136: "UDPLITE"}
ICMP = frozenset({1, 58})
WITH_PORTS = frozenset({6, 17, 33, 132, 136})
TCP_FLAGS = ((2, "SYN"), (1, "FIN"), (4, "RST"), (8, "PSH"), (16, "ACK"), (32, "URG"))
TCP_STATES = (
    "", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK",
    "LISTEN", "CLOSING", "NEW_SYN_RECV",
)  # fmt: skip
_MAPPED = b"\0" * 10 + b"\xff\xff"


def unpack(slots: Slots) -> EventArray:
    """Decodes ring slots into events.

    Args:
        slots: From tracer/kernel/ring_buffer.py.

    Returns:
        The events in order, as an array of `struct event`. In a short event (Flag.FLAG_SAME) the fields from `joint1` on
        are zero.
    """
    lengths = slots[:, :4].view("<u4").ravel()
    starts = np.flatnonzero((lengths != 0) & (lengths < DISCARDED))
    # Each row is one copy of the bytes behind its ring header. At the end there may be fewer than a whole event has.
    fields = np.zeros((0, _WHOLE), np.uint8)
    complete = int(np.searchsorted(starts, len(slots) - _SLOTS, "right"))
    if complete:
        fields = np.ndarray((len(slots) - _SLOTS + 1, _WHOLE), np.uint8, np.ascontiguousarray(slots), 8, (SLOT, 1))[
            starts[:complete]
        ]
    if complete < len(starts):
        rest = np.zeros((len(starts) - complete, _WHOLE), np.uint8)
        rest[:, : SLOT - 8] = slots[starts[complete:], 8:]
        fields = np.concatenate([fields, rest])
    fields[lengths[starts] != _WHOLE, SLOT - 8 :] = 0
    return fields.view(DTYPE).ravel()


def of_kinds(rows: EventArray, *kinds: Kind) -> npt.NDArray[np.bool_]:
    """Which rows are of these kinds. A look-up in a table is 5x faster than a comparison with a member of an enumeration."""
    found: npt.NDArray[np.bool_] = _table_of(kinds).take(rows["kind"])
    return found


@lru_cache(maxsize=64)
def _table_of(kinds: tuple[Kind, ...]) -> npt.NDArray[np.bool_]:
    """For each value of `kind`, whether it is one of these."""
    table = np.zeros(256, bool)
    table[list(map(int, kinds))] = True
    return table


def chosen(rows: EventArray, are_chosen: npt.NDArray[np.bool_]) -> EventArray:
    """A copy of the chosen rows: `take` copies rows of a structure 10x faster than an index."""
    found: EventArray = rows.take(np.flatnonzero(are_chosen))
    return found


def count(slots: Slots) -> int:
    """Number of events that begin in these ring slots."""
    return int(np.count_nonzero(slots[:, :4].view("<u4")))


_OWN, _IN_NAME, _OUT_NAME, _FLAGS = (Event._fields.index(name) for name in ("protocol", "in_name", "out_name", "flags"))
_FRAGMENT = int(Flag.FLAG_FRAGMENT)


def completed(short: Event, whole: Event) -> Event:
    """A short event, completed with the fields of the packet's last whole event."""
    if short.in_ifindex and short.out_ifindex and not whole.flags & _FRAGMENT:
        return Event._make(short[:_OWN] + whole[_OWN:])
    fields = [*short[:_OWN], *whole[_OWN:]]
    fields[_FLAGS] = short.flags | whole.flags & _FRAGMENT
    if not short.in_ifindex:
        fields[_IN_NAME] = b""
    if not short.out_ifindex:
        fields[_OUT_NAME] = b""
    return Event._make(fields)


def rewritten(e: Event) -> Event:
    """A NAT event with the header after the rewrite: the inverted tuple of the connection's other direction."""
    src, sport, dst, dport = (
        (e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport)
        if e.manip & 2
        else (e.reply_src, e.reply_sport, e.reply_dst, e.reply_dport)
    )
    # The packets of an ICMP query have one id, the source's in the tuples of both directions; the type stays.
    is_icmp = e.protocol in ICMP
    if e.manip & 1:
        return e._replace(dst=src, sport=sport) if is_icmp else e._replace(dst=src, dport=sport)
    return e._replace(src=dst, sport=sport) if is_icmp else e._replace(src=dst, sport=dport)


def events(batch: EventArray) -> Iterator[EventRow]:
    """Yields the rows of a batch as named tuples with the fields of their kind."""
    hits, details = of_kinds(batch, Kind.EVENT_NFT_RULE), of_kinds(batch, Kind.EVENT_CLUE)
    if not hits.any() and not details.any():
        return map(Event._make, batch.tolist())
    rows: list[EventRow] = [_BLANK] * len(batch)
    for make, dtype, own in ((Event._make, DTYPE, ~(hits | details)), (NftHit._make, HIT_DTYPE, hits)):
        places = np.flatnonzero(own)
        for place, row in zip(places.tolist(), batch.take(places).view(dtype).tolist(), strict=True):
            rows[place] = make(row)
    for place in np.flatnonzero(details).tolist():
        rows[place] = _with_detail(batch[place : place + 1])
    return iter(rows)


def event(row: np.void) -> Event:
    """One row of a batch that is neither an EVENT_NFT_RULE nor an EVENT_CLUE."""
    return Event._make(row.item())


_BLANK = event(np.zeros(1, DTYPE)[0])


def _with_detail(row: EventArray) -> DetailEvent:
    """A row of kind EVENT_CLUE."""
    detail = read_row(row.tobytes())
    e = DetailEvent._make(
        _BLANK._replace(
            time=detail.time, packet=detail.packet, object=detail.object, netns=detail.netns, hop=detail.hop, kind=detail.kind,
            flags=detail.flags & ~Flag.FLAG_SAME | Flag.FLAG_NO_HEADER, hook=NO_HOOK,
        )
    )  # fmt: skip
    e.detail = detail
    return e


@lru_cache(maxsize=65536)
def address(raw: bytes) -> str:
    """The text of a 16-byte address; IPv4-mapped addresses as IPv4."""
    if raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


@lru_cache(maxsize=65536)
def _ends(src: bytes, sport: int, dst: bytes, dport: int, with_ports: bool) -> Endpoints:
    return Endpoints(address(src), sport if with_ports else 0, address(dst), dport if with_ports else 0)


def header(e: Event) -> Endpoints:
    """The endpoints in the packet's own header."""
    return _ends(e.src, e.sport, e.dst, e.dport, e.protocol in WITH_PORTS)


def original(e: Event) -> Endpoints:
    """Conntrack's original tuple. For an ICMP error about a connection it has the ports of that connection."""
    return _ends(e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport, e.protocol in WITH_PORTS or e.ct_info in (1, 4))


def reply(e: Event) -> Endpoints:
    """Conntrack's reply tuple."""
    return _ends(e.reply_src, e.reply_sport, e.reply_dst, e.reply_dport, e.protocol in WITH_PORTS or e.ct_info in (1, 4))


def family(e: Event) -> str:
    return "IPv4" if e.src.startswith(_MAPPED) else "IPv6"


def protocol(e: Event) -> str:
    return PROTOCOLS.get(e.protocol, str(e.protocol))


def tcp_flags(e: Event) -> str:
    """ "SYN ACK" and the like; "" for other protocols."""
    return " ".join(name for bit, name in TCP_FLAGS if e.tcp_flags & bit) if e.protocol == 6 else ""


def icmp(e: Event) -> tuple[int, int] | None:
    """Type and code of an ICMP message, stored in the port fields; None = not ICMP, or too short."""
    known = e.protocol in ICMP and not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_FRAGMENT)
    return (e.dport >> 8, e.dport & 255) if known and e.dport != NO_ICMP_TYPE else None


def hook(e: Event) -> Hook:
    """The hook; NONE = none, or one of a newer kernel.

    Hooks of bridges have the names of IP's hooks; the family of the table distinguishes them.
    """
    hooks = DEVICE_HOOKS if e.pf == NETDEV else IP_HOOKS
    if e.hook < len(hooks):
        return hooks[e.hook]
    if e.hook != len(IP_HOOKS):
        return Hook.NONE
    return Hook.BROUTING if e.pf == BRIDGE else Hook.INGRESS


def socket_cgroup(table: bytes) -> int:
    """The id of the cgroup of a dropped packet's socket; 0 = not known. table: of a DROP event."""
    return int.from_bytes(table[:8].ljust(8, b"\0"), sys.byteorder)


def run(e: Event) -> int:
    """Run of an EVENT_CHAIN, equal to `run` of the rule hits in that run; 0 = not known."""
    return int(e.accept_len | e.accept_max << 32)


def verdict(e: Event) -> AnyVerdict:
    """The verdict; NONE = none yet."""
    return Verdict.NONE if e.verdict == NO_VERDICT else verdict_of_number(e.verdict)


def verdict_of_number(number: int) -> AnyVerdict:
    """The verdict with this number in the kernel (NF_*). One of a newer kernel is shown by its number."""
    return KERNEL_VERDICTS[number] if number < len(KERNEL_VERDICTS) else UnknownVerdict(str(number))
