# SPDX-License-Identifier: Apache-2.0
"""How programs are taken away again where bcc cannot do it alone. Everything else needs a kernel: tests/kernel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracer.kernel import program


class Bcc:
    """bcc with two kprobes: like it, raises for each that it finds no tracefs for. closed: perf events."""

    def __init__(self, tracefs: bool) -> None:
        self.kprobe_fds = {b"p_nf_hook_slow": {b"kprobe__a": 11, b"kprobe__b": 12}, b"r_nf_hook_slow": {b"kretprobe__a": 13}}
        self.closed: list[int] = []
        self.libbcc = SimpleNamespace(lib=SimpleNamespace(bpf_close_perf_event_fd=self.closed.append))
        self._tracefs = tracefs

    def cleanup(self) -> None:
        for programs in self.kprobe_fds.values():
            for fd in programs.values():
                if not self._tracefs:
                    raise Exception("Failed to detach BPF from kprobe")
                self.closed.append(fd)


@pytest.mark.parametrize("tracefs", [True, False], ids=["on a node", "in a container"])
def test_kprobes_are_taken_away_once_and_silently(tracefs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "kprobe_events"
    if tracefs:
        events.touch()
    monkeypatch.setattr(program, "KPROBE_EVENTS", (tmp_path / "debug" / "kprobe_events", events))
    running: Any = object.__new__(program.Program)
    running.bpf = running._bcc = bcc = Bcc(tracefs)
    running.close()
    assert bcc.closed == [11, 12, 13]
