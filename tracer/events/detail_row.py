# SPDX-License-Identifier: Apache-2.0
"""The decision detail record: what the kernel knew when it decided (bpf/records/decision_detail.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tracer.events import cstruct


@cstruct.enumeration("records/decision_detail.h", "decision_detail_kind")
class DetailKind(IntEnum):
    """Kinds of decision details, in `what`."""

    DETAIL_LISTENER = 1
    DETAIL_TIME_WAIT = 2
    DETAIL_TABLE_FULL = 3
    DETAIL_CONFIRM = 4
    DETAIL_NEIGHBOUR = 5
    DETAIL_ROUTE = 6
    DETAIL_RESET = 7
    DETAIL_CONNECT = 8
    DETAIL_QUEUE_ANSWER = 9
    DETAIL_QUEUE_REFUSED = 10
    DETAIL_LOOKUP = 11


@cstruct.enumeration("records/decision_detail.h", "queue_answer_by")
class AnswerBy(IntEnum):
    """Who gave a packet back that waited in a queue (NFQUEUE)."""

    ANSWER_UNKNOWN = 0
    ANSWER_OF_PROCESS = 1
    ANSWER_EMPTIED = 2
    ANSWER_DEVICE = 3
    ANSWER_UNHOOKED = 4
    ANSWER_FULL = 5
    ANSWER_NOT_READ = 6


@cstruct.enumeration("records/decision_detail.h", "queue_refused_by")
class RefusedBy(IntEnum):
    """What was full when a queue (NFQUEUE) did not take a packet."""

    QUEUE_FULL = 1
    QUEUE_NOT_READ = 2


@cstruct.structure("records/decision_detail.h", "decision_detail")
class DecisionDetailRow(NamedTuple):
    """One row of kind EVENT_CLUE."""

    time: int  # ns, CLOCK_MONOTONIC
    packet: int  # identity of the packet
    object: int  # RESET: socket inode; CONNECT: id of the socket's cgroup; QUEUE_ANSWER: time in the queue, ns
    netns: int  # inode of the network namespace
    values: tuple[int, ...]  # four numbers, see bpf/records/decision_detail.h
    hop: int  # number of this record in its packet, from 0
    kind: int  # EVENT_CLUE
    flags: int  # enum event_flag, or-ed
    what: int  # DetailKind
    status: int  # LISTENER: tcp_syncookies; TIME_WAIT: enum tcp_tw_status; NEIGHBOUR: NUD_*; RESET, CONNECT, QUEUE_*: see there
    state: int  # TIME_WAIT: 6, or 5 for FIN_WAIT2; RESET: TCP state of the socket; NEIGHBOUR: address family of the next hop
    option_bytes: int  # LISTENER, TIME_WAIT: bytes of TCP options; QUEUE_ANSWER: of the process's name
    spare: int  # CONNECT: port that the socket asked for; LOOKUP: port of the socket; else 0
    options: bytes  # LISTENER, TIME_WAIT: TCP options of the SYN; QUEUE_ANSWER: name of the process; 40 bytes


DETAIL_DTYPE = cstruct.dtype("records/decision_detail.h", "decision_detail")
_PACKING = cstruct.packing("records/decision_detail.h", "decision_detail")
_VALUES = DecisionDetailRow._fields.index("values")
_COUNT = DETAIL_DTYPE["values"].shape[0]


def read_row(octets: bytes) -> DecisionDetailRow:
    """Decodes a row. octets: from its first byte on; further bytes are ignored."""
    fields = _PACKING.unpack_from(octets)
    end = _VALUES + _COUNT
    return DecisionDetailRow._make((*fields[:_VALUES], fields[_VALUES:end], *fields[end:]))
