# SPDX-License-Identifier: Apache-2.0
"""Decodes decision details into named facts: one function for each kind (bpf/records/decision_detail.h)."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator

from tracer.events import record
from tracer.events.detail_row import AnswerBy, DetailKind, RefusedBy
from tracer.events.detail_row import DecisionDetailRow as Row
from tracer.events.record import TCP_STATES, DetailEvent, Event
from tracer.model.hop import DecisionDetail
from tracer.util.endpoint_format import format_endpoint
from tracer.util.octets import c_text

Facts = dict[str, int | str]

TW_STATUS = ("nothing", "reset", "ack", "taken over")
"""Names of enum tcp_tw_status: the kernel's answer to a segment that hits a connection in TIME_WAIT."""
MSS, TIMESTAMP = 2, 8
TSVAL = "tsval"
"""The fact that is the clock of a packet's sender: it differs from packet to packet."""
CONNECT = "connect"
"""The kind of detail of a socket that is connected to another address than it asked for, or sends a datagram to another one."""
LOOKUP = "lookup"
"""The kind of detail of a packet of which a program of sk_lookup chose the socket."""
_NAMES = {int(kind): kind.name.removeprefix("DETAIL_").lower().replace("_", "-") for kind in DetailKind}
_TIME_WAIT_STATES = {5: "FIN_WAIT2", 6: "TIME_WAIT"}


def read(e: Event) -> DecisionDetail:
    """Decodes the record of an EVENT_CLUE.

    Raises:
        TypeError: It is an event of another kind.
    """
    if not isinstance(e, DetailEvent):
        raise TypeError(f"an event of kind {e.kind} has no decision detail")
    return of_row(e.detail)


def of_row(row: Row) -> DecisionDetail:
    """Decodes a row."""
    return DecisionDetail(_NAMES[row.what], _READERS[row.what](row))


