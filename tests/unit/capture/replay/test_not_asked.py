# SPDX-License-Identifier: Apache-2.0
"""Questions that a capture's run did not ask prove nothing: no default becomes evidence, no replay fails without an answer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tests.support import findings as f
from tests.support.builders import Trail
from tests.support.nodes import node
from tests.unit.findings import test_conntrack_full, test_hostport_takes_service
from tests.unit.findings import test_mtu as mtu
from tests.unit.findings import test_nodeport_host_process as host_process
from tests.unit.findings import test_syn_dropped as syn_dropped
from tests.unit.findings import test_udp_insert_race as race
from tracer.capture.journal import JournaledHostReader, JournaledNamespaceInspector, JournaledProcesses
from tracer.capture.replay import runner
from tracer.capture.replay.answers import ReplayedAnswers
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.capture.replay.source import _has_all_answers
from tracer.kube.catalog import ClusterView
from tracer.model.finding import Finding
from tracer.model.namespace_name import HOST
from tracer.model.summary import RunSummary
from tracer.node.namespaces import Namespaces
from tracer.node.node import HostReader, ListeningSocket
from tracer.node.processes import NOT_RECORDED
from tracer.node.procnet import BoundSocket
from tracer.pipeline.shutdown import StopRequest
from tracer.render.text import TextOutput
from tracer.util.questions import NotAsked, answered

FROM_THE_NODE = ("/proc", "/sys", "/run", "netlink")


class Unasked(f.FakeNode):
    """A node of a capture without answers, except those given by name."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._given = set(given)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        of = {"listener": "listeners", "is_kube_proxy": "proxies"}.get(name)
        if name[0] == "_" or not inspect.ismethod(found) or (of and of in self._given):
            return found

        def missing(*_: object) -> None:
            raise NotAsked(name)

        return missing


def shown(findings: list[Finding]) -> list[str]:
    """Texts of the proofs that cite the node as their source."""
    return [p.text for finding in findings for p in finding.proofs if p.evidence.startswith(FROM_THE_NODE)]


def test_a_missing_answer_is_not_asked() -> None:
    answers = ReplayedAnswers()
    with pytest.raises(NotAsked):
        answers.journal(("node", "conntrack"), dict, {})
    assert answered(lambda: answers.journal(("x",), dict, {}), None) is None
    answers.feed(("node", "conntrack"), 1, {})
    counted = answers.journal(("node", "conntrack"), lambda: {"drop": 1}, dict[str, int]())
    assert counted == {}, "an unreadable file is an answer"


def test_every_unasked_question_to_the_node() -> None:
    """A question to a capture without answers never gets the answer of an unreadable file."""
    reader = JournaledHostReader(ReplayedAnswers().journal)
    questions: dict[str, tuple[Any, ...]] = {
        "bound": ("tcp",), "listener": ("10.0.0.1", 80, "tcp"), "is_kube_proxy": (1,), "kube_proxy": (), "setting": ("x", 0),
        "counters": (1,), "addresses": (), "conntrack_counters": (), "mtu": ("eth0",), "way_out": ("10.0.0.1",),
        "interface_of": ("10.0.0.1",), "flannel_subnets": (),
    }  # fmt: skip
    assert {name for name, _ in inspect.getmembers(HostReader, inspect.isfunction) if name[0] != "_"} == set(questions)
    for name, arguments in questions.items():
        with pytest.raises(NotAsked):
            getattr(reader, name)(*arguments)


def test_an_unasked_process_of_a_listener_is_not_an_unknown_process() -> None:
    """The socket is known, its process is not. It may be kube-proxy, which holds NodePorts: "a process" would be wrong."""
    answers = ReplayedAnswers()
    answers.feed(("node", ("bound", "tcp")), 1, (BoundSocket("0.0.0.0", 32400, 7001),))
    with pytest.raises(NotAsked):
        JournaledHostReader(answers.journal).listener("10.77.0.7", 32400, "tcp")
    answers.feed(("listener", 7001), 1, (0, ""))
    listener = JournaledHostReader(answers.journal).listener("10.77.0.7", 32400, "tcp")
    assert listener and listener.text == "a process that cannot be seen from here", "the process was searched"


def test_unasked_processes_and_namespaces() -> None:
    journal = ReplayedAnswers().journal
    processes = JournaledProcesses(journal)
    assert processes.owner(7) == NOT_RECORDED
    spaces = JournaledNamespaceInspector(journal, Namespaces(), processes)
    assert (spaces.names(), spaces.bound(HOST), spaces.setting(HOST, "x"), spaces.counters(HOST)) == ([], (), "", {})
    assert spaces.process(7) == ""


