# SPDX-License-Identifier: Apache-2.0
"""Questions that a capture's run did not ask prove nothing: no default becomes evidence, no replay fails without an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support import captures
from tests.support import findings as f
from tests.support.builders import Trail
from tests.support.nodes import node
from tests.support.syns import FakeInspector, cause, decision_detail, syn
from tests.unit.findings import test_conntrack_full, test_hostport_takes_service
from tests.unit.findings import test_mtu as mtu
from tests.unit.findings import test_nodeport_host_process as host_process
from tests.unit.findings import test_syn_dropped as syn_dropped
from tests.unit.findings import test_udp_insert_race as race
from tracer.capture.journal import JournaledProcesses
from tracer.capture.replay import runner
from tracer.capture.replay.answers import ReplayedAnswers
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.capture.replay.source import _has_all_answers
from tracer.events.record import Flag
from tracer.findings import missing_masquerade
from tracer.findings.conntrack_full import COUNT, LIMIT
from tracer.findings.context import FindingContext
from tracer.findings.syn_dropped import TIMESTAMPS
from tracer.kube.catalog import ClusterView
from tracer.kube.store import ObjectStore
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop
from tracer.model.namespace_name import HOST
from tracer.model.packet import Packet
from tracer.model.rule import Rule
from tracer.model.summary import RunSummary
from tracer.node.namespace_questions import ListenerProcess, NamespaceInspector, NamespaceListeners, NamespaceSetting
from tracer.node.namespace_view import NamespaceReader
from tracer.node.namespaces import Namespaces
from tracer.node.node import HostReader, ListeningSocket
from tracer.node.node_questions import (
    BoundSockets,
    ConnectionOf,
    ConntrackCounters,
    FlannelSubnets,
    InterfaceOf,
    IsKubeProxy,
    Listener,
    ListenerCounters,
    ListenerSetting,
    Mtu,
    NodePortAddresses,
    NodeQuestion,
    PacketQueues,
    ProxyProcesses,
    RunningKubeProxy,
    Setting,
    WayOut,
)
from tracer.node.processes import NOT_RECORDED
from tracer.node.procnet import BoundSocket
from tracer.pipeline.shutdown import StopRequest
from tracer.render.text import TextOutput
from tracer.util.questions import Answer, Journal, Known, NotAsked, Question, live, value_of

T = TypeVar("T")
FROM_THE_NODE = ("/proc", "/sys", "/run", "netlink")


def only(*given: str) -> Journal:
    """The journal of a capture that has only the answers to questions of these kinds."""

    def journal(question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
        key = question[1] if question[0] == "node" else question[0]
        kind = key[0] if isinstance(key, tuple) else key
        return Known(ask()) if kind in given else NotAsked(question)

    return journal


def shown(findings: list[Finding]) -> list[str]:
    """Texts of the proofs that cite the node as their source."""
    return [p.text for finding in findings for p in finding.proofs if p.evidence.startswith(FROM_THE_NODE)]


def test_a_missing_answer_is_not_asked() -> None:
    answers = ReplayedAnswers()
    assert answers.journal(("node", "conntrack"), dict, {}) == NotAsked(("node", "conntrack"))
    assert value_of(answers.journal(("x",), dict, {})) is None
    answers.feed(("node", "conntrack"), 1, {})
    counted = answers.journal(("node", "conntrack"), lambda: {"drop": 1}, dict[str, int]())
    assert counted == Known({}), "an unreadable file is an answer"


def test_an_older_capture_without_default_answers_has_them() -> None:
    answers = ReplayedAnswers(omits_defaults=True)
    assert answers.journal(("node", "conntrack"), dict, dict[str, int]()) == Known({})


ARGUMENTS: dict[type[NodeQuestion[Any, Any]], tuple[Any, ...]] = {
    Setting: (), ListenerSetting: (1,), ListenerCounters: (1,), ConntrackCounters: (), BoundSockets: ("tcp",),
    Listener: ("10.0.0.1", 80, "tcp"), IsKubeProxy: (1,), RunningKubeProxy: (), InterfaceOf: ("10.0.0.1",), Mtu: ("eth0",),
    WayOut: ("10.0.0.1",), FlannelSubnets: (), NodePortAddresses: (), PacketQueues: (),
    ConnectionOf: ("tcp", 80, "10.0.0.1", 80), ProxyProcesses: (),
}  # fmt: skip


def test_every_unasked_question_to_the_node() -> None:
    """A question to a capture without answers never gets the answer of an unreadable file."""
    assert set(ARGUMENTS) == set(NodeQuestion.__subclasses__())
    for kind, arguments in ARGUMENTS.items():
        question: NodeQuestion[Any, Any] = kind(*(("net/x",) if kind in (Setting, ListenerSetting) else ()))
        assert isinstance(question.ask(HostReader(), ReplayedAnswers().journal, *arguments), NotAsked), question


def test_an_unasked_process_of_a_listener_is_not_an_unknown_process() -> None:
    """The socket is known, its process is not. It may be kube-proxy, which holds NodePorts: "a process" would be wrong."""
    answers = ReplayedAnswers()
    answers.feed(("node", ("bound", "tcp")), 1, (BoundSocket("0.0.0.0", 32400, 7001),))
    requested = "10.77.0.7", 32400, "tcp"
    assert Listener().ask(HostReader(), answers.journal, *requested) == NotAsked(("listener", 7001))
    answers.feed(("listener", 7001), 1, (0, ""))
    listener = value_of(Listener().ask(HostReader(), answers.journal, *requested))
    assert listener and listener.text == "a process that cannot be seen from here", "the process was searched"


def test_unasked_processes_and_namespaces() -> None:
    journal = ReplayedAnswers().journal
    processes = JournaledProcesses(journal)
    assert processes.owner(7) == NOT_RECORDED
    inspector = NamespaceInspector(NamespaceReader(Namespaces(), processes), journal)
    answers: list[Answer[Any]] = [inspector.names(), inspector.counters(HOST), inspector.ask(NamespaceListeners(), HOST)]
    answers += [inspector.ask(NamespaceSetting("x"), HOST), inspector.ask(ListenerProcess(), 7)]
    assert all(isinstance(answer, NotAsked) for answer in answers)


def test_a_lost_race_without_its_counter() -> None:
    _, (finding,) = f.findings_of([race.packet(lost=False), race.packet()], ClusterView(), f.FakeNode(), only())
    assert not finding.certain and shown([finding]) == [] and "Most likely two" in finding.cause
    _, (finding,) = f.findings_of([race.packet(lost=False), race.packet()], ClusterView(), f.FakeNode())
    assert shown([finding]) == [], "an unreadable counter is not zero either"


def test_a_full_table_without_its_size() -> None:
    made = test_conntrack_full.packet()
    assert f.findings_of([made], ClusterView(), f.FakeNode(), only())[1] == []


@pytest.mark.parametrize("readable", [COUNT, LIMIT])
def test_one_figure_of_a_full_table_proves_nothing(readable: Setting) -> None:
    on = f.FakeNode(settings={readable.name: "65536"})
    assert f.findings_of([test_conntrack_full.packet()], ClusterView(), on)[1] == []
    hops = [decision_detail("table-full", 0, HOST), DropHop(1, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow"))]
    _, (seen,) = f.findings_of([f.packet(hops, test_conntrack_full.ENDS)], ClusterView(), on)
    assert shown([seen]) == [] and "entries" not in seen.cause


def findings_without_answers(tmp_path: Path) -> dict[str, Callable[[Journal], list[Finding]]]:
    one = node("1.20.2-iptables-legacy", "S1")
    ports = test_hostport_takes_service
    rules = ports.jump_first(node(ports.IPTABLES, "S5").iptables(), local=False)
    elsewhere = ports.cluster_view(ports.IPTABLES, tmp_path, "192.168.56.10", scenario="S5", with_api=False)
    cases = {
        "mtu": (mtu.packet("PKT_TOO_BIG", "ip_fragment"), ClusterView()),
        "node port": (host_process.refused(), one.cluster_view(tmp_path)),
        "host port": (ports.request(rules, "192.168.56.77"), elsewhere),
        "syn": (syn_dropped.syn(syn_dropped.FULL), ClusterView()),
    }

    def find(packet: Packet, cluster: ClusterView) -> Callable[[Journal], list[Finding]]:
        return lambda journal: f.findings_of([packet], cluster, f.FakeNode(), journal)[1]

    return {name: find(*case) for name, case in cases.items()}


@pytest.mark.parametrize("which", ["mtu", "node port", "host port", "syn"])
def test_no_finding_needs_an_answer(which: str, tmp_path: Path) -> None:
    found = findings_without_answers(tmp_path)[which](only())
    assert shown(found) == []
    assert bool(found) is (which in ("mtu", "syn")), "the other findings need answers of the node"


def test_addresses_that_cannot_be_read_do_not_show_that_an_address_is_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = findings_without_answers(tmp_path)["host port"]
    assert find(live), "with the node's addresses, the requested one is foreign"
    monkeypatch.setattr(f.FakeNode, "addresses", lambda self: {})
    assert find(live) == []


def test_a_drop_reason_shows_without_a_setting_that_tw_recycle_is_off() -> None:
    """Kernels with drop reasons (5.17) are newer than those with tcp_tw_recycle (before 4.12)."""
    made = syn_dropped.syn(None, reason="TCP_RFC7323_PAWS")
    for settings in ({}, {TIMESTAMPS.name: "1"}):
        _, (finding,) = syn_dropped.found([made], f.FakeNode(settings=settings))
        assert finding.certain and "tcp_tw_recycle" not in finding.cause


def test_a_lease_file_that_cannot_be_read_leaves_doubt() -> None:
    store = ObjectStore("node-1")
    store.load([{"kind": "Node", "metadata": {"name": "node-1"}, "spec": {"podCIDRs": ["10.244.0.0/24"]}}])
    rule = Rule("ip", "nat", "POSTROUTING", 1, "! -s 10.244.0.0/16 -d 10.244.3.0/24 -j RETURN", "", "RETURN")
    certain = []
    for leases in ((), None):
        context = FindingContext(ClusterView(store), f.FakeNode(leases=leases))
        finding = missing_masquerade.conflict(rule, None, "their source", [], context)
        assert finding
        certain.append((finding.certain, "perhaps not this node's" in finding.cause))
    assert certain == [(True, False), (False, True)]


def test_a_setting_that_was_not_asked_does_not_show_that_there_is_none() -> None:
    """The capture has tcp_timestamps alone: nothing is said of the other two settings."""

    def journal(question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
        return Known(ask()) if "net/ipv4/tcp_timestamps" in question else NotAsked(question)

    spaces = FakeInspector({"net/ipv4/tcp_timestamps": "1"}, journal=journal)
    detail = decision_detail("time-wait", 9, answer="ack", state="TIME_WAIT", ts_recent=5000, tsval=1000, seconds=4)
    text = cause(syn(detail), inspector=spaces)[1]
    assert text.endswith("; tcp_timestamps 1") and "does not exist" not in text


def test_a_known_listener_that_may_be_kube_proxy(tmp_path: Path) -> None:
    on = f.FakeNode(listeners={(30584, "tcp"): ListeningSocket("0.0.0.0", 30584, 812, "nginx")})
    certain, (likely,) = f.findings_of(
        [host_process.refused()], node("1.20.2-iptables-legacy", "S1").cluster_view(tmp_path), on, only("bound", "listener")
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
    monkeypatch.setattr("tracer.capture.record.prefetch.Prefetcher._ask_of_events", lambda *_: [])
    made = captures.capture(tmp_path / "a.k8st", explained=False)
    text, _ = replayed(made.path)
    assert "process not recorded (inode 48213)" in text and "not found" not in text


@pytest.mark.parametrize("is_short", [False, True])
def test_recording_without_explaining_asks_for_the_counters(tmp_path: Path, is_short: bool) -> None:
    """Also if the event of the drop is short: it leaves out the packet's header, which an earlier event has."""
    from contextlib import closing
    from sqlite3 import connect

    trail = Trail(("10.244.0.11", 40000, "10.244.3.7", 53), 1 << 8, 1000, in_name="cni0", length=1500)
    batch = trail.hook("PREROUTING").add("DROP", object=0x10, reason=6).batch
    if is_short:
        batch["flags"][-1] |= Flag.FLAG_SAME
        batch["length"][-1], batch["dst"][-1] = 0, b""
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
