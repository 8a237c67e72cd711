# SPDX-License-Identifier: Apache-2.0
"""Listeners, settings and counters of this machine's own namespace; a namespace that is gone has none."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tracer.model.namespace_name import Netns
from tracer.node import namespace_view
from tracer.node.namespace_view import NamespaceReader
from tracer.node.namespaces import Namespaces
from tracer.node.node import VOLATILE_SECONDS


def own() -> tuple[NamespaceReader, Netns]:
    names = Namespaces()
    return NamespaceReader(names), names.name(names.own)


def test_listening_sockets_settings_and_counters() -> None:
    reader, namespace = own()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        port = sock.getsockname()[1]
        assert [b.address for b in reader.bound(namespace) if b.port == port] == ["127.0.0.1"]
        assert reader.owner(next(b.inode for b in reader.bound(namespace) if b.port == port))[0] == os.getpid()
    assert reader.setting(namespace, "net/ipv4/ip_local_port_range") == " ".join(
        Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    )
    assert "ListenDrops" in reader.counters(namespace)


def test_an_answer_that_cannot_be_read_is_empty() -> None:
    reader, namespace = own()
    assert reader.bound(Netns("no such namespace")) == () and reader.counters(Netns("no such namespace")) == {}
    assert reader.setting(namespace, "net/ipv4/tcp_tw_recycle") == "", "Linux does not have it since 4.12"
    assert reader.owner(0) == (0, "")


def test_answers_are_kept_for_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, namespace = own()
    now = 100.0
    monkeypatch.setattr("tracer.node.namespace_view.time.monotonic", lambda: now)
    before = reader.bound(namespace)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        port = sock.getsockname()[1]
        assert reader.bound(namespace) is before
        now += 2 * VOLATILE_SECONDS
        assert port in [b.port for b in reader.bound(namespace)]


def test_conntracks_statistics_are_summed_over_cpus(tmp_path: Path) -> None:
    (tmp_path / "stat").mkdir()
    (tmp_path / "netstat").write_text("TcpExt: ListenDrops\nTcpExt: 7\n")
    (tmp_path / "stat/nf_conntrack").write_text(
        "entries drop insert_failed\n0000000a 00000010 00000001\n0000000a 00000001 00000000\n"
    )
    before, namespace_view.NET = namespace_view.NET, tmp_path
    try:
        found = namespace_view._counters()
    finally:
        namespace_view.NET = before
    assert found == {"ListenDrops": 7, "conntrack_entries": 20, "conntrack_drop": 17, "conntrack_insert_failed": 1}