def test_a_lost_race_without_its_counter() -> None:
    _, (finding,) = f.findings_of([race.packet(lost=False), race.packet()], ClusterView(), Unasked())
    assert not finding.certain and shown([finding]) == [] and "Most likely two" in finding.cause
    _, (finding,) = f.findings_of([race.packet(lost=False), race.packet()], ClusterView(), f.FakeNode())
    assert shown([finding]) == [], "an unreadable counter is not zero either"


def test_a_full_table_without_its_size() -> None:
    made = test_conntrack_full.packet()
    assert f.findings_of([made], ClusterView(), Unasked())[1] == []


def findings_without_answers(tmp_path: Path) -> dict[str, Callable[[Unasked], list[Finding]]]:
    one = node("1.20.2-iptables-legacy", "S1")
    ports = test_hostport_takes_service
    rules = ports.jump_first(node(ports.IPTABLES, "S5").iptables(), local=False)
    elsewhere = ports.cluster_view(ports.IPTABLES, tmp_path, "192.168.56.10", scenario="S5", with_api=False)
    return {
        "mtu": lambda on: f.findings_of([mtu.packet("PKT_TOO_BIG", "ip_fragment")], ClusterView(), on)[1],
        "node port": lambda on: f.findings_of([host_process.refused()], one.cluster_view(tmp_path), on)[1],
        "host port": lambda on: f.findings_of([ports.request(rules, "192.168.56.77")], elsewhere, on)[1],
        "syn": lambda on: syn_dropped.found([syn_dropped.syn(syn_dropped.FULL)], on)[1],
    }


@pytest.mark.parametrize("which", ["mtu", "node port", "host port", "syn"])
def test_no_finding_needs_an_answer(which: str, tmp_path: Path) -> None:
    found = findings_without_answers(tmp_path)[which](Unasked())
    assert shown(found) == []
    assert bool(found) is (which in ("mtu", "syn")), "the other findings need answers of the node"


def test_a_known_listener_that_may_be_kube_proxy(tmp_path: Path) -> None:
    on = Unasked(listeners={(30584, "tcp"): ListeningSocket("0.0.0.0", 30584, 812, "nginx")})
    certain, (likely,) = f.findings_of(
        [host_process.refused()], node("1.20.2-iptables-legacy", "S1").cluster_view(tmp_path), on
    )
    assert not certain and not likely.certain
    assert "whether that is kube-proxy, which may hold the port, is not recorded (capture)" in f.proofs(likely, "process")


def replayed(path: Path, form: type[TextOutput] = TextOutput) -> tuple[str, RunSummary]:
    import io

    out = io.StringIO()
    output = form(out, io.StringIO(), verbose=True)
    with CaptureReader(str(path)) as capture:
        totals = runner.replay(capture, output, ReplayRequest(), StopRequest())
        output.summary(totals)
    return out.getvalue(), totals


def test_an_unasked_process_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output names it as not recorded, not as searched and not found."""
    monkeypatch.setattr("tracer.capture.record.prefetch.Prefetcher._ask_of_events", lambda *_: None)
    made = captures.capture(tmp_path / "a.k8st", explained=False)
    text, _ = replayed(made.path)
    assert "process not recorded (inode 48213)" in text and "not found" not in text


def test_recording_without_explaining_asks_for_the_counters(tmp_path: Path) -> None:
    from contextlib import closing
    from sqlite3 import connect

    trail = Trail(("10.244.0.11", 40000, "10.244.3.7", 53), 1 << 8, 1000, in_name="cni0", length=1500)
    batch = trail.hook("PREROUTING").add("DROP", object=0x10, reason=6).batch
    made = captures.capture(tmp_path / "a.k8st", [(batch, [])], explained=False)
    with closing(connect(made.path)) as db:
        keys = {key for (key,) in db.execute("SELECT key FROM records WHERE kind = 'answer'")}
    assert {"node conntrack", "node ('way out', '10.244.3.7')", "function 16"} <= keys


@pytest.mark.parametrize(
    ("meta", "outcome"),
    [
        ({"answers": "all"}, True),
        ({"options": {"dict": [["record_only", True]]}}, True),
        ({"options": {"dict": [["record_only", False]]}}, False),
        ({"options": 7}, True),
        ({"options": {"dict": 7}}, True),
    ],
)
def test_captures_without_default_answers(meta: Any, outcome: bool) -> None:
    assert _has_all_answers(json.loads(json.dumps(meta))) is outcome, "as read from a file"
