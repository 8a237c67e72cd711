# SPDX-License-Identifier: Apache-2.0
"""One run: start the machine, stream its output, collect the command's status, clean up."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from . import guestfiles, host, kernelimage, qemu, rootfs, share
from .kernels import Kernel

TIMED_OUT, VM_DIED = 124, 125
DRAIN = 10.0
"""Time without output after the command's end, s, after which the output counts as complete without the guest's `done`."""


@dataclass(frozen=True)
class Request:
    """The command to run, and the machine to run it in."""

    kernel: Kernel
    command: tuple[str, ...]
    accel: qemu.Accel
    shared: Path | None = None
    """Directory that the guest sees as /mnt/share."""
    memory: int = 2048
    """MiB."""
    cpus: int = 2
    timeout: float | None = None
    """Seconds from power-on until the machine is killed."""
    append: str = ""
    console: Path | None = None
    """File for the kernel's console output."""
    shell: bool = False
    """Interactive, on this terminal."""
    rtc: str = ""
    """What the machine's clock shows at power-on; "" = the host's time."""


@dataclass(frozen=True)
class Attachments:
    """What a machine of a cluster has beside its command: QEMU's ends, which are closed here when it has started."""

    commands: int
    """A stream socket for the commands that the guest runs."""
    nics: tuple[qemu.Nic, ...]


@dataclass(frozen=True)
class Started:
    """A machine that runs."""

    vm: subprocess.Popen[bytes]
    pipes: tuple[int, ...]
    """Read ends: status, and without a shell stdout and stderr."""
    console: Path
    complaints: Path
    """File with QEMU's own messages."""

    def last_words(self) -> str:
        """The end of the console, and QEMU's messages."""
        ends = (host.tail(self.console, 40), host.tail(self.complaints, 10))
        return "\n".join(filter(None, ("the machine ended without a status; its console:", *ends)))


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: int
    """The command's own status, TIMED_OUT or VM_DIED."""
    booted: float | None
    """Guest seconds from power-on to the command; None: the command did not start."""
    seconds: float
    """Wall-clock time of the whole run."""
    problem: str = ""
    """Message for the user when there is no status of the command."""

    @property
    def died_in_boot(self) -> bool:
        """Whether the machine died before the command started, so that the run can be repeated."""
        return self.status == VM_DIED and self.booted is None


class Status:
    """The guest's reports, line by line: `boot SECONDS`, `status NUMBER`, `done`."""

    def __init__(self) -> None:
        self.booted: float | None = None
        self.status: int | None = None
        self.done = False
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Incomplete lines wait for their end; unknown lines are skipped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            match line.split():
                case [b"boot", seconds]:
                    self.booted = float(seconds)
                case [b"status", number]:
                    self.status = int(number)
                case [b"done"]:
                    self.done = True


def run(request: Request) -> Outcome:
    """Boot and run to the end; the images must exist. An exception also cleans up."""
    started = time.monotonic()
    with ExitStack() as stack:
        running = start(request, stack)
        status = Status()
        sinks = dict(zip(running.pipes, (None, 1, 2), strict=False))
        in_time = relay(sinks, status, started + request.timeout if request.timeout else None)
        host.stop(running.vm)
        seconds = time.monotonic() - started
        if status.status is not None:
            return Outcome(status.status, status.booted, seconds)
        if not in_time:
            return Outcome(TIMED_OUT, status.booted, seconds, f"time-out after {request.timeout:g} s")
        return Outcome(VM_DIED, status.booted, seconds, running.last_words())


def start(request: Request, stack: ExitStack, attached: Attachments | None = None) -> Started:
    """Power on. The machine, its files and its pipes last until the stack unwinds."""
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k8snet-lab-")))
    console = request.console or scratch / "console"
    machine = _machine(request, scratch)
    served = stack.enter_context(share.served(request.shared, scratch)) if request.shared else None
    pipes = [os.pipe() for _ in range(1 if request.shell else 3)]
    for reader, _ in pipes:
        stack.callback(os.close, reader)
    writers = [writer for _, writer in pipes]
    output = None if request.shell else (writers[1], writers[2])
    more = (attached.commands, attached.nics) if attached else (None, ())
    wires = qemu.Wires(writers[0], output, console, served, *more)
    complaints = scratch / "qemu.log"
    program = host.find("qemu-system-x86_64") or "qemu-system-x86_64"
    with complaints.open("wb") as log:
        vm = host.spawn(
            qemu.command_line(machine, wires, program),
            pass_fds=wires.inherited,
            # an interactive machine uses our terminal, and must be in the terminal's session
            own_session=not request.shell,
            stdin=None if request.shell else subprocess.DEVNULL,
            output=None if request.shell else log,
        )
    stack.callback(host.stop, vm)
    for end in wires.inherited:
        os.close(end)
    return Started(vm, tuple(reader for reader, _ in pipes), console, complaints)


def _machine(request: Request, scratch: Path) -> qemu.Machine:
    """The machine for this request; writes its complete initrd into `scratch`."""
    kernel = request.kernel
    image = kernelimage.image(kernel).path
    environment = guestfiles.environment(kernel.name, kernel.userspace, terminal=guestfiles.own_terminal())
    archive = guestfiles.archive(
        request.command,
        environment,
        share=request.shared is not None,
        shell=request.shell,
    )
    initrd = scratch / "initrd"
    initrd.write_bytes((image / kernelimage.INITRD).read_bytes() + archive)
    return qemu.Machine(
        name=f"lab-{kernel.name}",
        kernel=image / kernelimage.KERNEL,
        initrd=initrd,
        root=rootfs.image(kernel.userspace).path,
        modules=image / kernelimage.MODULES,
        accel=request.accel,
        memory=request.memory,
        cpus=request.cpus,
        append=request.append,
        rtc=request.rtc,
    )


def relay(sinks: dict[int, int | None], status: Status, deadline: float | None) -> bool:
    """Copy from pipes to our own descriptors (None: to `status`) until the guest has ended.

    Returns False if the deadline (monotonic seconds) came before the command's end.
    """
    with selectors.DefaultSelector() as selector:
        for source, sink in sinks.items():
            selector.register(source, selectors.EVENT_READ, sink)
        while selector.get_map():
            ready = selector.select(_patience(status, deadline))
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                elif key.data is None:
                    status.feed(data)
                else:
                    _write(key.data, data)
            if status.status is not None:
                if not ready:
                    return True
            elif deadline is not None and time.monotonic() >= deadline:
                return False
    return True


def _patience(status: Status, deadline: float | None) -> float | None:
    """Limit of the wait for the next bytes, s; None: no limit."""
    if status.done:  # all output is in the pipes now
        return 0.0
    if status.status is not None:
        return DRAIN
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _write(descriptor: int, data: bytes) -> None:
    """Write all of `data`, also to a non-blocking descriptor."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            with selectors.DefaultSelector() as selector:
                selector.register(descriptor, selectors.EVENT_WRITE)
                selector.select()
