# SPDX-License-Identifier: Apache-2.0
"""Shared code of the capture tests: the requests to record, and the command that reads captures back."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scenes import topology, traffic
from tests.kernel.conftest import ROOT
from tests.kernel.recorder import Recorded
from tests.kernel.test_command import ENVIRONMENT
from tests.support import waiting
from tracer.model.filter import Filter

FILTER = Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY))


def send_requests(times: int = 1) -> None:
    for _ in range(times):
        assert traffic.http_get().outcome == "answered"
        assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"


def send_requests_slowly() -> None:
    """Sends requests slowly, so that the tracer keeps up. In a flood a batch takes minutes on an emulated machine, and nothing
    is written meanwhile."""
    send_requests()
    time.sleep(0.5)


def until(words: str, path: Path, meanwhile: Callable[[], object]) -> None:
    """Calls `meanwhile` repeatedly until the words are in the file. Raises AssertionError when they do not appear."""

    def is_printed() -> bool:
        if path.exists() and words in path.read_text():
            return True
        meanwhile()
        return False

    waiting.until(is_printed, lambda: f"not printed: {words}")


def read(*files: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command on captures: as user nobody, and without access to the kernel, because /sys is hidden."""
    for path in files:
        for own in (path, *path.parent.glob(f"{path.name}-journal")):
            own.chmod(0o644)
        for parent in path.parents:
            if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
                parent.chmod(0o755)
    command = [sys.executable, "-m", "tracer", *(word for path in files for word in ("-r", str(path)))]
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys && exec setpriv --reuid 65534 --clear-groups "$@"', "sh"]
    return subprocess.run([*hidden, *command], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)


def check_same_output(made: Recorded) -> None:
    """Checks that reading the capture prints the same as the live run, on stdout and stderr."""
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.files} == {0o600}
    done = read(*made.files)
    assert (done.returncode, done.stdout, done.stderr) == (0, made.text.read_text(), made.messages.read_text())
