# SPDX-License-Identifier: Apache-2.0
"""Several outputs of one run: a slow or broken one stops no other, and its losses are in every summary."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_packets as samples
from tests.support.waiting import until
from tracer.errors import BadOption, OutputNotWritten
from tracer.model.summary import OutputLoss, RunSummary
from tracer.pipeline import sinks
from tracer.pipeline.sinks import OutputSpec, opened, parse
from tracer.render.base import Output
from tracer.render.text import TextOutput
from tracer.util import queued_stream
from tracer.util.queued_stream import QueuedStream


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_broken(output: Output) -> bool:
    assert isinstance(output.out, QueuedStream)
    return output.out.error is not None


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    assert found[-1]["type"] == "summary"
    return found[-1]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("text", OutputSpec("text")),
        ("json", OutputSpec("json")),
        ("json:a.jsonl", OutputSpec("json", "a.jsonl")),
        ("text:/tmp/x:y", OutputSpec("text", "/tmp/x:y")),
    ],
)
def test_an_output_is_a_format_and_a_file(text: str, spec: OutputSpec) -> None:
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "why"), [("yaml", "no output format 'yaml'"), ("json:", "names no file"), ("", "no output format")]
)
def test_what_is_no_output(text: str, why: str) -> None:
    with pytest.raises(BadOption, match=why):
        parse(text)


@pytest.mark.parametrize("specs", [["text", "json"], ["json:a", "text:a"]])
def test_two_outputs_need_two_places(specs: list[str]) -> None:
    with pytest.raises(BadOption, match="its own file"), opened([parse(spec) for spec in specs], False):
        pass


def test_one_printed_output_has_no_queue(capsys: pytest.CaptureFixture[str]) -> None:
    with opened([parse("text")], False) as output:
        assert type(output) is TextOutput
        assert list(output.outputs()) == [output]


def test_files_get_what_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with opened([parse("text"), parse(f"json:{tmp_path}/a"), parse(f"text:{tmp_path}/b")], False) as output:
        assert [each.shows_all_results for each in output.outputs()] == [False, True, False]
        output.note("a note")
        output.packet(samples.ping())
        output.summary(RunSummary(1))
    printed = capfd.readouterr()
    assert printed.out == (tmp_path / "b").read_text() and "1 packet in" in printed.out
    assert printed.err == "a note\n"
    assert [line["type"] for line in lines(tmp_path / "a")] == ["packet", "summary"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    for name in ("a", "link"):
        with pytest.raises(OutputNotWritten, match="exists already"), opened([parse(f"json:{tmp_path}/{name}")], False):
            pass
    assert (tmp_path / "a").read_text() == "precious" and not (tmp_path / "b").exists()


def test_a_missing_directory_is_one_sentence(tmp_path: Path) -> None:
    missing = parse(f"json:{tmp_path}/x/a")
    with pytest.raises(OutputNotWritten, match="cannot be written: No such file"), opened([missing], False):
        pass


def test_one_is_slow_and_one_fails_and_the_third_is_complete(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow one: a pipe that is not read until the run has ended. The numbers of both losses are exact."""
    monkeypatch.setattr(queued_stream, "QUEUE_BYTES", 20_000)
    os.mkfifo(tmp_path / "slow")
    reader = os.open(tmp_path / "slow", os.O_RDONLY | os.O_NONBLOCK)
    specs = [parse(f"json:{tmp_path}/good"), parse(f"json:{tmp_path}/slow"), parse("json:/dev/full")]
    got: list[bytes] = []

    def read() -> None:
        os.set_blocking(reader, True)
        while part := os.read(reader, 1 << 16):
            got.append(part)

    late = threading.Thread(target=read)
    with pytest.raises(OutputNotWritten, match=r"^json:/dev/full is not complete: No space left on device\.$"):  # noqa: SIM117
        with opened(specs, False) as output:
            good_stream, _, full_stream = (each.out for each in output.outputs())
            assert isinstance(good_stream, QueuedStream) and isinstance(full_stream, QueuedStream)
            for _ in range(400):
                output.packet(samples.ping())
                until(lambda: not good_stream._records)
            until(lambda: full_stream.error)
            output.summary(RunSummary(400))
            late.start()
    late.join(60)
    os.close(reader)
    good, slow = lines(tmp_path / "good"), [json.loads(line) for line in b"".join(got).splitlines()]
    assert [line["type"] for line in good] == ["packet"] * 400 + ["summary"]
    slow_loss, full_loss = summary(good)["not_written"]
    assert slow_loss == {
        "output": f"json:{tmp_path}/slow", "records": 401 - len(slow), "why": "its reader was too slow"
    }  # fmt: skip
    assert 0 < slow_loss["records"] < 400 and summary(slow)["not_written"] == summary(good)["not_written"]
    assert full_loss == {"output": "json:/dev/full", "records": 400, "why": "No space left on device"}
    assert capfd.readouterr().err == "The output json:/dev/full stops here: No space left on device. The others continue.\n"


def test_a_recorded_run_goes_on_when_nothing_can_be_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with opened([parse("text")], False, recorded=True) as output:
            output.packet(samples.ping())
            until(lambda: is_broken(output))
            for _ in range(3):
                output.packet(samples.ping())
    assert capfd.readouterr().err == "The printed output stops here: No space left on device. The recording continues.\n"


def test_without_any_output_left_the_run_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BrokenPipeError), opened([parse(f"json:{tmp_path}/pipe")], False) as output:
        os.close(reader)
        until(lambda: output.packet(samples.ping()), pause=0.01)


def test_the_end_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the reader of a pipe did not take in time is in no summary any more, so a note has its number."""
    monkeypatch.setattr(sinks, "END_PATIENCE", 0.2)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with opened([parse(f"json:{tmp_path}/pipe"), parse(f"json:{tmp_path}/good")], False) as output:
        for _ in range(400):
            output.packet(samples.ping())
        output.summary(RunSummary(400))
    os.close(reader)
    assert len(lines(tmp_path / "good")) == 401
    note = capfd.readouterr().err
    assert note.startswith(f"json:{tmp_path}/pipe: ") and note.endswith(" records were not written: its reader was too slow.\n")


def test_the_summary_keeps_what_the_capture_could_not_take(tmp_path: Path) -> None:
    lost = OutputLoss("night.k8st", 3, "the disk was too slow or full")
    with opened([parse(f"json:{tmp_path}/good")], False) as output:
        output.summary(RunSummary(1, not_written=[lost]))
    assert summary(lines(tmp_path / "good"))["not_written"] == [{"output": "night.k8st", "records": 3, "why": lost.why}]


def test_a_loss_after_the_summary_is_noted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The reader of a pipe ends while the summary still waits in the queue, so no summary has the loss."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OutputNotWritten, match="is not complete: its reader has ended"):  # noqa: SIM117
        with opened([parse(f"json:{tmp_path}/good"), parse(f"json:{tmp_path}/pipe")], False) as output:
            for _ in range(400):
                output.packet(samples.ping())
            output.summary(RunSummary(400))
            os.close(reader)
            until(lambda: is_broken([*output.outputs()][1]))
    assert "not_written" not in summary(lines(tmp_path / "good"))
    assert re.fullmatch(
        rf"json:{tmp_path}/pipe: [1-9]\d* records? w(ere|as) not written: its reader has ended\.\n", capfd.readouterr().err
    )
