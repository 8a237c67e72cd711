# SPDX-License-Identifier: Apache-2.0
"""Findings and causes of SYNs ask only what they declare as ASKS, and all of that is prefetched for a replay."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from tests.kernel.question_scenes import NOT_ON_NEW_KERNELS, SCENES
from tests.support.findings import FakeNode
from tests.support.syns import FakeReader
from tracer import findings
from tracer.capture.replay.answers import ReplayedAnswers
from tracer.findings.context import FindingContext, UndeclaredQuestion
from tracer.handshakes import causes
from tracer.model.namespace_name import HOST, Netns
from tracer.node import namespace_questions, node_questions
from tracer.node.namespace_questions import ListenerProcess, NamespaceListeners, NamespaceQuestion, NamespaceSetting
from tracer.node.node import ListeningSocket
from tracer.node.node_questions import (
    BoundSockets,
    ConnectionOf,
    ConntrackCounters,
    InterfaceOf,
    IsKubeProxy,
    Listener,
    ListenerCounters,
    ListenerSetting,
    Mtu,
    NodeQuestion,
    Occasion,
    Setting,
    WayOut,
)
from tracer.node.procnet import BoundSocket, ConnectedSocket
from tracer.util.questions import Answer, Known, NotAsked, Question

T = TypeVar("T")
DECLARED = {
    **{("findings", name): questions for name, questions in findings.declared_questions().items()},
    **{("handshakes.causes", name): questions for name, questions in causes.declared_questions().items()},
}
NODE = sorted({q for questions in findings.declared_questions().values() for q in questions}, key=repr)
NAMESPACE = sorted({q for questions in causes.declared_questions().values() for q in questions}, key=repr)
CLASSES = {
    name
    for module in (node_questions, namespace_questions)
    for name, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, NodeQuestion | NamespaceQuestion)
}


def of_module(value: object) -> Iterator[object]:
    """The questions in a value of a module: itself, or the elements of a tuple."""
    if isinstance(value, NodeQuestion | NamespaceQuestion):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from of_module(each)


def load(key: tuple[str, str]) -> ModuleType:
    return import_module(f"tracer.{key[0]}.{key[1]}")


@pytest.mark.parametrize("key", DECLARED, ids="/".join)
def test_every_question_of_a_file_is_declared(key: tuple[str, str]) -> None:
    """Questions are made at the level of the module, where all of them can be compared with ASKS."""
    module = load(key)
    made = {question for value in vars(module).values() for question in of_module(value)}
    assert made == set(DECLARED[key])
    tree = ast.parse(inspect.getsource(module))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                assert not (isinstance(node.func, ast.Name) and node.func.id in CLASSES), "made in a function"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("context", "node"), ("context", "journal")}, "not by context.ask"
                assert node.value.id != "inspector" or node.attr == "ask", "not by inspector.ask"
    asks = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert bool(DECLARED[key]) <= ("ask" in asks or "format_settings" in inspect.getsource(module))


def test_findings_and_causes_that_ask() -> None:
    asking = {name for (_, name), questions in DECLARED.items() if questions}
    assert {
        "udp_insert_race",
        "mtu",
        "syn_dropped",
        "nodeport_host_process",
        "time_wait",
        "answered_from_other_address",
    } <= asking


def test_every_file_that_asks_has_a_scene_in_which_it_is_recorded() -> None:
    """tests/kernel/test_record_only.py compares a recording without explanation with an explained run of the scene."""
    sides = {("handshakes.causes" if scene.cause else "findings", scene.asks) for scene in SCENES}
    asking = {key for key, questions in DECLARED.items() if questions}
    assert sides == asking - {("handshakes.causes", name) for name in NOT_ON_NEW_KERNELS}


def test_an_undeclared_question_is_refused() -> None:
    context = FindingContext(node=FakeNode(settings={"net/a": "1"}))
    assert context.ask(Setting("net/a")) == Known("1"), "the audit asks what it wants"
    restricted = context.restricted((Setting("net/a"),))
    assert restricted.ask(Setting("net/a")) == Known("1") and restricted.counts is context.counts
    with pytest.raises(UndeclaredQuestion):
        restricted.ask(Setting("net/b"))


class Recording:
    """A journal that gives the machine's answers and keeps them for a replay."""

    def __init__(self) -> None:
        self.replayed = ReplayedAnswers()

    def __call__(self, question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
        self.replayed.feed(question, 1, found := ask())
        return Known(found)


OCCASION = Occasion(
    is_periodic=True, has_drops=True, has_first_datagram=True, destinations=("10.0.0.9",), interfaces=("eth0",),
    listeners=(42,), counted_listeners=(42,), drop_namespaces=(Netns("pod-b"),), namespaces=(HOST, Netns("pod-a")),
    translated_ports=(("tcp", 30306), ("udp", 30306)),
)  # fmt: skip
ARGUMENTS: dict[type[object], list[tuple[Any, ...]]] = {
    ListenerSetting: [(42,)], ListenerCounters: [(42,)], BoundSockets: [("tcp",), ("udp",)],
    Listener: [("10.0.0.1", 80, "tcp"), ("10.0.0.1", 81, "tcp"), ("10.0.0.1", 53, "udp")], IsKubeProxy: [(7,), (0,)],
    ConnectionOf: [("tcp", 30306, "10.0.0.9", 80), ("udp", 30306, "10.0.0.8", 80)],
    InterfaceOf: [("10.0.0.1",)], Mtu: [("eth0",), ("cni0",)], WayOut: [("10.0.0.9",)],
    NamespaceSetting: [("node",), ("pod-a",)], NamespaceListeners: [("node",), ("pod-a",), ("pod-b",)],
}  # fmt: skip
"""Arguments with which a finding or a cause may ask after the events of OCCASION; () for any other question."""


def node() -> FakeNode:
    sockets = {(80, "tcp"): ListeningSocket("0.0.0.0", 80, 7, "web"), (53, "udp"): ListeningSocket("::", 53, 0, "")}
    mine = (ConnectedSocket("10.0.0.1", 30306, "10.0.0.9", 80, 1),)
    return FakeNode(listeners=sockets, ways={"10.0.0.9": "cni0"}, mtus={"cni0": 1450}, connections=mine)


@pytest.mark.parametrize("question", NODE, ids=repr)
def test_what_a_finding_asks_is_prefetched(question: NodeQuestion[Any, Any]) -> None:
    recording = Recording()
    question.prefetch(node(), recording, OCCASION)
    for arguments in ARGUMENTS.get(type(question), [()]):
        answer = question.ask(node(), recording.replayed.journal, *arguments)
        assert answer == question.ask(node(), Recording(), *arguments)


@pytest.mark.parametrize("question", NAMESPACE, ids=repr)
def test_what_a_cause_asks_is_prefetched(question: NamespaceQuestion[Any, Any]) -> None:
    reader, recording = FakeReader({"net/a": "1"}, (BoundSocket("127.0.0.1", 8080, 48213),)), Recording()
    found = []
    reader.owner = lambda inode: found.append(inode) or (4242, "nginx")  # type: ignore[method-assign, func-returns-value]
    question.prefetch(reader, recording, OCCASION)
    if isinstance(question, ListenerProcess):
        assert found == [48213], "once, for the namespace of the drop; the reader's processes have their own journal"
        return
    for arguments in ARGUMENTS[type(question)]:
        assert question.ask(reader, recording.replayed.journal, *arguments) == question.ask(reader, Recording(), *arguments)


@pytest.mark.parametrize("question", [*NODE, *NAMESPACE], ids=repr)
def test_nothing_is_asked_without_an_occasion(question: NodeQuestion[Any, Any] | NamespaceQuestion[Any, Any]) -> None:
    def journal(question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
        raise AssertionError(question)

    if isinstance(question, NodeQuestion):
        question.prefetch(node(), journal, Occasion())
    else:
        question.prefetch(FakeReader(), journal, Occasion())


@pytest.mark.parametrize("question", [q for q in NODE if isinstance(q, ConntrackCounters) or getattr(q, "is_volatile", False)])
def test_what_a_drop_changes_is_asked_with_the_drop(question: NodeQuestion[Any, Any]) -> None:
    recording = Recording()
    question.prefetch(node(), recording, Occasion(has_drops=True))
    assert isinstance(question.ask(node(), recording.replayed.journal), Known)
    assert isinstance(question.ask(node(), ReplayedAnswers().journal), NotAsked)
