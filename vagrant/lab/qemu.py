# SPDX-License-Identifier: Apache-2.0
"""The virtual machine's command line. This module uses no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# cx16=off: in QEMU 7.2's emulation cmpxchg16b, which the kernel's allocator uses, can leave garbage in
# EFLAGS; an interrupt there panics or hangs the guest. la57=off: five-level page tables only cost time.
CPU = "max,la57=off,cx16=off,avx2=off"
"""Without AVX2: an emulated masked load faults where a real one does not (vagrant/README.md, "Traps")."""

KERNEL_OPTIONS = (
    "console=ttyS0",
    "loglevel=4",
    "panic=-1",
    "oops=panic",
    "softlockup_panic=1",  # vagrant/README.md, "Traps": an emulated CPU that runs an instruction for ever
    "watchdog_thresh=20",  # s, half the length of a soft lockup; RCU's message, each 63 s, begins the time anew
    "mitigations=off",
    "nokaslr",
    "no5lvl",
    "random.trust_cpu=on",
    "audit=0",
    "apparmor=0",
)


@dataclass(frozen=True)
class Accel:
    """How guest code is executed."""

    name: str
    """"kvm" or "tcg"."""
    tsc_khz: int | None = None
    """The time stamp counter's rate, passed to an emulated guest; None: the guest measures it."""


@dataclass(frozen=True)
class Machine:
    """The machine to boot."""

    name: str
    kernel: Path
    initrd: Path
    root: Path
    modules: Path
    accel: Accel
    memory: int = 2048
    """MiB."""
    cpus: int = 2
    append: str = ""
    """More kernel options."""
    rtc: str = ""
    """What the machine's clock shows at power-on, as 2026-01-31T14:03:22 in UTC; "" = the host's time."""


@dataclass(frozen=True)
class Nic:
    """A network interface of the machine, in the order in which the guest finds them."""

    mac: str
    frames: int | None = None
    """A datagram socket: each datagram is a frame. None: QEMU's own network: 10.0.2.2 is the host's loopback address."""


@dataclass(frozen=True)
class Wires:
    """The connections between the machine and the host."""

    status: int
    """Write end of the pipe for boot time and exit status."""
    output: tuple[int, int] | None
    """Write ends of the pipes for stdout and stderr; None: a console on this terminal."""
    console: Path
    """File for the kernel's console output, unless interactive."""
    share: Path | None
    """Socket of virtiofsd."""
    commands: int | None = None
    """A stream socket for the commands that the guest runs (exec_channel); None: the guest runs one command."""
    nics: tuple[Nic, ...] = ()

    @property
    def inherited(self) -> list[int]:
        """The descriptors that QEMU must inherit."""
        ends = [self.status, *(self.output or ()), self.commands, *(nic.frames for nic in self.nics)]
        return [end for end in ends if end is not None]


def command_line(machine: Machine, wires: Wires, program: str = "qemu-system-x86_64") -> list[str]:
    """The complete argument list. QEMU must inherit the descriptors of `wires`."""
    argv = [
        program,
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-name",
        machine.name,
        "-M",
        "pc,usb=off,vmport=off,hpet=off" + (",memory-backend=mem" if wires.share else ""),
        "-accel",
        "tcg,thread=multi,tb-size=512" if machine.accel.name == "tcg" else machine.accel.name,
        "-cpu",
        CPU,
        "-smp",
        str(machine.cpus),
        "-m",
        str(machine.memory),
        "-kernel",
        str(machine.kernel),
        "-initrd",
        str(machine.initrd),
        "-append",
        kernel_options(machine),
        # snapshot: a run's writes to its root are discarded at the end, and runs may share the image
        "-drive",
        f"file={_quote(machine.root)},if=virtio,format=raw,snapshot=on,cache=unsafe",
        "-drive",
        f"file={_quote(machine.modules)},if=virtio,format=raw,readonly=on,cache=unsafe",
        "-device",
        "virtio-serial-pci",
        *_port("status", wires.status),
    ]
    if wires.output is None:
        argv += ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
    else:
        argv += [*_port("out", wires.output[0]), *_port("err", wires.output[1])]
        argv += ["-chardev", f"file,id=console,path={_quote(wires.console)}", "-serial", "chardev:console"]
    if wires.share is not None:  # Debian's cloud kernels have no 9P; virtiofs needs shared guest memory
        argv += [
            "-object",
            f"memory-backend-memfd,id=mem,size={machine.memory}M,share=on",
            "-chardev",
            f"socket,id=share,path={_quote(wires.share)}",
            "-device",
            "vhost-user-fs-pci,chardev=share,tag=share",
        ]
    if wires.commands is not None:
        argv += ["-chardev", f"socket,id=commands,fd={wires.commands}"]
        argv += ["-device", "virtserialport,chardev=commands,name=commands"]
    if machine.rtc:
        argv += ["-rtc", f"base={machine.rtc},clock=vm"]
    for number, nic in enumerate(wires.nics):
        argv += _nic(f"net{number}", nic)
    return argv


def kernel_options(machine: Machine) -> str:
    """The kernel's command line."""
    return " ".join([*KERNEL_OPTIONS, *clock_options(machine.accel), machine.append]).strip()


def clock_options(accel: Accel) -> list[str]:
    """Options that set the clock's rate: on a busy host an emulated guest measures it wrongly."""
    return [] if accel.tsc_khz is None else ["tsc=reliable", f"tsc_early_khz={accel.tsc_khz}"]


def _port(name: str, descriptor: int) -> Sequence[str]:
    """A virtio-serial port that writes to an inherited pipe."""
    return (
        "-add-fd",
        f"fd={descriptor},set={descriptor}",
        "-chardev",
        f"file,id={name},path=/dev/fdset/{descriptor},append=on",
        "-device",
        f"virtserialport,chardev={name},name={name}",
    )


def _nic(name: str, nic: Nic) -> Sequence[str]:
    """A network interface. Without offloads the guest puts each packet on the wire as it is: whole, with its checksum."""
    backend = f"user,id={name}" if nic.frames is None else f"dgram,id={name},local.type=fd,local.str={nic.frames}"
    return ("-netdev", backend, "-device", f"virtio-net-pci,netdev={name},mac={nic.mac},romfile=")


def _quote(path: Path) -> str:
    return str(path).replace(",", ",,")
