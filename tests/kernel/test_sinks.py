# SPDX-License-Identifier: Apache-2.0
"""Three outputs of one run: one is not read for ten seconds, one cannot be written; the third one is complete."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scenes import traffic
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import ENVIRONMENT, wait_until_ready

BLOCKED_SECONDS = 10.0
SMALL_QUEUE = "from tracer.util import queued_stream as q; q.QUEUE_BYTES = 400_000; from tracer.cli.main import main; main()"
"""The command with a small queue: an emulated machine does not fill the real one in ten seconds."""
REQUESTS = 120
TOGETHER = 20
"""Requests after which the test waits until they are printed: packets wait until the rules are read, and then come at once."""
PATIENCE = 120.0
"""Longest wait for that, s."""


class LateReader:
    """Reads a named pipe, which it opened before, only after BLOCKED_SECONDS."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._content = b""
        self._thread = threading.Thread(target=self._read)
        self._began = 0.0

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def _read(self) -> None:
        time.sleep(BLOCKED_SECONDS)
        os.set_blocking(self._fd, True)
        while part := os.read(self._fd, 1 << 16):
            self._content += part
        os.close(self._fd)

    def lines(self) -> list[dict[str, Any]]:
        """All that it read, when the writer has ended."""
        self._thread.join()
        return [json.loads(line) for line in self._content.splitlines()]


def wait_for(packets: int, good: Path, process: subprocess.Popen[str]) -> None:
    """Waits until that many packets are printed."""
    until = time.monotonic() + PATIENCE
    while (lines := good.read_text().count("\n")) < packets + 1 and time.monotonic() < until:
        time.sleep(0.2)
    assert process.poll() is None and lines > packets, (lines, good.read_text()[-3000:])


@pytest.mark.thorough  # a slow machine does not fill the queue in this time
def test_a_blocked_and_a_broken_output_stop_no_other(node: None, tmp_path: Path) -> None:
    good, slow, ready = tmp_path / "good.jsonl", tmp_path / "slow", tmp_path / "ready"
    reader = LateReader(slow)
    options = ["--no-kube", "--port", str(traffic.NODEPORT_UDP), "--ready-file", str(ready)]
    outputs = ["-o", f"json:{good}", "-o", f"json:{slow}", "-o", "json:/dev/full"]
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL_QUEUE, *options, *outputs],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip
    wait_until_ready(process, ready)
    reader.start()
    began = time.monotonic()
    for done in range(1, REQUESTS + 1):
        assert traffic.udp_ask().outcome == "answered"
        if done % TOGETHER == 1:
            wait_for(2 * done, good, process)
    wait_for(2 * REQUESTS, good, process)
    time.sleep(max(0.0, began + BLOCKED_SECONDS + 1 - time.monotonic()))
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=120)
    complete, read = [json.loads(line) for line in good.read_text().splitlines()], reader.lines()
    summary = complete[-1]
    assert (process.returncode, printed) == (20, ""), errors
    assert summary["type"] == read[-1]["type"] == "summary" and summary["lost"] == 0
    assert sum(line["type"] == "packet" for line in complete) == summary["packets"] >= 2 * REQUESTS
    losses = {loss["output"]: loss for loss in summary["not_written"]}
    assert losses == {loss["output"]: loss for loss in read[-1]["not_written"]}
    assert losses[f"json:{slow}"] == {
        "output": f"json:{slow}", "records": len(complete) - len(read), "why": "its reader was too slow"
    }  # fmt: skip
    assert 0 < losses[f"json:{slow}"]["records"] < len(complete)
    assert losses["json:/dev/full"]["records"] == len(complete) - 1  # its summary comes after it was counted
    assert [line for line in errors.splitlines() if "json:" in line] == [
        "The output json:/dev/full stops here: No space left on device. The others continue.",
        "k8snet-trace: json:/dev/full is not complete: No space left on device.",
    ]
    assert "Traceback" not in errors
