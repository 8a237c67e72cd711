# SPDX-License-Identifier: Apache-2.0
"""A killed start leaves an idle node unchanged, to the byte and to the counter. At all points: make untouched."""

from __future__ import annotations

import os
import signal

from scenes import scene
from tests.kernel import idle, kill_points
from tests.kernel.watching import Watch
from tracer.cli import main

CHECKED_POINTS = ("trace switch on",)


def exit_code(name: str) -> int:
    """Exit code of a copy of this process that starts the tracer, with the programs that the session of the tests has kept."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        kill_points.arm(kill_points.POINTS[name])
        main.main(["--port", "1", "--no-kube", "--duration", "1"])
    finally:
        os._exit(kill_points.NOT_REACHED)


def test_a_killed_start_leaves_nothing(watch: Watch) -> None:
    # Connections that earlier tests left open retransmit for minutes: they end with their namespaces.
    scene.down()
    scene.up()
    idle.wait_for_removed_namespaces()
    before = idle.quiet()
    for name in CHECKED_POINTS:
        assert exit_code(name) == -signal.SIGKILL, name
        assert idle.differences(before, idle.settled(before)) == "", name
