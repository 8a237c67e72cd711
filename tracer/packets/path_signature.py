# SPDX-License-Identifier: Apache-2.0
"""The signature of a packet: everything in its rows that shapes its explanation.

Packets with the same signature differ only in values that the explanation repeats: times, sequence numbers, lengths, the ports
that a client or a masquerading node chose. So one of them is explained, and the others are filled in from it
(path_templates.py). Signatures are computed for many packets at once, by column.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracer.events import record
from tracer.events.detail_row import DETAIL_DTYPE, DetailKind
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import DTYPE, EventArray, Flag, Kind
from tracer.packets.open_packet import OpenPacket

SIGNED_KINDS = (
    Kind.EVENT_HOOK, Kind.EVENT_TABLE, Kind.EVENT_CHAIN, Kind.EVENT_NAT, Kind.EVENT_NAT_HOOK, Kind.EVENT_SOCKET, Kind.EVENT_SYN,
    Kind.EVENT_ACCEPT, Kind.EVENT_REQUEST, Kind.EVENT_DROP, Kind.EVENT_NFT_RULE, Kind.EVENT_CLUE,
)  # fmt: skip
"""Kinds of rows that a signature can describe. A packet with another kind, as of IPVS, has no signature."""
SIGNED_DETAILS = (DetailKind.DETAIL_LISTENER, DetailKind.DETAIL_NEIGHBOUR)
"""Decision details that a signature can describe; a packet with another one has no signature."""
UNSIGNED_FLAGS = int(Flag.FLAG_CLONE | Flag.FLAG_FRAGMENT | Flag.FLAG_REJECT)
"""A packet with a copy, a fragment or a rejection has no signature."""
VALUES = ("time", "packet", "ident", "seq", "length", "ack")
"""Fields of an event that the explanation repeats at most."""
VALUES_BY_KIND: dict[int, tuple[str, ...]] = {
    Kind.EVENT_SOCKET: ("object",),
    Kind.EVENT_SYN: ("object",),
    Kind.EVENT_ACCEPT: ("object",),
    Kind.EVENT_CHAIN: ("accept_len", "accept_max"),
}
"""Further such fields: the socket, of which the process is looked up; the run of a chain."""
HIT_VALUES = ("time", "packet", "run", "registers")
"""Fields of a rule hit that are no part of a signature. The registers that matter are compared by the rules."""
PORTS = ("sport", "dport", "orig_sport", "orig_dport", "reply_sport", "reply_dport")
DETAIL_VALUES = ("time", "packet", "values", "options")
"""Fields of a decision detail that are no part of a signature. Values and options are compared when they are decoded."""
_SIZE = DTYPE.itemsize
_WORDS = _SIZE // 8
"""Length of a row, words of 8 bytes; a signature has one more word for each row."""
assert _WORDS * 8 == _SIZE
_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]
_MULTIPLIERS: _Words = np.array([secrets.randbits(64) | 1 for _ in range(_WORDS + 1)], np.uint64)
"""Random numbers that make digests of rows, new in each process: nothing that is sent can be made to have the same digest."""
_HALF = np.uint64(32)
"""Half of a word, bits."""
_HIT, _DETAIL, _CHAIN = map(int, (Kind.EVENT_NFT_RULE, Kind.EVENT_CLUE, Kind.EVENT_CHAIN))
_TRACKED, _NO_HEADER, _WITHOUT_HEADER = map(int, (Flag.FLAG_HAS_CT, Flag.FLAG_NO_HEADER, Flag.FLAG_SAME | Flag.FLAG_NO_HEADER))
"""Plain numbers: a comparison of an array with a member of an enumeration takes 5x as long."""


def _table(numbers: Iterable[int]) -> npt.NDArray[np.bool_]:
    """For each value of a byte, whether it is one of these numbers."""
    return np.isin(np.arange(256), [int(n) for n in numbers])


_SIGNED, _SIGNED_DETAILS, _HAS_PORTS = map(_table, (SIGNED_KINDS, SIGNED_DETAILS, record.WITH_PORTS))


def _start(dtype: np.dtype[np.void], name: str) -> int:
    """Offset of a field, bytes."""
    assert dtype.fields
    return int(dtype.fields[name][1])


_DETAIL_KIND = _start(DETAIL_DTYPE, "what")
_PORTS_START, _PORTS_END = _start(DTYPE, PORTS[0]), _start(DTYPE, PORTS[-1]) + 2
"""Where the ports are in a row, one behind the other."""
assert [_start(DTYPE, name) for name in PORTS] == list(range(_PORTS_START, _PORTS_END, 2))
_ORIG_SPORT, _REPLY_DPORT = map(PORTS.index, ("orig_sport", "reply_dport"))
_PORT_WEIGHTS = np.array([3**n for n in range(len(PORTS))], np.uint16)


class RowValues(NamedTuple):
    """Values of the rows of many packets, by column. Rows of one packet are in the order of their times.

    Only the times are needed of every row, and are a list: one number of an array takes longer.

    Attributes:
        time: ns, CLOCK_MONOTONIC.
        object: Inodes of sockets, and addresses in the kernel.
    """

    time: list[int]
    object: npt.NDArray[np.uint64]


HEADER_VALUES = ("length", "seq", "ack", "ident")
"""Values of a packet that its first event with a header has."""
HeaderValues: TypeAlias = tuple[int, int, int, int]
"""Of these: bytes from the IP header on, TCP sequence and acknowledgement number, IPv4 identification."""


class PathSignature(NamedTuple):
    """The signature of one packet, and the values that it leaves open.

    Attributes:
        key: Equal for packets with the same path.
        digest: Equal for equal keys, and shorter.
        ports: The source port of the connection, and the one that its answers go to; 0 = not tracked.
        header: Values of the packet's first event with a header.
        values: Values of the rows of this packet and of others.
        start: Place of the packet's first row in `values`.
        order: Positions of the packet's rows in the order of their times.
    """

    key: bytes
    digest: bytes
    ports: tuple[int, int]
    header: HeaderValues
    values: RowValues
    start: int
    order: list[int]


_OTHER_RECORDS: dict[int, tuple[tuple[str, ...], np.dtype[np.void]]] = {
    Kind.EVENT_NFT_RULE: (HIT_VALUES, HIT_DTYPE),
    Kind.EVENT_CLUE: (DETAIL_VALUES, DETAIL_DTYPE),
}
"""Values and layout of the rows that are no events."""


def _masks() -> npt.NDArray[np.uint8]:
    """For each kind, 255 at each byte that is part of a signature, as an array of shape (256, row size)."""
    masks = np.zeros((256, _SIZE), np.uint8)
    for kind in SIGNED_KINDS:
        names, dtype = _OTHER_RECORDS.get(kind, ((*VALUES, *VALUES_BY_KIND.get(kind, ())), DTYPE))
        fields = dtype.fields
        assert fields
        masks[kind] = 255
        for name in names:
            field, start = fields[name][:2]
            masks[kind, start : start + field.itemsize] = 0
    return masks


_MASKS = _masks()


def signatures(packets: Sequence[OpenPacket]) -> list[PathSignature | None]:
    """Computes the signatures of packets; None = the packet is explained on its own.

    Args:
        packets: Packets of which all rows have arrived. None of them continues an earlier one.
    """
    if not packets:
        return []
    counts = np.array([packet.count for packet in packets])
    ends = np.cumsum(counts)
    starts = ends - counts
    rows = np.frombuffer(b"".join([packet.octets for packet in packets]), DTYPE)
    owner, places = np.repeat(np.arange(len(packets)), counts), np.arange(len(rows))
    is_first = np.zeros(len(rows), bool)
    is_first[starts] = True
    order, times = places, rows["time"]
    if ((times[1:] < times[:-1]) & ~is_first[1:]).any():
        order = np.lexsort((times, owner))
        rows = rows.take(order)
        times = rows["time"]
    place = places - starts[owner]

    flags, octets, kinds = rows["flags"].copy(), rows.view(np.uint8).reshape(len(rows), _SIZE), rows["kind"].copy()
    is_hit, is_detail = kinds == _HIT, kinds == _DETAIL
    is_whole = ~is_hit & ~is_detail & (flags & _WITHOUT_HEADER == 0)
    refused = ~_SIGNED[kinds] | (flags & UNSIGNED_FLAGS != 0) | (rows["hop"] != place)
    refused |= is_first & ~is_whole & ~is_hit
    refused |= is_detail & ~_SIGNED_DETAILS[octets[:, _DETAIL_KIND]]
    refused |= is_whole & ~_HAS_PORTS[rows["protocol"]]
    is_refused = np.logical_or.reduceat(refused, starts)

    # The signed bytes of each row; then what the row shares with others of its packet.
    signed = np.empty((len(rows), _WORDS + 1), np.uint64)
    masks = _MASKS.view(np.uint64).take(kinds, axis=0)
    np.bitwise_and(rows.view(np.uint64).reshape(-1, _WORDS), masks, out=signed[:, :_WORDS])
    ports, codes = _port_codes(owner, starts, is_whole, is_whole & (flags & _TRACKED != 0), signed.view(np.uint8))
    extras = signed[:, _WORDS:].view(np.uint16)
    extras[:, 0], extras[:, 3] = codes, 0
    extras[:, 1] = (is_whole & (rows["length"] == 0)).astype(np.uint16) << 1
    extras[1:, 1] |= (times[1:] == times[:-1]) & ~is_first[1:]
    extras[:, 2] = _run_numbers(rows, owner, is_hit, is_hit | (kinds == _CHAIN))
    has_header = np.flatnonzero(~is_hit & ~is_detail & (flags & _NO_HEADER == 0))
    headers = np.append(has_header, 0).take(np.searchsorted(has_header, starts))
    own = zip(ports, zip(*(rows[name].take(headers).tolist() for name in HEADER_VALUES), strict=True), strict=True)
    values = RowValues(times.tolist(), rows["object"].copy())
    return _found(is_refused.tolist(), starts.tolist(), ends.tolist(), (order - starts[owner]).tolist(), own, values, signed)


def digests_of(rows: _Words, multipliers: _Words) -> _Words:
    """A digest of each row: multiples of its words, added.

    A product loses the upper bits of a word: rows that differ in the upper bytes of two words would often have equal
    digests. So the upper half of each word is folded into its lower half before.

    Args:
        rows: Words, an array of shape (rows, words).
        multipliers: Odd random numbers, one for each word.
    """
    digests: _Words = np.einsum("ij,j->i", rows ^ (rows >> _HALF), multipliers)
    return digests


def _found(
    is_refused: Sequence[bool],
    starts: Sequence[int],
    ends: Sequence[int],
    order: list[int],
    own: Iterable[tuple[tuple[int, int], HeaderValues]],
    values: RowValues,
    signed: _Words,
) -> list[PathSignature | None]:
    """The signatures, from the places of the rows of each packet and the signed bytes of all rows."""
    found: list[PathSignature | None] = []
    octets, digests, size = signed.tobytes(), digests_of(signed, _MULTIPLIERS).tobytes(), signed.itemsize * signed.shape[1]
    for refused, start, end, (ports, header) in zip(is_refused, starts, ends, own, strict=True):
        if refused:
            found.append(None)
        else:
            key, digest = octets[start * size : end * size], digests[start * 8 : end * 8]
            found.append(PathSignature(key, digest, ports, header, values, start, order[start:end]))
    return found


def _port_codes(
    owner: npt.NDArray[np.intp],
    starts: npt.NDArray[np.intp],
    is_whole: npt.NDArray[np.bool_],
    is_tracked: npt.NDArray[np.bool_],
    octets: _Bytes,
) -> tuple[list[tuple[int, int]], npt.NDArray[np.uint16]]:
    """Finds the chosen ports of each packet, and removes them from its rows.

    Args:
        owner: Number of the packet of each row.
        starts: Place of the first row of each packet.
        is_whole: Rows with a header of their own.
        is_tracked: Those of them with a connection.
        octets: The bytes of all rows; their chosen ports become 0.

    Returns:
        (ports, codes): two ports for each packet; for each row a number that says which of its ports are the first chosen port
        of the packet, and which are the second.
    """
    at = np.flatnonzero(is_whole)
    packets = owner[at]
    # By port, so that each comparison is one of two columns.
    fields = np.ascontiguousarray(octets[at, _PORTS_START:_PORTS_END].view("<u2").T)
    chosen = np.zeros((2, len(starts)), np.uint16)
    tracked = np.flatnonzero(is_tracked[at])
    if len(tracked):
        tracked_packets = packets[tracked]
        first = np.flatnonzero(np.append(True, tracked_packets[1:] != tracked_packets[:-1]))
        chosen[0, tracked_packets[first]] = fields[_ORIG_SPORT, tracked[first]]
        # A node that masquerades the connection chooses another port, which no row before its POSTROUTING has.
        reply_ports = fields[_REPLY_DPORT, tracked]
        masqueraded = np.flatnonzero(reply_ports != chosen[0, tracked_packets])
        chosen[1, tracked_packets[masqueraded]] = reply_ports[masqueraded]
    is_source, is_reply = _has_ports(fields, chosen[:, packets])
    is_ambiguous = _has_ambiguous_port(is_source | is_reply, is_tracked[at])
    if is_ambiguous.any():
        chosen[:, packets[is_ambiguous]] = 0
        is_source, is_reply = _has_ports(fields, chosen[:, packets])
    is_reply &= ~is_source
    codes = np.zeros(len(owner), np.uint16)
    codes[at] = _PORT_WEIGHTS @ (is_source + is_reply * np.uint16(2))
    fields[is_source | is_reply] = 0
    octets[at, _PORTS_START:_PORTS_END] = np.ascontiguousarray(fields.T).view(np.uint8)
    return list(zip(*chosen.tolist(), strict=True)), codes


def _has_ports(fields: npt.NDArray[np.uint16], chosen: npt.NDArray[np.uint16]) -> list[npt.NDArray[np.bool_]]:
    """For each of the two chosen ports, which fields have it. chosen: of the packet of each row, 0 = none."""
    return [(fields == port) & (port != 0) for port in chosen]


def _has_ambiguous_port(is_chosen: npt.NDArray[np.bool_], is_tracked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether a chosen port of a packet is also the port of its service, which is no value that packets may differ in.

    Args:
        is_chosen: Which ports of whole rows are a chosen port of the packet.
        is_tracked: Rows with a connection.
    """
    source, destination, asked, answering = (is_chosen[PORTS.index(n)] for n in ("sport", "dport", "orig_dport", "reply_sport"))
    found: npt.NDArray[np.bool_] = is_tracked & (asked | answering) | source & destination
    return found


