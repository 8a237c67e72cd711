# SPDX-License-Identifier: Apache-2.0
"""Programs are detached without bcc where bcc would do it wrongly. All other tests need a kernel: tests/kernel."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracer.kernel import bcc_program


class Bcc:
    """bcc with two kprobes. closed: perf events that were closed. opened: perf events for which bcc opened a tracefs file."""

    def __init__(self) -> None:
        self.kprobe_fds = {b"p_nf_hook_slow": {b"kprobe__a": 11, b"kprobe__b": 12}, b"r_nf_hook_slow": {b"kretprobe__a": 13}}
        self.closed: list[int] = []
        self.opened: list[int] = []
        self.libbcc = SimpleNamespace(lib=SimpleNamespace(bpf_close_perf_event_fd=self.closed.append))

    def cleanup(self) -> None:
        for programs in self.kprobe_fds.values():
            self.opened += programs.values()
            self.closed += programs.values()


@pytest.mark.parametrize(
    ("events", "opened"),
    [
        ("p:kprobes/p_tcp_v4_rcv_bcc_0 tcp_v4_rcv\n", []),
        (None, []),
        (f"p:kprobes/p_nf_hook_slow_bcc_{os.getpid()} nf_hook_slow\n", [11, 12, 13]),
    ],
    ids=["on a node", "in a container", "with events in tracefs"],
)
def test_kprobes_are_detached_once_and_silently(
    events: str | None, opened: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bcc looks into tracefs for each kprobe: that mounts it at /sys/kernel/debug/tracing, and fails if there is no tracefs."""
    (mounts := tmp_path / "mounts").write_text(
        "proc /proc proc rw 0 0\n" + f"tracefs {tmp_path} tracefs rw 0 0\n" * (events is not None)
    )
    if events:
        (tmp_path / "kprobe_events").write_text(events)
    monkeypatch.setattr(bcc_program, "MOUNTS", mounts)
    running: Any = object.__new__(bcc_program.BccProgram)
    running.bpf = running._bcc = bcc = Bcc()
    running.close()
    assert bcc.closed == [11, 12, 13]
    assert bcc.opened == opened
