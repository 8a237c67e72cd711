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


@cstruct.structure("records/decision_detail.h", "decision_detail")
class DecisionDetailRow(NamedTuple):
    """One row of kind EVENT_CLUE."""

    time: int  # ns, CLOCK_MONOTONIC
    packet: int  # identity of the packet
    object: int  # RESET: socket inode; CONNECT: id of the socket's cgroup
    netns: int  # inode of the network namespace
    values: tuple[int, ...]  # four numbers, see bpf/records/decision_detail.h
    hop: int  # number of this record in its packet, from 0
    kind: int  # EVENT_CLUE
    flags: int  # enum event_flag, or-ed
    what: int  # DetailKind
    status: int  # LISTENER: tcp_syncookies; TIME_WAIT: enum tcp_tw_status; NEIGHBOUR: NUD_*; RESET: 1 = by a socket
    state: int  # TIME_WAIT: 6, or 5 for FIN_WAIT2; RESET: TCP state of the socket; NEIGHBOUR: address family of the next hop
    option_bytes: int  # LISTENER, TIME_WAIT: bytes of TCP options
    spare: int  # CONNECT: port that the socket asked for; else 0
    options: bytes  # LISTENER, TIME_WAIT: TCP options of the SYN, 40 bytes


DETAIL_DTYPE = cstruct.dtype("records/decision_detail.h", "decision_detail")
_PACKING = cstruct.packing("records/decision_detail.h", "decision_detail")
_VALUES = DecisionDetailRow._fields.index("values")
_COUNT = DETAIL_DTYPE["values"].shape[0]


def read_row(octets: bytes) -> DecisionDetailRow:
    """Decodes a row. octets: from its first byte on; further bytes are ignored."""
    fields = _PACKING.unpack_from(octets)
    end = _VALUES + _COUNT
    return DecisionDetailRow._make((*fields[:_VALUES], fields[_VALUES:end], *fields[end:]))
