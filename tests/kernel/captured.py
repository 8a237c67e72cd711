# SPDX-License-Identifier: Apache-2.0
"""What the tests of captures share: requests to record, and the command that reads them back."""

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

WANTED = Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY))


def ask(times: int = 1) -> None:
    for _ in range(times):
        assert traffic.http_get().outcome == "answered"
        assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"


def calmly() -> None:
    """So that the tracer keeps up: in a flood its turns take minutes on an emulated machine, and nothing is written in one."""
    ask()
    time.sleep(0.5)


def until(words: str, path: Path, meanwhile: Callable[[], object]) -> None:
    """Does something again and again until the words are in the file. AssertionError when they never are."""

    def said() -> bool:
        if path.exists() and words in path.read_text():
            return True
        meanwhile()
        return False

    waiting.until(said, lambda: f"not said: {words}")


def read(*files: Path) -> subprocess.CompletedProcess[str]:
    """The command on a capture: as nobody, and without a kernel to ask, for /sys is hidden from it."""
    for path in files:
        for own in (path, *path.parent.glob(f"{path.name}-journal")):
            own.chmod(0o644)
        for parent in path.parents:
            if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
                parent.chmod(0o755)
    command = [sys.executable, "-m", "tracer", *(word for path in files for word in ("-r", str(path)))]
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys && exec setpriv --reuid 65534 --clear-groups "$@"', "sh"]
    return subprocess.run([*hidden, *command], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)


def same(made: Recorded) -> None:
    """What is printed is what was printed, in each of both files."""
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.files} == {0o600}
    done = read(*made.files)
    assert (done.returncode, done.stdout, done.stderr) == (0, made.text.read_text(), made.said.read_text())
