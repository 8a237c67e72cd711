# SPDX-License-Identifier: Apache-2.0
"""Listeners, settings and counters of this machine's own namespace; a namespace that is gone has none."""

from __future__ import annotations

import socket
from pathlib import Path

from tracer.model.namespace_name import Netns
from tracer.node import namespace_view
from tracer.node.namespace_view import NamespaceInspector
from tracer.node.namespaces import Namespaces


def own() -> tuple[NamespaceInspector, Netns]:
    names = Namespaces()
    return NamespaceInspector(names), names.name(names.own)


def test_listening_sockets_settings_and_counters() -> None:
    inspector, namespace = own()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        port = sock.getsockname()[1]
        assert [b.address for b in inspector.bound(namespace) if b.port == port] == ["127.0.0.1"]
        assert inspector.process(next(b.inode for b in inspector.bound(namespace) if b.port == port)).endswith(")")
    assert inspector.setting(namespace, "net/ipv4/ip_local_port_range") == " ".join(
        Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    )
    assert "ListenDrops" in inspector.counters(namespace)


def test_an_answer_that_cannot_be_read_is_empty() -> None:
    inspector, namespace = own()
    assert inspector.bound(Netns("no such namespace")) == () and inspector.counters(Netns("no such namespace")) == {}
    assert inspector.setting(namespace, "net/ipv4/tcp_tw_recycle") == "", "Linux does not have it since 4.12"
    assert inspector.process(0) == ""


def test_answers_are_kept_for_a_short_time() -> None:
    inspector, namespace = own()
    before = inspector.bound(namespace)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        port = sock.getsockname()[1]
        assert inspector.bound(namespace) is before
        for key, (at, value) in list(inspector._kept.items()):
            inspector._kept[key] = at - 2 * namespace_view.KEPT_SECONDS, value
        assert port in [b.port for b in inspector.bound(namespace)]


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
