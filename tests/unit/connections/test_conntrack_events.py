# SPDX-License-Identifier: Apache-2.0
"""Conntrack's events: from netlink bytes to text, and the meaning of an entry that ends before its timeout."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.support.ctnetlink import ORIG, REPLY, message
from tracer.connections import conntrack_events
from tracer.connections.conntrack_events import EntryEvent, EntryExpiry, parse
from tracer.model.connection import ConnectionKey
from tracer.model.endpoints import Endpoints
from tracer.model.namespace_name import HOST, Netns

SECOND = 1_000_000_000


def test_created_changed_removed() -> None:
    data = message(0, conntrack_events.F_CREATE) + message(0, state=3) + message(2, port=4242)
    created, changed, removed = parse(data, 5, HOST)
    assert created == EntryEvent(5, "created", ConnectionKey("TCP", ORIG, 7, HOST), REPLY, "SYN_SENT", 12, 120)
    assert (changed.what, changed.state) == ("changed", "ESTABLISHED")
    assert (removed.what, removed.by, removed.timeout) == ("removed", 4242, 0)


def test_udp_and_ipv6() -> None:
    six = Endpoints("fd00:56::1", 5000, "fd00:56::10", 53)
    (event,) = parse(message(0, conntrack_events.F_CREATE, protocol=17, orig=six), 5, HOST)
    assert (event.key.protocol, event.key.orig, event.state) == ("UDP", six, "")


def test_netlink_ports_that_removed_entries() -> None:
    data = message(0, conntrack_events.F_CREATE, port=9) + message(2, port=4242) + message(2)
    assert list(conntrack_events.removing_ports(data)) == [4242], "only removals with a port count"


def test_messages_that_are_no_events_are_skipped() -> None:
    other = struct.pack("=IHHII", 20, 10 << 8, 0, 0, 0) + b"\0" * 4
    assert list(parse(other + b"\1\2", 5, HOST)) == []
    assert list(parse(struct.pack("=IHHII", 4, 0x100, 0, 0, 0), 5, HOST)) == [], "an impossible length"


def event(what: str, time: int = 0, key: ConnectionKey = ConnectionKey("TCP", ORIG), **more: int) -> EntryEvent:  # noqa: B008
    return EntryEvent(time, what, key, REPLY, state="SYN_SENT" if what != "removed" else "", **more)


def test_text_of_an_event() -> None:
    expiry = EntryExpiry()
    assert expiry.format(event("created", timeout=120)) == "created, SYN_SENT, 120 s"
    assured = event("changed", status=conntrack_events.STATUS_ASSURED, timeout=60)
    assert expiry.format(assured) == "changed assured, SYN_SENT, 60 s"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (120, "expired"),
        (119, "expired"),
        (30, "removed 90 s before its timeout (derived): ended by a reset, evicted from a full table, or flushed"),
    ],
)
def test_text_of_an_entry_that_ends(after: int, expected: str) -> None:
    expiry = EntryExpiry()
    expiry.format(event("created", timeout=120))
    assert expiry.format(event("removed", after * SECOND)) == expected
    assert expiry.format(event("removed", after * SECOND)) == "removed", "its timeout is no longer known"


def test_entries_of_other_zones_and_namespaces_have_their_own_timeout() -> None:
    expiry = EntryExpiry()
    expiry.format(event("created", timeout=120))
    for key in (ConnectionKey("TCP", ORIG, 7), ConnectionKey("TCP", ORIG, 0, Netns("pod-a")), ConnectionKey("UDP", ORIG)):
        assert expiry.format(event("removed", SECOND, key)) == "removed", key
    assert expiry.format(event("removed", 120 * SECOND)) == "expired"


def test_the_program_that_removed_an_entry() -> None:
    mine = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert EntryExpiry().format(event("removed", by=os.getpid())) == f"removed by {mine} (pid {os.getpid()})"
    assert EntryExpiry().format(event("removed", by=1 << 30)) == f"removed by netlink port {1 << 30}"


def test_remembered_timeouts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conntrack_events, "MAX_EVENTS", 3)
    expiry = EntryExpiry()
    for n in range(10):
        expiry.format(event("created", key=ConnectionKey("TCP", Endpoints("10.0.0.1", n, "10.0.0.2", 80)), timeout=9))
    assert (len(expiry._expires), expiry._expires.evicted) == (3, 7)
    forgotten = event("removed", 200 * SECOND, ConnectionKey("TCP", Endpoints("10.0.0.1", 0, "10.0.0.2", 80)))
    assert expiry.format(forgotten) == "removed", "not that it was evicted or expired"


def test_unread_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conntrack_events, "MAX_EVENTS", 3)
    events = conntrack_events.EntryEvents()

    class Socket:
        def recv(self, size: int) -> bytes:
            return b"message"

    events._sock = Socket()  # type: ignore[assignment]
    for _ in range(10):
        assert events._work()
    assert (len(events.read()), events.lost, events.read()) == (3, 7, [])


def test_a_module_that_is_not_loaded_is_the_reason(tmp_path: Path) -> None:
    assert "nf_conntrack_netlink is not loaded" in conntrack_events.unavailable_reason(tmp_path / "none")
    assert conntrack_events.unavailable_reason(tmp_path) == ""
