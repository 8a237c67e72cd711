# SPDX-License-Identifier: Apache-2.0
"""A start that is killed leaves an idle node as it was, to the byte and to the counter. All points of it: make untouched."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

from scenes import scene
from tests.kernel import idle, kill_points
from tests.kernel.watching import Watch
from tracer.cli import main
from tracer.kernel import bcc_program

TWO = ("all attached", "trace switch on")


def killed(watch: Watch, name: str) -> int:
    """What became of a copy of this process that starts the tracer on the program that is compiled already."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        replaced: Any = bcc_program
        replaced.compiled = lambda *_: unattached(watch.session._program.bpf)
        kill_points.arm(kill_points.POINTS[name])
        main.main(["--port", "1", "--no-kube", "--duration", "1"])
    finally:
        os._exit(kill_points.NOT_REACHED)


def unattached(bpf: Any) -> Any:
    """The same compiled program, with nothing loaded nor attached of what it has."""
    fresh = copy.copy(bpf)
    for name in vars(bpf):
        if name == "funcs" or name.endswith("_fds"):
            setattr(fresh, name, {})
    return fresh


def test_nothing_stays_of_a_start_that_is_killed(watch: Watch) -> None:
    # Connections that earlier tests left open send again for minutes: they end with their namespaces.
    scene.down()
    scene.up()
    before = idle.quiet()
    for name in TWO:
        assert killed(watch, name) == -signal.SIGKILL, name
        assert idle.differences(before, idle.settled(before)) == "", name
