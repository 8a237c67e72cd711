# SPDX-License-Identifier: Apache-2.0
"""What a run says on a terminal while it starts and goes on: a line that never mixes with the packets."""

from __future__ import annotations

import subprocess
import time

import pytest

from scenes import topology, traffic
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import COMMAND, ENVIRONMENT
from tests.support.pseudo_terminal import PseudoTerminal, screen
from tests.support.waiting import until


@pytest.mark.thorough
def test_the_line_on_a_terminal(node: None) -> None:
    terminal = PseudoTerminal()
    words = [*COMMAND, "--no-kube", "--port", str(traffic.NODEPORT_HTTP), "--count", "10"]
    run = subprocess.Popen(
        words, stdin=terminal.fd, stdout=terminal.fd, stderr=terminal.fd, env=ENVIRONMENT | {"TERM": "xterm"}, cwd=ROOT
    )
    try:
        while "Press Ctrl-C" not in terminal.text:  # compiling takes minutes here
            assert run.poll() is None, terminal.text
            time.sleep(0.1)
        until(lambda: "events read" in terminal.text)
        while run.poll() is None:
            assert traffic.http_get(topology.NODE4).outcome == "answered"
        assert run.returncode == 0
    finally:
        run.kill()
        run.wait()
        terminal.close()
    text = terminal.text
    assert "Starting: loading (" in text and "Starting: loading programs, " in text and "Starting: attaching " in text
    assert " packets matched, " in text
    lines = screen(text)
    assert any(line.startswith("Ready after ") for line in lines) and any("=>" in line for line in lines)
    assert not [line for line in lines if "Starting:" in line or "events read" in line]
