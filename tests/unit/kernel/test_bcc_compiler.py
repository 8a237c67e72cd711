# SPDX-License-Identifier: Apache-2.0
"""The compiling processes: what they answer, and that they end with the process that started them.

A package of that name takes bcc's place, which waits or fails. What bcc compiles: test_compiled.py, test_program_source.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracer.errors import CompileFailed
from tracer.kernel import bcc_compiler

ROOT = Path(__file__).resolve().parents[3]
WAITS = """
import os, pathlib, time
class BPF:
    def __init__(self, text, cflags):
        pathlib.Path({directory!r}, f"pid.{{os.getpid()}}").write_text(text)
        time.sleep({seconds})
        raise Exception("Failed to compile BPF module <text>")
"""
PARENT = "from tracer.kernel import bcc_compiler; bcc_compiler.compile_texts(['one', 'two'])"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for sys.path in which a bcc is installed that waits for a minute; it writes its process number there."""
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc/__init__.py").write_text(WAITS.format(directory=str(tmp_path), seconds=60))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def compilers(directory: Path) -> list[int]:
    """The numbers of the processes that have begun to compile."""
    return sorted(int(path.suffix[1:]) for path in directory.glob("pid.*"))


def wait_for_two(directory: Path) -> list[int]:
    until = time.monotonic() + 30
    while len(compilers(directory)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    return compilers(directory)


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def all_ended(pids: list[int]) -> bool:
    until = time.monotonic() + 30
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(is_running, pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_they_end_with_the_process_that_started_them(stand_in: Path, number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": f"{stand_in}:{ROOT}"}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=environment, stderr=subprocess.DEVNULL) as parent:
        pids = wait_for_two(stand_in)
        assert len(pids) == 2 and all(map(is_running, pids)) and parent.pid not in pids
        parent.send_signal(number)
    assert all_ended(pids)


def test_a_text_that_does_not_compile(stand_in: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (stand_in / "bcc/__init__.py").write_text(WAITS.format(directory=str(stand_in), seconds=0))
    message = "^The BPF text does not compile on this machine: Failed to compile BPF module <text>.$"
    with pytest.raises(CompileFailed, match=message):
        bcc_compiler.compile_texts(["one", "two"])
    assert "Traceback" not in capfd.readouterr().err
    assert all_ended(compilers(stand_in))


def test_a_compiler_that_is_killed(stand_in: Path) -> None:
    """As by the kernel, when memory is short."""
    (stand_in / "bcc/__init__.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(CompileFailed, match="does not compile on this machine"):
        bcc_compiler.compile_texts(["one"])
