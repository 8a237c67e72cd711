# SPDX-License-Identifier: Apache-2.0
"""Decision details: from the kernel's record to named facts, and TCP options."""

from __future__ import annotations

import socket
import struct
from typing import Any

import numpy as np
import pytest

from tests.support.builders import Trail, hops, packet
from tracer.events import decision_detail, record
from tracer.events.detail_row import DETAIL_DTYPE, AnswerBy, DetailKind, RefusedBy
from tracer.events.record import Event, EventArray
from tracer.model.hop import QUEUE_ANSWER, QUEUE_REFUSED, DecisionDetail
from tracer.packets.assembler import PacketAssembler

LINUX_SYN = bytes.fromhex("020405b40402080a00001388000000000103 0307".replace(" ", ""))
"""MSS 1460, SACK permitted, timestamp 5000, window scale 7."""


def row(what: str, values: tuple[int, ...] = (), options: bytes = b"", **fields: int) -> EventArray:
    """An array of one event that is a decision detail."""
    out = np.zeros(1, record.DTYPE)
    detail = out.view(np.uint8)[: DETAIL_DTYPE.itemsize].view(DETAIL_DTYPE)
    detail["kind"], detail["what"], detail["flags"] = (
        record.Kind.EVENT_CLUE,
        DetailKind["DETAIL_" + what],
        record.Flag.FLAG_NO_HEADER,
    )
    detail["values"][0, : len(values)] = values
    detail["options"][0, : len(options)], detail["option_bytes"] = list(options), len(options)
    for name, value in fields.items():
        detail[name] = value
    return out


def read(*args: Any, **fields: Any) -> DecisionDetail:
    (event,) = record.events(row(*args, **fields))
    assert isinstance(event, Event)
    return decision_detail.read(event)


def test_listener() -> None:
    listener = read("LISTENER", (3, 128, 5, 256), LINUX_SYN, status=1)
    assert listener == DecisionDetail("listener", {
        "accept_queue": 3, "accept_limit": 128, "syn_queue": 5, "syncookies": 1, "syn_backlog": 256, "tsval": 5000, "mss": 1460,
    })  # fmt: skip
    assert listener.number("accept_queue") == 3, "a Python int, not a numpy integer"


def test_time_wait() -> None:
    wait = read("TIME_WAIT", (9000, 4, 1), LINUX_SYN, status=2, state=6)
    assert wait.facts == {
        "answer": "ack",
        "state": "TIME_WAIT",
        "ts_recent": 9000,
        "seconds": 4,
        "tsval": 5000,
        "mss": 1460,
    }
    without = read("TIME_WAIT", (0, 0, 0), status=3, state=5)
    assert without.facts == {"answer": "taken over", "state": "FIN_WAIT2"}


def test_other_details() -> None:
    assert read("TABLE_FULL") == DecisionDetail("table-full", {})
    assert read("CONFIRM") == DecisionDetail("confirm", {})
    assert read("ROUTE", (22,)).facts == {"errno": 22}
    assert read("RESET", (3,)).facts == {"reason": 3}
    assert read("RESET", (9,), status=1, state=10, object=48213).facts == {"reason": 9, "inode": 48213, "state": "LISTEN"}
    hop = struct.unpack("=4I", bytes([10, 244, 0, 99]) + bytes(12))
    assert read("NEIGHBOUR", hop, status=1).facts == {"ipv4": "10.244.0.99", "ipv6": "af4:63::", "state": 1}
    assert read("NEIGHBOUR", hop, status=1, state=2).facts == {"ipv4": "10.244.0.99", "state": 1}
    assert read("NEIGHBOUR", hop, status=1, state=10).facts == {"ipv6": "af4:63::", "state": 1}


def test_queue_answer() -> None:
    """The upper bits of a verdict are flags, or the number of another queue."""
    answer = read("QUEUE_ANSWER", (3 << 16 | 3, 41, 219), b"knp\0rest", status=AnswerBy.ANSWER_OF_PROCESS, object=1_200_000)
    assert answer == DecisionDetail(
        QUEUE_ANSWER,
        {"queue": 41, "verdict": "QUEUE", "by": "process", "pid": 219, "process": "knp", "waited_ns": 1_200_000},
    )
    emptied = read("QUEUE_ANSWER", (0, 41), status=AnswerBy.ANSWER_EMPTIED, object=5)
    assert emptied.facts == {"queue": 41, "verdict": "DROP", "by": "process ended", "waited_ns": 5}
    assert read("QUEUE_ANSWER", (9, 41), status=99).facts == {"queue": 41, "verdict": "9", "waited_ns": 0}
    names = {by: read("QUEUE_ANSWER", (0, 1), status=by).facts.get("by") for by in AnswerBy}
    assert names.pop(AnswerBy.ANSWER_UNKNOWN) is None and len(set(names.values())) == len(names) and all(names.values())


