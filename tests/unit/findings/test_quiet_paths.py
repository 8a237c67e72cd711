# SPDX-License-Identifier: Apache-2.0
"""Paths without a finding: `find` is not called again for their packets, unless something else may be found now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.findings import FakeNode
from tests.support.shared_paths import assembled, delivered, rows_of
from tests.unit.pipeline.test_shared_owners import pod
from tracer import findings as findings_module
from tracer.findings import Findings
from tracer.findings.context import FindingContext, FollowedConnection
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.connection import ConnectionKey
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.namespace_name import HOST
from tracer.model.packet import Packet
from tracer.node.node_questions import Setting

SETTING = Setting("net/ipv4/ip_forward")


def finding(packet: Packet) -> Finding:
    return Finding("", (packet.endpoints.dst,), "cause", (), "check", "cure", certain=True)


class Finder:
    """A file of findings. finds: identities of the packets that it finds something in."""

    def __init__(self, *finds: int) -> None:
        self.looked: list[int] = []
        self.finds = {identity << 8 for identity in finds}

    def __call__(self, packet: Packet, context: FindingContext) -> Finding | None:
        self.looked.append(packet.identity >> 8)
        return finding(packet) if packet.identity in self.finds else None


class Asking(Finder):
    """Asks the node a question."""

    def __call__(self, packet: Packet, context: FindingContext) -> Finding | None:
        context.ask(SETTING)
        return super().__call__(packet, context)


@pytest.fixture
def packets() -> list[Packet]:
    found, assembler = assembled([rows_of(*(delivered(n, 40000 + n) for n in range(1, 7)))], True)
    assert assembler.shared == 5
    return found


def looked_at(monkeypatch: pytest.MonkeyPatch, finder: Finder, context: FindingContext | None = None) -> Findings:
    monkeypatch.setattr(findings_module, "finders", lambda: (("mtu", finder),))
    monkeypatch.setattr(findings_module, "declared_questions", lambda: {"mtu": (SETTING,)})
    return Findings(context or FindingContext(node=FakeNode()))


def test_a_path_without_a_finding(monkeypatch: pytest.MonkeyPatch, packets: list[Packet]) -> None:
    finder = Finder()
    findings = looked_at(monkeypatch, finder)
    assert [findings.look(packet) for packet in packets] == [[]] * 6
    assert finder.looked == [1, 2], "the first one was explained, the second one is the first of the path"
    assert Findings().look(packets[3]) == [] and 4 in finder.looked, "other findings of the process look on their own"


def test_a_path_with_a_finding(monkeypatch: pytest.MonkeyPatch, packets: list[Packet]) -> None:
    finder = Finder(1, 2, 3, 4, 5, 6)
    findings = looked_at(monkeypatch, finder)
    for packet in packets:
        findings.look(packet)
    (found,) = findings.all
    assert finder.looked == [1, 2, 3, 4, 5, 6] and found.packets == 6


def test_a_path_that_made_a_finding_ask(monkeypatch: pytest.MonkeyPatch, packets: list[Packet]) -> None:
    """The node's answer may be another one for the next packet."""
    finder = Asking(5)
    findings = looked_at(monkeypatch, finder)
    assert [len(findings.look(packet)) for packet in packets] == [0, 0, 0, 0, 1, 0]
    assert finder.looked == [1, 2, 3, 4, 5, 6]


def test_only_the_finding_that_asked_looks_again(monkeypatch: pytest.MonkeyPatch, packets: list[Packet]) -> None:
    quiet, asking = Finder(), Asking(5)
    findings = looked_at(monkeypatch, quiet)
    monkeypatch.setattr(findings_module, "finders", lambda: (("quiet", quiet), ("mtu", asking)))
    findings._contexts["quiet"] = findings._contexts["mtu"]
    assert [len(findings.look(packet)) for packet in packets] == [0, 0, 0, 0, 1, 0]
    assert quiet.looked == [1, 2] and asking.looked == [1, 2, 3, 4, 5, 6]


def test_objects_that_change(monkeypatch: pytest.MonkeyPatch, packets: list[Packet]) -> None:
    finder, store = Finder(), ObjectStore("node-1")
    findings = looked_at(monkeypatch, finder, FindingContext(ClusterView(store, CniCache(())), FakeNode()))
    for n, packet in enumerate(packets):
        if n == 3:
            store.load([pod("web-a", "10.244.0.11")])
        findings.look(packet)
    assert finder.looked == [1, 2, 4]


def test_a_followed_connection(monkeypatch: pytest.MonkeyPatch, packets: list[Packet]) -> None:
    """A finding may add later packets of a connection, which are on any path."""
    finder = Finder()
    findings = looked_at(monkeypatch, finder)
    findings.look(packets[0])
    findings.look(packets[1])
    key: Any = ConnectionKey("TCP", Endpoints("10.0.0.1", 1, "10.0.0.2", 2), 0, HOST)
    findings._context.reported[key] = FollowedConnection(finding(packets[0]))
    findings.look(packets[2])
    del findings._context.reported[key]
    findings.look(packets[3])
    assert finder.looked == [1, 2, 3]


class Searching(Finder):
    """Looks up a pod."""

    def __call__(self, packet: Packet, context: FindingContext) -> Finding | None:
        context.cluster.pod_at(packet.endpoints.dst)
        return super().__call__(packet, context)


def test_look_ups_in_the_cni_cache_are_counted(monkeypatch: pytest.MonkeyPatch, packets: list[Packet], tmp_path: Path) -> None:
    now = [1000.0]
    monkeypatch.setattr("tracer.kube.cni_cache.time.monotonic", lambda: now[0])
    finder, cache = Searching(), CniCache((tmp_path,))
    findings = looked_at(monkeypatch, finder, FindingContext(ClusterView(ObjectStore(), cache), FakeNode()))
    for packet in packets[:5]:
        findings.look(packet)
    assert finder.looked == [1, 2] and cache.lookups == 5
    now[0] += 2
    findings.look(packets[5])
    assert finder.looked == [1, 2, 6] and cache.lookups == 6
