# SPDX-License-Identifier: Apache-2.0
"""What a reported packet may have changed is read again: the evidence says that it was read after the packet."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tracer.model.namespace_name import Netns
from tracer.node import namespace_view, node
from tracer.node.namespace_questions import NamespaceInspector, NamespaceListeners, NamespaceSetting
from tracer.node.namespace_view import NamespaceReader
from tracer.node.node import HostReader
from tracer.node.node_questions import Setting
from tracer.util.questions import Known, live

COUNT = "net/netfilter/nf_conntrack_count"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    for module in (node, namespace_view):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("is_volatile", "then"), [(True, "65000"), (False, "2")])
def test_a_setting_of_the_node(tmp_path: Path, clock: list[float], is_volatile: bool, then: str) -> None:
    path = tmp_path / "sys" / COUNT
    path.parent.mkdir(parents=True)
    path.write_text("2\n")
    host, question = HostReader(tmp_path), Setting(COUNT, is_volatile)
    assert question.ask(host, live) == Known("2")
    path.write_text("65000\n")
    clock[0] += 0.1
    assert question.ask(host, live) == Known(then)


def test_a_setting_and_the_listeners_of_a_namespace(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    read = itertools.count(1)
    monkeypatch.setattr(NamespaceReader, "_read_inside", lambda self, name, look, otherwise: next(read))
    inspector = NamespaceInspector()
    asked: list[object] = []
    for _ in range(2):
        asked.append(inspector.ask(NamespaceSetting("x", is_volatile=True), Netns("pod-a")))
        asked.append(inspector.ask(NamespaceSetting("y"), Netns("pod-a")))
        asked.append(inspector.ask(NamespaceListeners(), Netns("pod-a")))
        clock[0] += 0.1
    assert asked == [Known(n) for n in (1, 2, 3, 4, 2, 5)]