def tcp_options(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (kind, value) of each TCP option; stops at the first malformed one."""
    at = 0
    while at < len(raw) and raw[at] != 0:
        if raw[at] == 1:
            at += 1
            continue
        if at + 1 >= len(raw) or raw[at + 1] < 2 or at + raw[at + 1] > len(raw):
            return
        yield raw[at], raw[at + 2 : at + raw[at + 1]]
        at += raw[at + 1]


def _options(row: Row) -> Facts:
    facts: Facts = {}
    for kind, value in tcp_options(row.options[: row.option_bytes]):
        if kind == TIMESTAMP and len(value) == 8:
            facts[TSVAL] = struct.unpack(">I", value[:4])[0]
        elif kind == MSS and len(value) == 2:
            facts["mss"] = struct.unpack(">H", value)[0]
    return facts


def _listener(row: Row) -> Facts:
    """Queue lengths in connections, before this SYN. syncookies, syn_backlog: sysctls. tsval, mss: of the SYN."""
    queue, limit, half_open, backlog = row.values
    facts: Facts = {"accept_queue": queue, "accept_limit": limit, "syn_queue": half_open, "syncookies": row.status}
    return facts | ({"syn_backlog": backlog} if backlog else {}) | _options(row)


def _time_wait(row: Row) -> Facts:
    """ts_recent: newest timestamp of the old connection; seconds: age of it, s; both absent = none. answer: see TW_STATUS."""
    recent, seconds, known, _ = row.values
    facts: Facts = {"answer": TW_STATUS[row.status] if row.status < len(TW_STATUS) else str(row.status)}
    facts["state"] = _TIME_WAIT_STATES.get(row.state, str(row.state))
    return facts | ({"ts_recent": recent, "seconds": seconds} if known else {}) | _options(row)


def _table_full(row: Row) -> Facts:
    return {}


def _confirm(row: Row) -> Facts:
    return {}


def _neighbour(row: Row) -> Facts:
    """ipv4, ipv6: address of the next hop; captures of earlier versions lack the family and give both. state: NUD_* bits."""
    raw = struct.pack("=4I", *row.values)
    facts: Facts = {}
    if row.state in (0, socket.AF_INET):
        facts["ipv4"] = socket.inet_ntop(socket.AF_INET, raw[:4])
    if row.state in (0, socket.AF_INET6):
        facts["ipv6"] = socket.inet_ntop(socket.AF_INET6, raw)
    return facts | {"state": row.status}


def _route(row: Row) -> Facts:
    """errno: error number of the route."""
    return {"errno": row.values[0]}


def _reset(row: Row) -> Facts:
    """reason: enum sk_rst_reason, 0 = the kernel has none. inode, state: the answering socket's, absent = no socket."""
    facts: Facts = {"reason": row.values[0]}
    if row.status:
        facts |= {"inode": row.object, "state": TCP_STATES[row.state] if row.state < len(TCP_STATES) else str(row.state)}
    return facts


def _connect(row: Row) -> Facts:
    """asked: the address and port that the socket asked for; the packet goes to, or comes from, another one."""
    return {"asked": format_endpoint(record.address(struct.pack("=4I", *row.values)), row.spare)}


_ANSWERED_BY: dict[int, str] = {
    AnswerBy.ANSWER_OF_PROCESS: "process",
    AnswerBy.ANSWER_EMPTIED: "process ended",
    AnswerBy.ANSWER_DEVICE: "interface down",
    AnswerBy.ANSWER_UNHOOKED: "rules removed",
    AnswerBy.ANSWER_FULL: "queue full",
    AnswerBy.ANSWER_NOT_READ: "receive buffer full",
}
_REFUSED_BY: dict[int, str] = {RefusedBy.QUEUE_FULL: "queue full", RefusedBy.QUEUE_NOT_READ: "receive buffer full"}
_VERDICT_BITS = 8
"""Bits of the verdict in the number that nfqnl_reinject gets; flags and the number of another queue follow."""


def _queue_answer(row: Row) -> Facts:
    """queue: its number. verdict: the answer. by: who gave it, absent = not known. pid, process: that answered."""
    number, queue, pid, _ = row.values
    facts: Facts = {"queue": queue, "verdict": str(record.verdict_of_number(number & (1 << _VERDICT_BITS) - 1))}
    if by := _ANSWERED_BY.get(row.status):
        facts["by"] = by
    if row.status == AnswerBy.ANSWER_OF_PROCESS:
        facts |= {"pid": pid, "process": c_text(row.options[: row.option_bytes])}
    return facts | {"waited_ns": row.object}


def _queue_refused(row: Row) -> Facts:
    """queue: its number. errno: the kernel's error. by: what was full, or "no process". waiting, maximum: packets."""
    error, queue, waiting, maximum = row.values
    facts: Facts = {"queue": queue, "errno": error}
    by = _REFUSED_BY.get(row.status, "no process" if error == errno.ESRCH else "")
    return facts | ({"by": by} if by else {}) | ({"waiting": waiting, "maximum": maximum} if maximum else {})


def _lookup(row: Row) -> Facts:
    """socket: the local address and port of the chosen socket."""
    return {"socket": format_endpoint(record.address(struct.pack("=4I", *row.values)), row.spare)}


_READERS: dict[int, Callable[[Row], Facts]] = {
    DetailKind.DETAIL_LISTENER: _listener,
    DetailKind.DETAIL_TIME_WAIT: _time_wait,
    DetailKind.DETAIL_TABLE_FULL: _table_full,
    DetailKind.DETAIL_CONFIRM: _confirm,
    DetailKind.DETAIL_NEIGHBOUR: _neighbour,
    DetailKind.DETAIL_ROUTE: _route,
    DetailKind.DETAIL_RESET: _reset,
    DetailKind.DETAIL_CONNECT: _connect,
    DetailKind.DETAIL_QUEUE_ANSWER: _queue_answer,
    DetailKind.DETAIL_QUEUE_REFUSED: _queue_refused,
    DetailKind.DETAIL_LOOKUP: _lookup,
}
