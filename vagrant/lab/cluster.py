# SPDX-License-Identifier: Apache-2.0
"""Several machines at once, joined by a wire, each with a channel through which the host runs commands in it.

    with Cluster([Member("node-a", "6.12"), Member("node-b", "6.1", clock_seconds=-7)]) as cluster:
        cluster["node-a"].run(["uname", "-r"])

Each machine has eth0 on the wire (192.168.60.11, .12 ... are for its scene to set), and eth1 on a network in which 10.0.2.2 is
the host's loopback address.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType

from . import accel, boot, exec_channel, host, kernelimage, kernels, qemu, rootfs, share
from .exec_channel import ChannelClosed, Completed, ExecChannel
from .wire import Wire
from .wire_key import WireKey

REPOSITORY = Path(__file__).resolve().parents[2]
DEVICE = "/dev/lab-commands"
SERVER = ("env", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=/mnt/share/vagrant", "python3", "-m", "lab.exec_server", DEVICE)
BOOTS = 3
BOOT_SECONDS = 300.0
"""Limit of one boot, s."""
MEMORY = 1536
"""MiB of each machine: the compiler of the probes needs most of it."""


@dataclass(frozen=True)
class Member:
    """A machine of a cluster."""

    name: str
    kernel: str
    """Name of its kernel (`lab list`)."""
    clock_seconds: int = 0
    """What its clock shows at power-on, against the host's, s."""
    clock_ppm: int = 0
    """How much faster its clock runs than the host's, parts per million; only of an emulated machine."""
    console: Path | None = None
    """File for the kernel's console output."""


class Cluster:
    """The running machines by name. LabError if one cannot be started.

    wants: the packets that the wire logs, and that may meet a fault.
    """

    def __init__(self, members: Sequence[Member], wants: Callable[[WireKey], bool] = lambda key: True) -> None:
        self._members = tuple(members)
        self._stack = ExitStack()
        self._channels: dict[str, ExecChannel] = {}
        self.wire = Wire(wants)

    def __enter__(self) -> Cluster:
        self._stack.callback(self.wire.close)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> ExecChannel:
        return self._channels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def run(self, name: str, argv: Sequence[str], timeout: float | None = 120.0) -> Completed:
        """Runs a command in a machine. LabError if its status is not 0."""
        done = self[name].run(argv, timeout=timeout)
        if done.status:
            errors = done.errors.decode(errors="replace").strip()
            raise host.LabError(f"{name}: {' '.join(argv)}: status {done.status}: {errors}")
        return done

    def _start(self) -> None:
        host.require(host.RUN_TOOLS)
        share.program()
        for member in self._members:
            kernel = kernels.find(member.kernel)
            kernelimage.image(kernel).ensure()
            rootfs.image(kernel.userspace).ensure()
        chosen = accel.choose(kernels.find(self._members[0].kernel))
        # All in this thread: the kernel ends a machine together with the thread that started it.
        booting = {m.name: self._boot(n, m, chosen) for n, m in enumerate(self._members, start=1)}
        for number, member in enumerate(self._members, start=1):
            for attempt in range(1, BOOTS + 1):
                started, channel, stack = booting[member.name]
                try:
                    channel.run(["true"], timeout=BOOT_SECONDS)
                    break
                except (ChannelClosed, TimeoutError) as error:
                    words = f"{member.name}: {started.last_words()}"
                    stack.close()
                    if attempt == BOOTS:
                        raise host.LabError(words) from error
                    print(f"lab: {words}\nlab: it died before it took commands: booting again", file=sys.stderr)
                    booting[member.name] = self._boot(number, member, chosen)
            self._channels[member.name] = channel

    def _boot(self, number: int, member: Member, chosen: qemu.Accel) -> tuple[boot.Started, ExecChannel, ExitStack]:
        """Starts a machine. Closing the stack ends it, and so does the end of the cluster."""
        stack = self._stack.enter_context(ExitStack())
        channel, commands = exec_channel.pair()
        stack.callback(channel.close)
        stack.callback(self.wire.unplug, member.name)
        nics = (qemu.Nic(mac(number), self.wire.plug(member.name, mac(number))), qemu.Nic(mac(number, 0xFF)))
        started = boot.start(request(member, chosen), stack, boot.Attachments(commands, nics))
        stack.enter_context(drained(started))
        return started, channel, stack


def mac(number: int, last: int = 0x0A) -> str:
    """The Ethernet address of a machine, which are numbered from 1. last: 0x0A = of the interface on the wire."""
    return f"52:54:00:60:{number:02x}:{last:02x}"


def request(member: Member, chosen: qemu.Accel) -> boot.Request:
    """The machine for a member."""
    if chosen.tsc_khz is not None and member.clock_ppm:
        # A guest that takes its counter for slower than it is has a fast clock.
        chosen = replace(chosen, tsc_khz=chosen.tsc_khz - chosen.tsc_khz * member.clock_ppm // 1_000_000)
    shows = datetime.now(UTC) + timedelta(seconds=member.clock_seconds)
    return boot.Request(
        kernel=kernels.find(member.kernel),
        command=SERVER,
        accel=chosen,
        shared=REPOSITORY,
        memory=MEMORY,
        cpus=1,
        console=member.console,
        rtc=shows.strftime("%Y-%m-%dT%H:%M:%S"),
    )


@contextmanager
def drained(started: boot.Started) -> Iterator[None]:
    """Reads what the machine writes beside its commands, and discards it, so that it never waits. Ends the machine."""
    status, *outputs = started.pipes
    with open("/dev/null", "wb") as nothing:
        sinks: dict[int, int | None] = {status: None, **{pipe: nothing.fileno() for pipe in outputs}}
        thread = threading.Thread(target=boot.relay, args=(sinks, boot.Status(), None), daemon=True)
        thread.start()
        try:
            yield
        finally:
            host.stop(started.vm)
            until = time.monotonic() + boot.DRAIN
            thread.join(max(0.0, until - time.monotonic()))
