# SPDX-License-Identifier: Apache-2.0
"""Event records as named tuples, made from the arrays that the ring buffer reader returns.

The fields are those of `struct event`; bpf/records/event.h documents each of them.
"""

from __future__ import annotations

import socket
from collections import namedtuple
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct
from tracer.model.packet import Endpoints

DTYPE = cstruct.dtype("records/event.h", "event")
Kind: Any = cstruct.enum("records/event.h", "event_kind")
Flag: Any = cstruct.enum("records/event.h", "event_flag")

NOTHING: npt.NDArray[Any] = np.zeros(0, DTYPE)
"""A batch without events."""

NO_ICMP_TYPE = cstruct.define("records/event.h", "NO_ICMP_TYPE")
NO_VERDICT = cstruct.define("records/event.h", "NO_VERDICT")
SLOT = cstruct.define("records/event.h", "SHORT_EVENT") + 8
"""Size of a ring slot, bytes: a short event with its ring header."""
_WHOLE, DISCARDED = DTYPE.itemsize, 1 << 30

_Event: Any = namedtuple("_Event", DTYPE.names or ())  # type: ignore[misc]
Event = Any
"""One row of a batch: fields by name, addresses as 16 bytes, names as bytes."""

HIT_DTYPE = cstruct.dtype("records/nft_trace.h", "nft_rule_trace")
Trace: Any = cstruct.enum("records/nft_trace.h", "nft_trace_kind")
_NftHit: Any = namedtuple("_NftHit", HIT_DTYPE.names or ())  # type: ignore[misc]
NftHit = Any
"""One row of kind EVENT_NFT_RULE: the fields of struct nft_rule_trace (bpf/records/nft_trace.h)."""
DETAIL_DTYPE = cstruct.dtype("records/decision_detail.h", "decision_detail")
DetailKind: Any = cstruct.enum("records/decision_detail.h", "decision_detail_kind")
_Detail: Any = namedtuple("_Detail", DETAIL_DTYPE.names or ())  # type: ignore[misc]
DecisionDetailRow = Any
"""`object` of a row of kind EVENT_CLUE: the fields of struct decision_detail (bpf/records/decision_detail.h)."""
PARTS = frozenset({Kind.EVENT_NFT_RULE, Kind.EVENT_STEPS, Kind.EVENT_RULESET, Kind.EVENT_RAW})
"""Kinds that are no hop of their own; they add data to the hop that follows."""

CUT = "…"
"""Mark at the end of a name that a record had to cut."""
NO_HOOK = 255
HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
DEVICE_HOOKS = ("INGRESS", "EGRESS")
NETDEV, BRIDGE = 5, 7
VERDICTS = ("DROP", "ACCEPT", "STOLEN", "QUEUE", "REPEAT", "STOP")
PROTOCOLS = {1: "ICMP", 6: "TCP", 17: "UDP", 33: "DCCP", 47: "GRE", 58: "ICMPv6", 132: "SCTP", 136: "UDPLITE"}
ICMP = frozenset({1, 58})
WITH_PORTS = frozenset({6, 17, 33, 132, 136})
TCP_FLAGS = ((2, "SYN"), (1, "FIN"), (4, "RST"), (8, "PSH"), (16, "ACK"), (32, "URG"))
TCP_STATES = (
    "", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK",
    "LISTEN", "CLOSING", "NEW_SYN_RECV",
)  # fmt: skip
_MAPPED = b"\0" * 10 + b"\xff\xff"


