# SPDX-License-Identifier: Apache-2.0
"""Several nodes in one stream, with a program in place of kubectl: what each node shows, and what a broken one costs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.support import clusters, known_capture, sample_packets
from tests.support.agent_frames import AgentBytes, stream_of
from tests.support.clusters import FakeCluster
from tests.support.fake_kubectl import ROOT
from tests.support.node_views import EPOCH, INSIDE_NS, SECOND, packet
from tests.support.traced_clusters import TracedCluster
from tracer.cluster.cluster_run import END_SECONDS, ClusterRun, NodeCommand
from tracer.cluster.cluster_totals import ClusterTotals
from tracer.cluster.join_horizon import JoinHorizon
from tracer.cluster.node_clock import NodeClock
from tracer.cluster.packet_stage import SingleViews
from tracer.errors import NoAgent
from tracer.joining.packet_joiner import PacketJoiner
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.messages import BatchEnd, Begin, End, FrameKind, Hello, PacketClock, Pong, Shed
from tracer.render.json import JsonOutput

NODES = ("node-1", "node-2")
Line = dict[str, Any]
Pods = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known_capture.make(tmp_path_factory.mktemp("capture") / "known.k8st")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    objects = [*known_capture.OBJECTS, *map(clusters.node, NODES), *map(clusters.agent_pod, NODES)]
    with clusters.cluster(tmp_path, objects) as made:
        yield made


def replayed(capture: Path, *options: str) -> str:
    """What a run on one node prints."""
    command = [sys.executable, "-m", "tracer", "-r", str(capture), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def results(text: str) -> list[Line]:
    """The lines of JSON output, without the first and the last one of a run."""
    return [line for line in map(json.loads, text.splitlines()) if line["type"] not in ("run", "summary")]


def test_each_node_shows_what_a_run_on_it_shows(cluster: FakeCluster, capture: Path) -> None:
    done = cluster.run({f"agent-{name}": {"capture": str(capture)} for name in NODES}, "-o", "json")
    assert done.returncode == 0, done.stderr
    lines, alone = results(done.stdout), results(replayed(capture, "-o", "json"))
    for name in NODES:
        own = [{key: value for key, value in line.items() if key != "node"} for line in lines if line["node"] == name]
        # Packets of several nodes are in the order of their times, those of one in the order in which they ended.
        assert sorted(map(json.dumps, own)) == sorted(map(json.dumps, alone))
    assert len(lines) == 2 * len(alone)
    totals = json.loads(done.stdout.splitlines()[-1])
    assert (totals["packets"], totals["causes"]["accepted"]) == (660, 210)


@pytest.mark.parametrize(
    "options", [(), ("-o", "oneline"), ("-v",), ("--follow",), ("--drops-only",), ("--quiet", "--time", "utc")]
)
def test_the_text_of_one_node_has_its_name_and_is_otherwise_the_same(
    cluster: FakeCluster, capture: Path, options: Sequence[str]
) -> None:
    done = cluster.run({"agent-node-1": {"capture": str(capture)}}, "--node", "node-1", *options)
    assert done.returncode == 0, done.stderr
    alone = replayed(capture, *options)
    # The times of a run differ: how long it took.
    without = re.sub(r" in [\d.]+ s$", "", done.stdout, flags=re.MULTILINE)
    # The name stands before the first line of each result, and not before the summary, which is that of all nodes.
    assert without.replace("node-1  ", "") == re.sub(r" in [\d.]+ s$", "", alone, flags=re.MULTILINE).replace("node-1  ", "")
    assert done.stdout.count("node-1  ") > 10


def test_a_node_that_dies_inside_a_frame_costs_one_sentence(cluster: FakeCluster, capture: Path) -> None:
    pods: Pods = {"agent-node-1": {"capture": str(capture), "cut": 20_000}, "agent-node-2": {"capture": str(capture)}}
    done = cluster.run(pods, "-o", "json")
    assert done.returncode == 0
    assert "Node node-1 is no longer traced: error: unexpected EOF." in done.stderr.splitlines()
    lines, alone = results(done.stdout), results(replayed(capture, "-o", "json"))
    counts = {name: sum(line["node"] == name for line in lines) for name in NODES}
    assert 10 < counts["node-1"] < counts["node-2"] == len(alone)


def test_kubectl_that_fails_costs_one_sentence(cluster: FakeCluster, capture: Path) -> None:
    pods: Pods = {
        "agent-node-1": {"error": "\x1b[1mcontainer not found", "status": 1},
        "agent-node-2": {"capture": str(capture)},
    }
    done = cluster.run(pods, "--port", "80", "-n", "1")
    assert done.returncode == 0
    assert r"Node node-1 is not traced: Error from server (NotFound): \x1b[1mcontainer not found." in done.stderr
    assert done.stdout.count("node-2  ") >= 1


def test_no_node_at_all_is_an_error(cluster: FakeCluster) -> None:
    done = cluster.run({name: {"error": "forbidden", "status": 1} for name in ("agent-node-1", "agent-node-2")})
    assert done.returncode == NoAgent.status
    assert "k8snet-trace: No node was traced: node-" in done.stderr and "forbidden" in done.stderr


def test_top_counts_all_nodes(cluster: FakeCluster, capture: Path) -> None:
    pods: Pods = {f"agent-{name}": {"capture": str(capture)} for name in NODES}
    done = cluster.run(pods, "--once", "--interval", "3", "--by", "node", "-o", "json", "--port", "80", command="top")
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, done.stdout.splitlines())
    rows = {row["key"]: row for row in line["rows"]}
    assert set(rows) == set(NODES) and line["nodes"] == 2 and line["by"] == "node"
    assert rows["node-1"]["packets"] == rows["node-2"]["packets"] > 10
    assert line["total"]["packets"] <= 2 * rows["node-1"]["packets"]
    assert line["total"]["syn_ack"]["count"] > 10, "agents send the time, not the answers"
    words = cluster.commands()[0]
    assert words[words.index("--port") :][:2] == ["--port", "80"] and words[words.index("--duration") + 1] == "3.0"
    assert "Tracing 2 nodes: node-1, node-2." in done.stderr


def test_top_without_a_node_has_no_table(cluster: FakeCluster) -> None:
    pods: Pods = {name: {"error": "forbidden", "status": 1} for name in ("agent-node-1", "agent-node-2")}
    done = cluster.run(pods, "--once", command="top")
    assert (done.returncode, done.stdout) == (NoAgent.status, "") and "forbidden" in done.stderr


def test_wrong_commands_of_the_plugin_are_one_sentence(cluster: FakeCluster) -> None:
    for words, sentence in (
        (["tpo"], "No such command 'tpo', did you mean top?"),
        (["--port", "80", "top"], "must be the first word: kubectl k8snet-trace top [OPTIONS]."),
        (["top", "--", "true"], "runs no command after `--`"),
        (["top", "--ring", "10M"], "need -w FILE"),
        (["top", "--rows", "0"], "not in the range"),
    ):
        done = cluster.run({}, *words, command="")
        assert done.returncode == 2 and sentence in " ".join(done.stderr.split()) and not done.stdout, done.stderr


def test_the_agents_get_the_options_that_select(cluster: FakeCluster, capture: Path) -> None:
    done = cluster.run({"agent-node-1": {"capture": str(capture)}}, "--service", "shop/cart", "--drops-only", "-4", "-v")
    assert done.returncode == 0, done.stderr
    (words,) = cluster.commands()
    given = ["--service", "shop/cart", "--drops-only", "--verbose", "-4"]
    assert words[1:] == [
        "exec", "-i", "-n", "kube-system", "agent-node-1", "-c", "k8snet-trace", "--", "k8snet-trace", "agent", "--stdio",
        "--all-results", *given,
    ]  # fmt: skip
    assert "Tracing 1 node: node-1." in done.stderr


def test_nodes_without_a_pod_need_an_image(cluster: FakeCluster, tmp_path: Path, capture: Path) -> None:
    (tmp_path / "other").mkdir()
    with clusters.cluster(tmp_path / "other", [*known_capture.OBJECTS, clusters.node("node-1")]) as bare:
        refused = bare.run({})
        assert refused.returncode == NoAgent.status and "node-1 has no running pod of the DaemonSet" in refused.stderr
        done = bare.run({"node/node-1": {"capture": str(capture)}}, "--image", "reg/x@sha256:1", "--pod", "shop/cart-a")
        (words,) = bare.commands()
    assert done.returncode == NoAgent.status  # --no-kube cannot be combined with -r: the fake agent reads a capture
    debug = words.index("debug")
    assert words[debug : debug + 6] == ["debug", "node/node-1", "-i", "-q", "--image=reg/x@sha256:1", "--profile=sysadmin"]
    assert words[words.index("--stdio") + 1 :] == ["--host", "10.244.0.11", "--no-kube"]


def test_ctrl_c_ends_all_and_shows_the_summary(cluster: FakeCluster, capture: Path) -> None:
    pods: Pods = {"agent-node-1": {"capture": str(capture)}, "agent-node-2": {"silent": True}}
    process = subprocess.Popen(
        cluster.command("-o", "json"), env=cluster.environment(pods), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    first = process.stdout.readline()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(first)["node"] == "node-1" and json.loads(out.splitlines()[-1])["type"] == "summary"


def test_a_second_ctrl_c_waits_for_no_node(cluster: FakeCluster, capture: Path) -> None:
    pods: Pods = {"agent-node-1": {"capture": str(capture)}, "agent-node-2": {"silent": True}}
    process = subprocess.Popen(
        cluster.command("-o", "json"), env=cluster.environment(pods), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and time.monotonic() - began < END_SECONDS - 3
    assert "Explaining what was seen; Ctrl-C again ends at once." in err and "Traceback" not in err


def test_a_program_after_two_dashes_is_refused(cluster: FakeCluster) -> None:
    done = cluster.run({}, "--", "true")
    assert done.returncode == 2 and "runs no command" in done.stderr


# ---- streams that no agent writes: in this process ----


def run(streams: dict[str, bytes], tmp_path: Path, then: str = "", **more: Any) -> tuple[ClusterTotals, list[Line], str]:
    """A run with nodes that write these bytes. then: what each program does afterwards, in the shell."""
    commands = []
    for name, data in streams.items():
        (tmp_path / name).write_bytes(data)
        commands.append(NodeCommand(name, ["sh", "-c", f"cat {tmp_path / name}; {then or 'exit 0'}"]))
    out, err = StringIO(), StringIO()
    totals = ClusterRun(commands, JsonOutput(out, err), more.pop("stage", None) or SingleViews(), **more).run(StopRequest())
    return totals, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def test_a_node_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.cluster.cluster_run.HELLO_SECONDS", 1.0)
    commands = [NodeCommand("mute", ["sleep", "60"]), NodeCommand("gone", ["/no/such/program"])]
    out, err = StringIO(), StringIO()
    began = time.monotonic()
    totals = ClusterRun(commands, JsonOutput(out, err), SingleViews()).run(StopRequest())
    assert time.monotonic() - began < 20
    assert totals.failed == {
        "gone": "/no/such/program cannot be started: No such file or directory",
        "mute": "its agent has not answered within 1 s",
    }  # fmt: skip
    assert err.getvalue().count("is not traced") == 2


def test_a_node_that_falls_silent_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.cluster.cluster_run.SILENCE_SECONDS", 0.5)
    stream = stream_of(sample_packets.every())
    cut = stream[: len(stream) // 2]
    totals, lines, err = run({"node-a": cut, "node-b": stream}, tmp_path, then="sleep 2")
    assert err.count("Node node-a has said nothing for") == 1
    assert sum(line["node"] == "node-b" for line in lines) == len(sample_packets.every())
    assert list(totals.failed) == ["node-a"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"sh: k8snet-trace: not found\n", "it is not the stream of an agent"),
        (stream_of([], Hello(protocol=2)), "it speaks version 2 of the protocol"),
        (b"", "its stream|kubectl ended with status 0"),
    ],
)
def test_a_stream_that_cannot_be_read_costs_one_sentence(tmp_path: Path, data: bytes, why: str) -> None:
    totals, lines, err = run({"bad": data, "good": stream_of(sample_packets.every())}, tmp_path)
    assert list(totals.failed) == ["bad"] and re.search(why, err), err
    assert len(lines) == len(sample_packets.every())


def test_shed_results_are_said_and_reach_the_joining(tmp_path: Path) -> None:
    class Losses(SingleViews):
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[tuple[str, int, int]] = []

        def note_loss(self, node: str, since: int, until: int) -> None:
            self.losses.append((node, since, until))

    agent, stage = AgentBytes(), Losses()
    data = (
        agent.of(FrameKind.HELLO, Hello()) + agent.of(FrameKind.CLOCK, PacketClock(5)) + agent.of(FrameKind.PONG, Pong(9, 1, 2))
    )
    data += agent.of(FrameKind.SHED, Shed({"packet": 7, "finding": 1}, 10, 20)) + agent.of(FrameKind.END, End())
    totals, _, err = run({"slow": data}, tmp_path, stage=stage)
    assert err.count("Node slow sends more than this client takes: some results are not shown") == 1
    (loss,) = totals.summary.not_written
    assert (loss.records, loss.why) == (8, "the client was too slow (findings: 1, packets: 7)")
    # Its clock is not known, so any time may be meant.
    assert [(node, since) for node, since, _ in stage.losses] == [("slow", 0)]


def test_packets_pass_the_stage_with_their_node(tmp_path: Path) -> None:
    class Doubling(SingleViews):
        def feed(self, view: NodeView) -> None:
            self._views.append(JoinedPacket((view, view)))

    totals, lines, _ = run({"n": stream_of([sample_packets.ping()])}, tmp_path, stage=Doubling())
    assert [line["node"] for line in lines] == ["n", "n"] and not totals.failed
    assert totals.summary.joined == 0


def test_packets_of_several_nodes_are_counted_once_as_such(tmp_path: Path) -> None:
    class Joining(SingleViews):
        def feed(self, view: NodeView) -> None:
            self._views.append(JoinedPacket((replace(view, node="m"), replace(view, node="n"))))

    totals, _, _ = run({name: stream_of([sample_packets.ping()]) for name in "mn"}, tmp_path, stage=Joining())
    assert totals.summary.joined == 2 and not totals.failed


def test_more_nodes_than_are_started_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.cluster.cluster_run.MOST_STARTING", 2)
    names = [f"node-{number}" for number in range(9)]
    _, lines, _ = run({name: stream_of([sample_packets.ping()]) for name in names}, tmp_path)
    assert sorted(line["node"] for line in lines) == names


def test_the_count_ends_the_run(tmp_path: Path) -> None:
    streams = {name: stream_of(sample_packets.every()) for name in ("a", "b")}
    totals, lines, _ = run(streams, tmp_path, then="sleep 0.3", count=3)
    assert len(lines) == 3 == totals.summary.packets


# ---- what several nodes together show ----


def test_what_nodes_together_show_is_a_finding_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One packet comes to the other node, the next one does not: both nodes say until when they have sent all."""
    out, totals, err = _lossy_run(tmp_path, monkeypatch, unexplained=0)
    (finding,) = totals.summary.findings
    assert (finding.name, finding.certain, finding.packets) == ("lost_between_nodes", True, 1)
    (line,) = (line for line in out if line["type"] == "finding")
    assert (line["node"], line["name"], line["packets"]) == ("a", "lost_between_nodes", [2])
    places = [line["type"] for line in out]
    assert places.index("joined") < places.index("finding")
    assert "it is not known whether" not in err