def test_queue_refused() -> None:
    full = read("QUEUE_REFUSED", (105, 41, 2, 2), status=RefusedBy.QUEUE_FULL)
    assert full == DecisionDetail(QUEUE_REFUSED, {"queue": 41, "errno": 105, "by": "queue full", "waiting": 2, "maximum": 2})
    unread = read("QUEUE_REFUSED", (105, 41, 9, 1024), status=RefusedBy.QUEUE_NOT_READ)
    assert unread.facts["by"] == "receive buffer full"
    assert read("QUEUE_REFUSED", (3, 41)).facts == {"queue": 41, "errno": 3, "by": "no process"}
    assert read("QUEUE_REFUSED", (12, 41)).facts == {"queue": 41, "errno": 12}


@pytest.mark.parametrize(("address", "text"), [("::ffff:10.96.0.10", "10.96.0.10:443"), ("fd00::a", "[fd00::a]:443")])
def test_connect(address: str, text: str) -> None:
    values = struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, address))
    assert read("CONNECT", values, object=70, state=2, spare=443) == DecisionDetail("connect", {"asked": text})


@pytest.mark.parametrize(
    ("raw", "kinds"),
    [
        (LINUX_SYN, [2, 4, 8, 3]), (b"", []), (b"\1\1\1", []), (b"\0\x02\x04\x05\xb4", []), (b"\x08", []),
        (b"\x08\x0a\x00", []), (b"\x02\x01\x05", []), (b"\x02\x04\x05\xb4\x08\x0a", [2]),
    ],
)  # fmt: skip
def test_tcp_options(raw: bytes, kinds: list[int]) -> None:
    assert [kind for kind, _ in decision_detail.tcp_options(raw)] == kinds


def test_a_decision_detail_is_a_hop_of_its_packet() -> None:
    t = Trail(("10.0.0.1", 1, "10.0.0.2", 80)).hook("INPUT")
    detail = row("ROUTE", (22,))
    for name in ("packet", "time", "hop"):
        detail[name] = getattr(t, name)
    detail["netns"] = t.fields["netns"]
    t.rows.append(detail)
    t.hop += 1
    emitted = packet(t.add("DROP", verdict="DROP", object=0x20, reason=6))
    assert [h.kind for h in emitted.hops] == ["hook", "clue", "drop"] and emitted.complete
    assert emitted.detail("route") == DecisionDetail("route", {"errno": 22}) and emitted.detail("confirm") is None
    assert not emitted.hops[1].is_decisive


def test_decision_details_alone_are_no_packet() -> None:
    """With --drops-only, a SYN that was taken has only this event."""
    assembler = PacketAssembler(hops())
    assembler.feed(row("LISTENER", (0, 128, 0, 128), packet=256, time=5))
    assert assembler.flush() == []


@pytest.mark.parametrize("flags", [0, record.Flag.FLAG_SAME, record.Flag.FLAG_SAME | record.Flag.FLAG_NO_HEADER])
def test_a_detail_never_gives_its_packet_a_header(flags: int) -> None:
    """The kernel side always sets FLAG_NO_HEADER and never FLAG_SAME; a damaged capture may have other flags."""
    trail = Trail(("10.0.0.1", 1, "10.0.0.2", 2), packet=7)
    detail = row("TABLE_FULL", time=1, packet=7, hop=0, netns=100, flags=flags | record.Flag.FLAG_CLONE)
    trail.hop = 1
    trail.rows.append(detail)
    trail.hook("PREROUTING")
    (event, _) = record.events(trail.batch)
    assert event.flags == record.Flag.FLAG_NO_HEADER | record.Flag.FLAG_CLONE
    found = packet(trail)
    assert (found.endpoints.src, found.family) == ("10.0.0.1", "IPv4")
    assert [h.kind for h in found.hops] == ["clue", "hook"]
