# SPDX-License-Identifier: Apache-2.0
"""A replay prints the output of the run that made the capture, byte for byte; display filters choose among its packets."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.render import _clock


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)


@pytest.fixture
def read(run: Any) -> Any:
    """Runs a command that reads a capture, without root."""
    return run


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_replay_prints_the_output_of_the_run(tmp_path: Path, read: Any, form: str) -> None:
    made = captures.capture(tmp_path / "a.k8st", form=form)
    assert made.summary.packets == 6 and made.summary.lost == 17
    assert read("-r", made.path, "-o", form) == (0, made.text[form], made.messages)


def test_rules_names_and_processes_are_in_a_capture(tmp_path: Path, read: Any) -> None:
    made = captures.capture(tmp_path / "a.k8st", form="json")
    packets = [json.loads(line) for line in read("-r", made.path, "-o", "json")[1].splitlines()]
    packets = [p for p in packets if p["type"] == "packet"]
    drops = [p for p in packets if p["outcome"] == "dropped"]
    assert [h["rule"]["text"] for h in drops[-1]["hops"] if "rule" in h] == ["-p tcp -j DROP"]
    assert [h["chain_path"] for h in drops[-1]["hops"] if "chain_path" in h] == ["INPUT 1"]
    assert drops[-1]["drop"] == {"reason": "NETFILTER_DROP", "function": "nf_hook_slow"}
    served = next(p for p in packets if p["outcome"] != "dropped")
    assert [h["socket"]["command"] for h in served["hops"] if "socket" in h] == ["nginx"]
    assert [h["netns"] for h in served["hops"]][-1] == "pod-a"
    assert served["ends"]["dst"]["text"].startswith("Service default/http-proxy")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--port", "8080"], 6), (["--port", "30285"], 3), (["--host", "10.244.0.0/16"], 3), (["--drops-only"], 3),
        (["--netns", "pod-a"], 3), (["--iface", "cni0"], 3), (["--proto", "udp"], 0), (["-6"], 0), (["-n", "2"], 2),
        (["--service", "default/http-proxy"], 3), (["--node-port", "30285"], 3),
    ],
)  # fmt: skip
def test_filters_choose_among_the_recorded_packets(tmp_path: Path, read: Any, options: list[str], count: int) -> None:
    made = captures.capture(tmp_path / "a.k8st", form="json")
    status, out, _ = read("-r", made.path, "-o", "json", *options)
    assert (status, sum('"type":"packet"' in line for line in out.splitlines())) == (0, count)


def test_a_capture_recorded_without_explaining_is_explained_as_live(tmp_path: Path, read: Any) -> None:
    live = captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")
    unexplained = captures.capture(tmp_path / "b.k8st", captures.some_batches(20), form="json", explained=False)
    assert '"type":"packet"' not in unexplained.text["json"]
    _, out, _ = read("-r", unexplained.path, "-o", "json")

    def packets(text: str) -> list[str]:
        return [line for line in text.splitlines() if '"type":"packet"' in line]

    assert packets(out) == packets(live.text["json"]) and len(packets(out)) == 20


def test_only_the_owner_reads_a_capture_and_it_has_no_unneeded_data(tmp_path: Path) -> None:
    made = captures.capture(tmp_path / "a.k8st")
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    with CaptureReader(str(made.path)) as found:
        assert "hunter2" not in str(list(found.records()))
        assert found.missed == 0 and found.ended()
        assert sum(b.events for b in found.chunks()) == made.summary.events + 1, "the table look-up is no event of a packet"


def test_an_existing_file_is_not_overwritten(tmp_path: Path, read: Any) -> None:
    made = captures.capture(tmp_path / "a.k8st")
    status, out, err = read("--port", "1", "-w", made.path)
    assert (status, out) == (20, "") and err == f"k8snet-trace: The capture {made.path} cannot be made: File exists.\n"


def test_a_replay_uses_the_time_zone_of_the_node(tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    made = captures.capture(tmp_path / "a.k8st")
    monkeypatch.setenv("TZ", "America/Lima")
    time.tzset()
    _clock._second.cache_clear()
    assert read("-r", made.path)[1] == made.text["text"]
