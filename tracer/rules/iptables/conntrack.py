# SPDX-License-Identifier: Apache-2.0
"""Match conntrack, computed from a packet's connection.

A connection's original tuple never changes, and the others of its values do not change while a table runs, so the event at the
table's end shows what the match saw. The exceptions:

- Table raw may assign or remove the connection (targets CT and NOTRACK); the search for the path knows whether it did.
- Table nat translates one end of the connection, and only while that end is not translated (nf_nat_inet_fn). So the status bit
  of that end was not set when the match ran; if it is set now, the reply tuple was another one then.
- Another CPU may set a bit of the status at any time. No bit of --ctstatus is ever cleared, so what is equal when the table
  begins and when it ends was so between.
- The time until the connection expires (--ctexpire) is not known.

Bits and structures: include/uapi/linux/netfilter/xt_conntrack.h; the match: net/netfilter/xt_conntrack.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tracer.events import cstruct, record
from tracer.events.record import Event
from tracer.events.table_trace import SHAPE_AT, SHAPE_MASK, STATUS_CHANGED, WATCHED, Shape
from tracer.rules.packet_view import ConnectionEnds, ConnectionView, PacketView
from tracer.rules.xt_options import CONNTRACK_OPTIONS_AT

_INVALID, _SNAT, _DNAT, _UNTRACKED = 1 << 0, 1 << 6, 1 << 7, 1 << 8
"""XT_CONNTRACK_STATE_*, the bits of --ctstate."""
_WITHOUT_CONNECTION = _INVALID | _UNTRACKED
_IS_REPLY = 3
"""IP_CT_IS_REPLY: conntrack infos from here on are those of the reply direction."""
_RELATED = (1, 4)
"""Conntrack infos of a packet that is related to the connection, such as an ICMP error about it."""
_STATUS_KNOWN = 15
"""Bits of the status that --ctstatus names: IPS_EXPECTED, IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED."""
_SOURCE_HOOKS = (1, 4)
"""Hooks in which table nat translates sources: INPUT and POSTROUTING (HOOK2MANIP in net/netfilter/nf_nat_core.c)."""
_SOURCE_TRANSLATED, _DESTINATION_TRANSLATED, _CONNECTED, _KNOWN, _STATUS = (
    cstruct.define("records/event.h", f"TABLE_{name}") for name in ("SNAT", "DNAT", "CT", "CT_KNOWN", "STATUS")
)


def connection_of(e: Event, table: str) -> ConnectionView | None:
    """The connection of a packet as the rules of a table saw it; None = not known.

    Args:
        e: The TABLE event, with the fields of a whole event.
        table: Name of the table.
    """
    if not e.manip & _KNOWN:
        return None
    if not e.manip & _CONNECTED:
        return ConnectionView(_UNTRACKED if e.ct_info == record.UNTRACKED else _INVALID)
    state = 1 << (e.ct_info % _IS_REPLY + 1)
    is_nat = table == "nat"
    own = _SOURCE_TRANSLATED if e.hook in _SOURCE_HOOKS else _DESTINATION_TRANSLATED
    translated = e.manip & ~own if is_nat else e.manip
    state |= (_SNAT if translated & _SOURCE_TRANSLATED else 0) | (_DNAT if translated & _DESTINATION_TRANSLATED else 0)
    is_status_known = e.state & WATCHED and not e.state & STATUS_CHANGED
    return ConnectionView(
        state,
        e.ct_info >= _IS_REPLY,
        e.manip >> _STATUS & _STATUS_KNOWN if is_status_known else None,
        None if _has_own_protocol(e) else e.protocol,
        ConnectionEnds(e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport),
        None if is_nat and e.manip & own else ConnectionEnds(e.reply_src, e.reply_sport, e.reply_dst, e.reply_dport),
    )


def _has_own_protocol(e: Event) -> bool:
    """Whether the protocol in the packet's header may be another one than that of its connection."""
    is_error = e.protocol in record.ICMP and e.ct_info in _RELATED
    return is_error or e.state >> SHAPE_AT & SHAPE_MASK in (Shape.SHAPE_UNKNOWN, Shape.SHAPE_BROKEN)