def test_packets_that_a_node_did_not_explain_leave_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, totals, err = _lossy_run(tmp_path, monkeypatch, unexplained=3)
    assert not totals.summary.findings and not any(line["type"] == "finding" for line in out)
    assert (
        "1 packet left for another traced node, and it is not known whether it came there: the node lost events or packets"
        " then (1)." in err
    )


def _lossy_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unexplained: int) -> tuple[list[Line], ClusterTotals, str]:
    """A run on nodes a and b, of which each sends its summary at once."""
    monkeypatch.setattr(NodeClock, "read", lambda self, now: (0, 1000))
    # The probes are on since the client got word of it, so the packets are from after that.
    start = time.time_ns() + 30 * SECOND - EPOCH
    packets = {
        "a": [packet(start, number=1), packet(start + SECOND, ident=1, seq=5, number=2)],
        "b": [packet(start + 2 * INSIDE_NS, way="in", number=1)],
    }
    commands = []
    for name, sent in packets.items():
        agent = AgentBytes()
        begin = [agent.of(FrameKind.HELLO, Hello(node=name)), agent.of(FrameKind.CLOCK, PacketClock(0))]
        begin.append(agent.of(FrameKind.BEGIN, Begin()))
        rest = list(map(agent.packet, sent))
        rest += [agent.of(FrameKind.BATCH, BatchEnd(EPOCH + start + seconds * SECOND)) for seconds in (6, 7)]
        summary = RunSummary(unexplained=unexplained if name == "b" else 0)
        rest += [agent.of(FrameKind.SUMMARY, summary), agent.of(FrameKind.END, End())]
        for part, data in (("begin", begin), ("rest", rest)):
            (tmp_path / f"{name}-{part}").write_bytes(b"".join(data))
        commands.append(
            NodeCommand(name, ["sh", "-c", f"cd {tmp_path}; cat {name}-begin; sleep 0.5; cat {name}-rest; sleep 0.5"])
        )
    out, err = StringIO(), StringIO()
    findings = TracedCluster("").findings
    horizon = JoinHorizon(8_000_000_000)
    cluster_run = ClusterRun(commands, JsonOutput(out, err), PacketJoiner(), horizon=horizon, findings=findings)
    totals = cluster_run.run(StopRequest())
    return [json.loads(line) for line in out.getvalue().splitlines()], totals, err.getvalue()