def unpack(slots: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Decodes ring slots into events.

    Args:
        slots: Array of shape (n, SLOT), from tracer/kernel/ring_buffer.py.

    Returns:
        The events in order, as an array of `struct event`. In a short event (Flag.FLAG_SAME) the fields from `joint1` on
        are zero.
    """
    lengths = slots[:, :4].view("<u4").ravel()
    starts = np.flatnonzero((lengths != 0) & (lengths < DISCARDED))
    out = np.zeros(len(starts), DTYPE)
    fields = out.view(np.uint8).reshape(len(starts), _WHOLE)
    fields[:, : SLOT - 8] = slots[starts, 8:]
    whole = np.flatnonzero(lengths[starts] == _WHOLE)
    for n in range(1, (_WHOLE + 8) // SLOT):
        fields[whole, n * SLOT - 8 : (n + 1) * SLOT - 8] = slots[starts[whole] + n]
    return out


def count(slots: npt.NDArray[np.uint8]) -> int:
    """Number of events that begin in these ring slots."""
    return int(np.count_nonzero(slots[:, :4].view("<u4")))


_OWN = (DTYPE.names or ()).index("protocol")
_FRAGMENT = int(Flag.FLAG_FRAGMENT)


def completed(short: Event, whole: Event) -> Event:
    """A short event, completed with the fields of the packet's last whole event."""
    e: Event = _Event._make((*short[:_OWN], *whole[_OWN:]))
    if e.in_ifindex and e.out_ifindex and not whole.flags & _FRAGMENT:
        return e
    names = {name: b"" for name, there in (("in_name", e.in_ifindex), ("out_name", e.out_ifindex)) if not there}
    return e._replace(flags=e.flags | whole.flags & _FRAGMENT, **names)


def rewritten(e: Event) -> Event:
    """A NAT event with the header after the rewrite: the inverted tuple of the connection's other direction."""
    src, sport, dst, dport = (
        (e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport)
        if e.manip & 2
        else (e.reply_src, e.reply_sport, e.reply_dst, e.reply_dport)
    )
    ends = {"dst": src, "dport": sport} if e.manip & 1 else {"src": dst, "sport": dport}
    if e.protocol in ICMP:  # one id, the source's in the tuples of both directions; the type stays
        ends |= {"sport": sport, "dport": e.dport}
    after: Event = e._replace(**ends)
    return after


def events(batch: npt.NDArray[Any]) -> Iterator[Event]:
    """Yields the rows of a batch as named tuples with the fields of their kind."""
    hits, details = batch["kind"] == Kind.EVENT_NFT_RULE, batch["kind"] == Kind.EVENT_CLUE
    if not hits.any() and not details.any():
        return map(_Event._make, batch.tolist())
    rows: list[Any] = [None] * len(batch)
    for make, dtype, chosen in ((_Event._make, DTYPE, ~(hits | details)), (_NftHit._make, HIT_DTYPE, hits)):
        places = np.flatnonzero(chosen)
        for place, row in zip(places.tolist(), batch[places].view(dtype).tolist(), strict=True):
            rows[place] = make(row)
    for place in np.flatnonzero(details).tolist():
        rows[place] = _with_detail(batch[place : place + 1])
    return iter(rows)


_BLANK: Event = _Event._make(np.zeros(1, DTYPE).tolist()[0])


def _with_detail(row: npt.NDArray[Any]) -> Event:
    """An event without a header; its `object` is the decision detail."""
    short = np.ascontiguousarray(row).view(np.uint8)[: DETAIL_DTYPE.itemsize].view(DETAIL_DTYPE)
    detail: Any = _Detail._make(short.tolist()[0])
    detail = detail._replace(values=tuple(map(int, detail.values)), options=bytes(detail.options))
    common = {name: getattr(detail, name) for name in ("time", "packet", "netns", "hop", "kind", "flags")}
    return _BLANK._replace(object=detail, hook=NO_HOOK, **common)


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


def hook(e: Event) -> str:
    """Name of the hook. Hooks of bridges have the names of IP's hooks; the family of the table distinguishes them."""
    hooks = DEVICE_HOOKS if e.pf == NETDEV else HOOKS
    if e.hook < len(hooks):
        return hooks[e.hook]
    return ("BROUTING" if e.pf == BRIDGE else "INGRESS") if e.hook == len(HOOKS) else ""


def run(e: Event) -> int:
    """Run of an EVENT_CHAIN, equal to `run` of the rule hits in that run; 0 = not known."""
    return int(e.accept_len | e.accept_max << 32)


def verdict(e: Event) -> str:
    """Name of the verdict; "" = none yet."""
    if e.verdict == NO_VERDICT:
        return ""
    return VERDICTS[e.verdict] if e.verdict < len(VERDICTS) else str(e.verdict)