def _run_numbers(
    rows: EventArray, owner: npt.NDArray[np.intp], is_hit: npt.NDArray[np.bool_], is_in_run: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint16]:
    """For each row that belongs to a run of an nftables chain, the number of the run in its packet."""
    numbers = np.zeros(len(rows), np.uint16)
    at = np.flatnonzero(is_in_run)
    if not len(at):
        return numbers
    runs = rows["accept_len"].astype(np.uint64) | rows["accept_max"].astype(np.uint64) << np.uint64(32)
    runs[is_hit] = rows.view(HIT_DTYPE)["run"][is_hit]
    own, own_runs = owner[at], runs[at]
    # Most rows belong to the run of the row before: only the others are sorted.
    is_new = np.append(True, (own_runs[1:] != own_runs[:-1]) | (own[1:] != own[:-1]))
    begun = np.flatnonzero(is_new)
    own, own_runs = own[begun], own_runs[begun]
    order = np.lexsort((own_runs, own))
    sorted_runs, sorted_owner = own_runs[order], own[order]
    number = np.cumsum(np.append(True, (sorted_runs[1:] != sorted_runs[:-1]) | (sorted_owner[1:] != sorted_owner[:-1])))
    found = np.empty(len(begun), np.uint16)
    found[order] = number - number[np.searchsorted(sorted_owner, sorted_owner)] + 1
    numbers[at] = found[np.cumsum(is_new) - 1]
    return numbers
