# SPDX-License-Identifier: Apache-2.0
"""--color: above NO_COLOR and FORCE_COLOR, for each command and for all that rich prints."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import captures
from tests.support import sample_packets as samples
from tests.support.terminal import Terminal
from tests.unit.analysis.top.test_printing import interval
from tracer.analysis.result_table import ResultTable, show
from tracer.analysis.top.printing import PrintedTables
from tracer.cli import main
from tracer.render.text import TextOutput
from tracer.util import color
from tracer.util.color import ColorMode


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    yield
    color.use(ColorMode.AUTO)


def packet(out: io.StringIO) -> None:
    TextOutput(out, io.StringIO()).packet(samples.rejected())


def top(out: io.StringIO) -> None:
    PrintedTables("service", "packets", 20, out).show(interval())


def statistics(out: io.StringIO) -> None:
    show([ResultTable("A table", ("packets", "rule"), [(3, "x")])], out, "text")


CASES = [
    (ColorMode.AUTO, True, {}, True),
    (ColorMode.AUTO, False, {}, False),
    (ColorMode.AUTO, False, {"FORCE_COLOR": "1"}, True),
    (ColorMode.AUTO, False, {"TTY_COMPATIBLE": "1"}, True),
    (ColorMode.AUTO, True, {"TERM": "dumb"}, False),
    (ColorMode.ALWAYS, False, {}, True),
    (ColorMode.ALWAYS, False, {"NO_COLOR": "1", "TERM": "dumb"}, True),
    (ColorMode.NEVER, True, {}, False),
    (ColorMode.NEVER, False, {"FORCE_COLOR": "1"}, False),
]


@pytest.mark.parametrize("printed", [packet, top, statistics])
@pytest.mark.parametrize(("mode", "is_terminal", "variables", "is_styled"), CASES)
def test_who_decides(
    printed: object,
    mode: ColorMode,
    is_terminal: bool,
    variables: dict[str, str],
    is_styled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    color.use(mode)
    out = Terminal() if is_terminal else io.StringIO()
    assert callable(printed)
    printed(out)
    assert ("\x1b[" in out.getvalue()) is is_styled


def test_no_color_leaves_bold_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    packet(out := Terminal())
    assert "\x1b[1m" in out.getvalue() and "\x1b[1;31m" not in out.getvalue()


def test_lines_into_a_pipe_are_not_folded() -> None:
    color.use(ColorMode.ALWAYS)
    packet(out := io.StringIO())
    assert max(map(len, out.getvalue().splitlines())) > 100


def test_each_command_has_the_option() -> None:
    assert all("--color" in {word for p in each.params for word in p.opts} for each in main.command.commands.values())


def test_the_option_changes_no_variable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    path = captures.capture(tmp_path / "a.k8st").path
    found = []
    for mode in ColorMode:
        with pytest.raises(SystemExit):
            main.main(["-r", str(path), "--color", mode.value])
        found.append("\x1b[" in capsys.readouterr().out)
    assert found == [False, True, False] and {k: v for k, v in os.environ.items() if k != "TZ"} == {
        k: v for k, v in before.items() if k != "TZ"
    }


def test_an_unknown_word_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main.main(["doctor", "--color", "sometimes"])
    assert e.value.code == 2 and "'sometimes' is not one of 'auto', 'always', 'never'" in capsys.readouterr().err


def test_an_output_without_colours_does_not_import_rich() -> None:
    """It takes a twentieth of a start's CPU time."""
    lines = (
        "import io, sys; from tracer import render",
        "render.find(sys.argv[1])(io.StringIO(), io.StringIO()).begin([], '')",
        "sys.exit('rich' in sys.modules)",
    )
    for form in ("oneline", "text"):
        variables = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
        assert subprocess.run([sys.executable, "-c", "\n".join(lines), form], env=variables, check=False).returncode == 0, form
