# SPDX-License-Identifier: Apache-2.0
"""Captures of several nodes as one: `-r` with each of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures, known_capture, two_nodes
from tests.support.builders import POD, SECOND, Ends, Trail, swapped
from tests.support.fake_kubectl import ROOT
from tracer.capture.record import environment
from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.cluster.join_horizon import MOST_AHEAD, OPEN_NS, RecordedHorizon
from tracer.cluster.node_captures import NodeCaptures
from tracer.errors import BadOption, CaptureUnreadable, DamagedCapture
from tracer.events.record import NOTHING, EventArray
from tracer.protocol.capture_pieces import CaptureTransaction, pieces

ASKED: Ends = ("192.168.56.1", 20_001, "192.168.56.10", 30285)
REACHED: Ends = ("192.168.56.1", 20_001, "10.244.1.5", 8080)
ESTABLISHED = 0
"""ct_info."""
PACKETS = 5
Line = dict[str, Any]


def forwarded(number: int, start: int) -> EventArray:
    """A packet to a NodePort that leaves for another node."""
    fields = {"seq": 1000 + number, "ident": number, "tcp_flags": 0x18, "ct_info": ESTABLISHED}
    t = Trail(ASKED, number << 8, start, in_name="eth0", orig=ASKED, reply=swapped(REACHED), **fields)
    return t.nat("PREROUTING", 1, REACHED).hook("POSTROUTING", in_name="", out_name="flannel.1").batch


def delivered(number: int, start: int) -> EventArray:
    """The same packet where it is delivered."""
    t = Trail(REACHED, number << 8, start, in_name="flannel.1", seq=1000 + number, ident=number, tcp_flags=0x18)
    t.hook("PREROUTING").hook("POSTROUTING", in_name="", out_name="cni0")
    return t.add("SOCKET", object=48213, state=10, netns=POD).batch


def make(path: Path, node: str, parts: list[EventArray], monkeypatch: pytest.MonkeyPatch, boot: str = "") -> Path:
    """A capture. boot: of the kernel; "" = as many boots as nodes."""
    monkeypatch.setenv("NODE_NAME", node)
    monkeypatch.setattr(environment, "boot_id", lambda: boot or f"boot of {node}")
    return captures.capture(path, [(part, []) for part in (*parts, NOTHING, NOTHING)]).path


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Captures of two nodes: five packets go from one to the other, 1 ms each."""
    began = time.monotonic_ns()  # the times of batches are those of this machine
    starts = [began + n * 100_000_000 for n in range(1, PACKETS + 1)]
    return [
        make(tmp_path / "a.k8st", "node-a", [forwarded(n, at) for n, at in enumerate(starts, 1)], monkeypatch),
        make(tmp_path / "b.k8st", "node-b", [delivered(n, at + 1_000_000) for n, at in enumerate(starts, 1)], monkeypatch),
    ]


def run(paths: list[Path], *options: str, command: str = "trace") -> subprocess.CompletedProcess[str]:
    words = [word for path in paths for word in ("-r", str(path))]
    program = [sys.executable, "-m", "tracer", command, *words, *options]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)


def lines(text: str) -> list[Line]:
    return [json.loads(line) for line in text.splitlines()]


def test_packets_of_two_nodes_are_joined(both: list[Path]) -> None:
    done = run(both, "-o", "json")
    assert done.returncode == 0, done.stderr
    joined = [line for line in lines(done.stdout) if line["type"] == "joined"]
    assert len(joined) == PACKETS
    assert [[view["node"] for view in line["views"]] for line in joined] == [["node-a", "node-b"]] * PACKETS
    assert {line["links"][0]["certainty"] for line in joined} == {"observed"}
    assert not any(line["type"] == "packet" for line in lines(done.stdout))
    assert lines(done.stdout)[-1]["packets"] == 2 * PACKETS


def test_the_order_of_the_files_does_not_matter(both: list[Path]) -> None:
    def packets(paths: list[Path]) -> list[Line]:
        return [line for line in lines(run(paths, "-o", "json").stdout) if line["type"] == "joined"]

    assert packets(both) == packets(both[::-1])


def test_a_filter_and_a_count_hold_for_all(both: list[Path]) -> None:
    assert run(both, "--port", "9", "-o", "oneline").stdout.count("node-a  ") == 0
    done = run(both, "-n", "2", "-o", "json")
    assert Counter(line["type"] for line in lines(done.stdout))["joined"] == 2


def test_top_counts_a_packet_of_two_nodes_once(both: list[Path]) -> None:
    for by, keys in (("service", {"default/http-proxy"}), ("node", {"node-a", "node-b"}), ("endpoint", {"10.244.1.5:8080"})):
        done = run(both, "--by", by, "-o", "json", command="top")
        assert done.returncode == 0, done.stderr
        (line,) = lines(done.stdout)
        assert (line["total"]["packets"], line["nodes"]) == (PACKETS, 2)
        assert {row["key"]: row["packets"] for row in line["rows"]} == dict.fromkeys(keys, PACKETS)
        assert {hop["node"] for hop in line["total"]["hops"]} == {"node-b"}, "node-a has one place"
    text = run(both, "--by", "node", command="top").stdout
    assert "top by node" in text and "2 nodes" in text and "node-b: node PREROUTING > node POSTROUTING" in text