_STATE, _PROTOCOL, _STATUS_OPTION, _EXPIRES, _DIRECTION, _ALIAS = 1 << 0, 1 << 1, 1 << 6, 1 << 7, 1 << 12, 1 << 13
"""XT_CONNTRACK_*, the options of the match; the last one has no effect on the answer (-m state)."""
_ADDRESSES = (1 << 2, 1 << 3, 1 << 4, 1 << 5)
"""XT_CONNTRACK_ORIGSRC, ORIGDST, REPLSRC, REPLDST."""
_PORTS = (1 << 8, 1 << 9, 1 << 10, 1 << 11)
"""XT_CONNTRACK_ORIGSRC_PORT, ORIGDST_PORT, REPLSRC_PORT, REPLDST_PORT."""
_KNOWN_OPTIONS = _STATE | _PROTOCOL | sum(_ADDRESSES) | _STATUS_OPTION | sum(_PORTS) | _DIRECTION | _ALIAS
_PORTS_AT, _HIGH_PORTS_AT = 138, 154
"""Offsets in struct xt_conntrack_mtinfo1 to 3: of origsrc_port, and in the last one of origsrc_port_high."""
_MASKS = {1: "BB", 2: "HH", 3: "HH"}
"""Format of state_mask and status_mask by revision."""
REVISIONS = tuple(_MASKS)


class _Options(NamedTuple):
    """The options of a match. used, inverted: those that it has, and those of them that are inverted."""

    used: int
    inverted: int
    states: int
    statuses: int


def _options(revision: int, data: bytes) -> _Options:
    return _Options(*struct.unpack_from("<HH" + _MASKS[revision], data, CONNTRACK_OPTIONS_AT))


def port_ranges(revision: int, data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields each range of ports that the match tests: (place, lowest, highest).

    The place is 0 for the port of the original source, 1 original destination, 2 reply source, 3 reply destination.
    """
    options = _options(revision, data)
    for place, option in enumerate(_PORTS):
        if options.used & option:
            # Revision 3 has ranges in host order, the others have one port in network order.
            (low,) = struct.unpack_from("<H" if revision == 3 else ">H", data, _PORTS_AT + 2 * place)
            (high,) = struct.unpack_from("<H", data, _HIGH_PORTS_AT + 2 * place) if revision == 3 else (low,)
            yield place, low, high


def conntrack_matches(revision: int, data: bytes, p: PacketView) -> bool | None:
    """Computes conntrack_mt; None if the result depends on something that is not known."""
    connection = p.connection
    if connection is None:
        return None
    options = _options(revision, data)
    if options.used & _STATE and bool(options.states & connection.state) == bool(options.inverted & _STATE):
        return False
    if connection.state & _WITHOUT_CONNECTION:
        return bool(options.used & _STATE)
    if options.used & _DIRECTION and connection.is_reply == (not options.inverted & _DIRECTION):
        return False
    is_unsure = bool(options.used & ~_KNOWN_OPTIONS)
    for option, answer in _answers(revision, data, options, p.family, connection):
        if answer is None:
            is_unsure = True
        elif answer == bool(options.inverted & option):
            return False
    return None if is_unsure else True


def _answers(
    revision: int, data: bytes, options: _Options, family: str, connection: ConnectionView
) -> Iterator[tuple[int, bool | None]]:
    """Yields each further option with its answer, as if it were not inverted; None = not known."""
    for place, option in enumerate(_ADDRESSES):
        if options.used & option:
            ends = connection.ends[place // 2]
            yield option, None if ends is None else _is_in(data[32 * place :], (ends.src, ends.dst)[place % 2], family)
    if options.used & _PROTOCOL:
        (protocol,) = struct.unpack_from("<H", data, _PORTS_AT - 2)
        yield _PROTOCOL, None if connection.protocol is None else connection.protocol == protocol
    for place, low, high in port_ranges(revision, data):
        ends = connection.ends[place // 2]
        yield _PORTS[place], None if ends is None else low <= (ends.sport, ends.dport)[place % 2] <= high
    if options.used & _STATUS_OPTION:
        yield _STATUS_OPTION, _status_answer(options.statuses, connection.status)


def _is_in(network: bytes, address: bytes, family: str) -> bool:
    """Whether an address of 16 bytes is in a network: an address and a mask, each a union nf_inet_addr of 16 bytes."""
    size = 4 if family == "ip" else 16
    wanted, mask, own = (int.from_bytes(part, "big") for part in (network[:size], network[16 : 16 + size], address[-size:]))
    return (own ^ wanted) & mask == 0


def _status_answer(wanted: int, status: int | None) -> bool | None:
    if status is None:
        return None
    return True if wanted & status else None if wanted & ~_STATUS_KNOWN else False
