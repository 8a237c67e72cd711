# SPDX-License-Identifier: Apache-2.0
"""Commands in a guest: both ends of the stream, with a process of this machine in place of the guest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from lab import exec_channel
from lab.exec_channel import ChannelClosed, ExecChannel
from lab.exec_frames import NO_PROGRAM, WINDOW_BYTES
from tests.lab.conftest import ROOT
from tests.support.waiting import PATIENCE

GUEST = f"import sys; sys.path.insert(0, {str(ROOT / 'vagrant')!r}); from lab.exec_server import serve; serve(int(sys.argv[1]))"
LARGE = 5 * WINDOW_BYTES


class Guest:
    """A channel, and the process at its other end."""

    def __init__(self) -> None:
        self.channel, descriptor = exec_channel.pair()
        self.process = subprocess.Popen([sys.executable, "-c", GUEST, str(descriptor)], pass_fds=[descriptor])
        os.close(descriptor)


@pytest.fixture
def guest() -> Iterator[Guest]:
    made = Guest()
    yield made
    made.channel.close()
    made.process.wait(PATIENCE)


@pytest.fixture
def channel(guest: Guest) -> ExecChannel:
    return guest.channel


def test_output_errors_and_status(channel: ExecChannel) -> None:
    done = channel.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout=PATIENCE)
    assert (done.status, done.output, done.errors) == (7, b"out\n", b"err\n")


def test_large_input_comes_back(channel: ExecChannel) -> None:
    data = os.urandom(LARGE)
    command = channel.start(["cat"])
    # More than both windows hold, so that it is written while the output is read.
    writer = threading.Thread(target=command.write, args=(data,))
    writer.start()
    found = 0
    while found < LARGE and (piece := command.read(PATIENCE)):
        assert piece[0] == 1 and piece[1] == data[found : found + len(piece[1])]
        found += len(piece[1])
    writer.join()
    command.close_input()
    done = command.wait(PATIENCE)
    assert (found, done.output, done.status) == (LARGE, b"", 0)


def test_environment_and_directory(channel: ExecChannel) -> None:
    command = channel.start(["sh", "-c", "echo $A; pwd"], {"A": "1 2"}, cwd="/")
    assert command.wait(PATIENCE).output == b"1 2\n/\n"


def test_a_program_that_does_not_exist(channel: ExecChannel) -> None:
    done = channel.run(["/no/such/program"], timeout=PATIENCE)
    assert done.status == NO_PROGRAM and b"No such file" in done.errors


def test_output_that_nothing_reads_waits_and_holds_nothing_up(channel: ExecChannel) -> None:
    slow = channel.start(["sh", "-c", f"head -c {LARGE} /dev/zero; echo done >&2"])
    assert channel.run(["echo", "other"], timeout=PATIENCE).output == b"other\n"
    found = 0
    first = slow.read(PATIENCE)
    assert first and first[0] == 1
    found += len(first[1])
    rest = slow.wait(PATIENCE)
    assert found + len(rest.output) == LARGE and rest.errors == b"done\n"


def test_an_abandoned_command_reads_the_end_of_its_input_and_goes_on(channel: ExecChannel) -> None:
    command = channel.start(["sh", "-c", f"cat; head -c {LARGE} /dev/zero; exit 5"])
    command.write(b"x")
    command.abandon()
    assert command.read(PATIENCE) is None and command.status == 5


def test_a_killed_command(channel: ExecChannel) -> None:
    command = channel.start(["sleep", "600"])
    with pytest.raises(TimeoutError):
        command.read(0.1)
    command.kill()
    assert command.wait(PATIENCE).status == -signal.SIGKILL


def test_the_end_of_the_guest_ends_its_commands(guest: Guest) -> None:
    command = guest.channel.start(["sleep", "600"])
    assert guest.channel.run(["true"], timeout=PATIENCE).status == 0
    guest.process.kill()
    with pytest.raises(ChannelClosed):
        command.wait(PATIENCE)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            guest.channel.run(["true"], timeout=PATIENCE)
        except ChannelClosed:
            return
    raise AssertionError("a command was started in a guest that has ended")
