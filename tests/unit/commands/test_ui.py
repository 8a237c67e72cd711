# SPDX-License-Identifier: Apache-2.0
"""The command `ui`: its options, what it needs, and that a live run gets the view."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tracer.commands import ui
from tracer.errors import NoLibrary, NoTerminal
from tracer.pipeline.shutdown import StopRequest
from tracer.ui.feed import ScreenFeed


def test_without_textual(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    status, out, err = run("ui", "-r", "a.k8st")
    assert status == 24 and out == "" and err.count("\n") == 1
    assert "ui needs textual, which is not installed: apt-get install python3-textual, or" in err
    assert "pip install '.[ui]' in a checkout" in err and "pip install textual" not in err


@pytest.mark.parametrize(
    ("version", "is_good"), [("0.1.13", False), ("2.0.4", False), ("2.1.2", True), ("8.2.8", True), ("10.0", True)]
)
def test_versions_of_textual(monkeypatch: pytest.MonkeyPatch, version: str, is_good: bool) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    monkeypatch.setenv(ui.WEB_DRIVER, "x")
    if is_good:
        ui.require_screen()
    else:
        with pytest.raises(NoLibrary, match=rf"ui needs textual 2\.1 or later, and {version} is installed: apt-get"):
            ui.require_screen()


def test_without_a_terminal(run: Any) -> None:
    status, out, err = run("ui", "--port", "80")
    assert status == NoTerminal.status == 27 and out == "" and err.count("\n") == 1 and "ui needs a terminal" in err


def test_a_browser_is_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ui.WEB_DRIVER, "textual.drivers.web_driver:WebDriver")
    status, _, err = run("ui", "-r", "missing.k8st", "--write", "x")
    assert status == 2 and "cannot be combined with --write" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-r", "x.k8st", "--duration", "5"], "cannot be combined with --duration"),
        (["--ring", "10M"], "need -w FILE"),
        (["--follow"], "No such option"),
        (["-o", "json"], "No such option"),
        (["--port", "99999"], "99999"),
    ],
)
def test_wrong_options_are_one_sentence(run: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str) -> None:
    monkeypatch.setenv(ui.WEB_DRIVER, "x")
    status, out, err = run("ui", *words)
    assert status == 2 and out == "" and sentence in err and err.count("\n") == 1


def test_a_live_run_gets_the_view_and_the_options_of_trace(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def trace(cmd: Any, **arguments: Any) -> int:
        with arguments["view"] as output:
            given.append((cmd, arguments, output))
        return 0

    monkeypatch.setenv(ui.WEB_DRIVER, "x")
    monkeypatch.setattr("tracer.commands.trace.trace", trace)
    status, *_ = run("ui", "--port", "80", "--drops-only", "-w", "a.k8st", "-v", "-n", "5")
    ((cmd, arguments, output),) = given
    assert status == 0 and cmd == () and isinstance(output, ScreenFeed) and output.verbose
    assert (arguments["ports"], arguments["drops_only"], arguments["target"], arguments["count"]) == (
        ("80",),
        True,
        "a.k8st",
        5,
    )
    assert arguments["end_seconds"] < 1 and arguments["numbers_connections"] and arguments["verbose"]


def test_a_capture_is_replayed_with_the_filters(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []

    class Shown:
        def __init__(self, feed: ScreenFeed, verbose: bool) -> None:
            self.feed = feed

        def drive(self, complete: Any, stop: StopRequest) -> int:
            status = complete()
            given.append((self.feed, status))
            return int(status)

    from tests.support import captures

    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    path = captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path
    monkeypatch.setenv(ui.WEB_DRIVER, "x")
    monkeypatch.setattr("tracer.ui.screen_run.ScreenRun", Shown)
    for words, packets in (((), 20), (("--drops-only",), 10)):
        assert run("ui", "-r", path, *words)[0] == 0
        feed, status = given.pop()
        assert status == 0 and feed.counts.packets == packets == feed.totals.packets and feed.counts.bad == 10
        assert feed.counts.lost == 17 and feed.title == f"-r {path}"