def test_top_of_two_nodes_has_the_errors_of_reading(both: list[Path], tmp_path: Path) -> None:
    (tmp_path / "x.k8st").write_bytes(b"nothing")
    done = run([*both, tmp_path / "x.k8st"], command="top")
    assert done.returncode == CaptureUnreadable.status and not done.stdout
    assert run(both, "--once", command="top").returncode == BadOption.status


def test_one_that_is_cut_short_is_said_and_the_others_are_read(both: list[Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.k8st"
    cut.write_bytes(both[1].read_bytes())
    with cut.open("r+b") as file:
        file.truncate(cut.stat().st_size - 4096)
    done = run([both[0], cut], "-o", "json")
    assert done.returncode in (DamagedCapture.status, CaptureUnreadable.status) and "Traceback" not in done.stderr
    assert "could be read" in done.stderr or "can be read" in done.stderr
    if done.returncode == DamagedCapture.status:
        assert sum(line["type"] in ("packet", "joined") for line in lines(done.stdout)) >= PACKETS


def test_two_runs_on_one_node_are_refused(both: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make(tmp_path / "c.k8st", "node-a", [forwarded(1, SECOND), forwarded(2, 2 * SECOND)], monkeypatch)
    with CaptureReader(str(other)) as first, CaptureReader(str(both[0])) as second:
        assert first.host["name"] == second.host["name"] == "node-a"
        is_same_run = first.meta["clock"] == second.meta["clock"]
    assert not is_same_run
    for paths in ([both[0], other], [*both, other]):
        done = run(paths)
        assert done.returncode == BadOption.status and "are not of one run" in done.stderr


def test_one_machine_with_two_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet that leaves as it came would be joined with itself."""
    began = time.monotonic_ns()
    parts = [delivered(n, began + n * 100_000_000) for n in (1, 2)]
    paths = [make(tmp_path / f"{name}.k8st", name, parts, monkeypatch, boot="5ca1ab1e") for name in ("worker-1", "ip-10-0-0-1")]
    done = run(paths, "-o", "json")
    assert (done.returncode, done.stdout) == (BadOption.status, "")
    assert "worker-1 and ip-10-0-0-1 are one machine, traced under two names" in done.stderr


def test_the_recorded_clock_of_a_node_is_used(both: list[Path], tmp_path: Path) -> None:
    """The clock of one node is 47 s behind: without its record the two views are too far apart."""
    captured = NodeCaptures(tmp_path / "captures", RotationLimits())
    meta, records, batches = known_capture.rows(both[0])
    meta = {name: value for name, value in meta.items() if name not in ("parts", "repeated")}
    for number, batch in enumerate(batches, 1):
        is_last = number == len(batches)
        sent = CaptureTransaction(meta if number == 1 else None, records if is_last else [], batch)
        for piece in pieces(sent):
            captured.feed("node-a", piece, -47_000_000_000, 250_000)
    (path,) = captured.close()
    with CaptureReader(str(path)) as capture:
        assert capture.clock() == (-47_000_000_000, 250_000) and capture.missed == 0
    with CaptureReader(str(both[0])) as capture:
        assert capture.clock() is None
    assert run([path], "-o", "json").stdout == run([both[0]], "-o", "json").stdout
    apart = [line for line in lines(run([path, both[1]], "-o", "json").stdout) if line["type"] in ("packet", "joined")]
    assert Counter(line["type"] for line in apart) == {"packet": 2 * PACKETS}


def test_the_horizon_is_that_of_the_slowest_capture() -> None:
    horizon = RecordedHorizon(("a", "b"))
    assert horizon.read((), 0) == 0
    horizon.advance("a", 10 * SECOND)
    assert horizon.read((), 0) == 0
    horizon.advance("b", 7 * SECOND)
    assert horizon.read((), 0) == 7 * SECOND - OPEN_NS
    assert horizon.is_ahead("a", MOST_AHEAD + 1) and not horizon.is_ahead("a", MOST_AHEAD)
    assert not horizon.is_ahead("b", MOST_AHEAD + 1)
    horizon.end("b")
    assert horizon.read((), 0) == 10 * SECOND - OPEN_NS and not horizon.is_ahead("a", MOST_AHEAD + 1)
    horizon.end("a")
    horizon.advance("a", SECOND)
    assert horizon.read((), 0) > 1 << 60


def test_times_of_all_nodes_are_of_one_clock(tmp_path: Path) -> None:
    """The clock of node-b is an hour slow, and its capture says so: lines for people show its packets an hour later."""
    hour = timedelta(hours=1)
    made = two_nodes.make(tmp_path, offsets={"node-a": 0, "node-b": hour // timedelta(microseconds=1) * 1000})
    told = [line for line in lines(run(made, "-o", "json").stdout) if line["type"] == "packet" and line["node"] == "node-b"]
    own = sorted(datetime.fromisoformat(line["time"][:26] + "+00:00") for line in told)
    done = run(made, "-o", "oneline", "--time", "epoch")
    shown = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("node-b  1")]
    assert len(own) == 4 and sorted(map(float, shown)) == [(time + hour).timestamp() for time in own]
    assert f"of {shown[-1]}  " in done.stdout, "the cause of a SYN names the time of its packet's line"
