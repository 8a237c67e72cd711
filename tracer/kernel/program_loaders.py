# SPDX-License-Identifier: Apache-2.0
"""Which software loaded an eBPF program: by the path where it is pinned, by the process that holds it, or by its name.

A name alone proves nothing, as any program can have it; the output says so. The paths and names are those of the software's own
source. Others choose paths and names: they are bounded, and outputs escape them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracer.kernel import bpf_syscall
from tracer.util.octets import decoded

BPFFS = Path("/sys/fs/bpf")
MOST_PINS = 8192
"""Largest number of pinned files and directories that are looked at."""
MOST_DESCRIPTORS = 100_000
"""Largest number of descriptors of processes that are looked at for programs."""
_HELD = ("anon_inode:bpf-prog", "anon_inode:bpf_link", "anon_inode:bpf-link")
"""What a descriptor of a program or of a link is a link to."""


@dataclass(frozen=True)
class Loader:
    """Software that loads programs.

    Attributes:
        name: Its name.
        names: What the names of its programs begin with.
        pins: Parts of the paths where it pins them.
        commands: What the names of its processes begin with.
    """

    name: str
    names: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


LOADERS = (
    # bpf/*.c of cilium: cil_from_container, cil_to_netdev. Links are pinned in /sys/fs/bpf/cilium/devices/DEV/links.
    Loader("Cilium", ("cil_",), ("/cilium/", "/tc/globals/cilium_"), ("cilium-agent",)),
    # felix/bpf of Calico: cali_tc_main and others; pins in /sys/fs/bpf/tc and calico.
    Loader("Calico", ("cali_", "calico_"), ("/calico/", "/cali_", "/calico_"), ("calico-node", "calico-felix")),
    # aws-network-policy-agent: handle_ingress and handle_egress are no names of its own; its pins are.
    Loader("AWS network policy agent", (), ("/globals/aws/",), ("aws-eks-na", "aws-k8s-agent")),
    Loader("Antrea", ("antrea_",), ("/antrea/",), ("antrea-agent",)),
    # src/core/bpf-firewall.c, bpf/*: sd_fw_ingress, sd_devices, sd_restrictif_i.
    Loader("systemd", ("sd_",), (), ("systemd",)),
)


def by_pin(path: str) -> str:
    """The software that pins at this path; "" = not known."""
    return next((each.name for each in LOADERS if any(part in path for part in each.pins)), "")


def by_command(command: str) -> str:
    """The software with processes of this name; "" = not known."""
    return next((each.name for each in LOADERS if command.startswith(each.commands)), "") if command else ""


def by_name(program: str) -> str:
    """The software with programs of such names; "" = not known."""
    return next((each.name for each in LOADERS if each.names and program.startswith(each.names)), "")


def pins(root: Path = BPFFS) -> dict[int, str]:
    """Paths of pinned programs, and of pinned links of programs, by id of the program. The first path of each is kept."""
    found: dict[int, str] = {}
    for path in _files(root):
        with suppress(OSError):
            fd = bpf_syscall.pinned_object(path)
            try:
                number = _program_of(Path(f"/proc/self/fd/{fd}"), Path(f"/proc/self/fdinfo/{fd}"))
            finally:
                os.close(fd)
            if number:
                found.setdefault(number, path)
    return found


def _files(root: Path) -> Iterator[str]:
    """Yields the files below a directory, without following links; at most MOST_PINS entries are looked at."""
    waiting, seen = [str(root)], 0
    while waiting:
        directory = waiting.pop()
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                seen += 1
                if seen > MOST_PINS:
                    return
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_symlink():
                    yield entry.path


def holders(wanted: Iterable[int], proc: Path = Path("/proc"), own: int = 0) -> dict[int, tuple[int, str]]:
    """Processes that hold programs, or links of them, by id of the program: (pid, command). own: pid that is left out."""
    missing, found, seen = set(wanted), dict[int, tuple[int, str]](), 0
    with suppress(OSError):
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
        for pid in pids:
            if not missing:
                break
            with suppress(OSError):
                for fd in os.listdir(proc / str(pid) / "fd") if pid != own else ():
                    seen += 1
                    if seen > MOST_DESCRIPTORS:
                        return found
                    number = _program_of(proc / str(pid) / "fd" / fd, proc / str(pid) / "fdinfo" / fd)
                    if number in missing:
                        missing.discard(number)
                        found[number] = pid, _command(proc, pid)
    return found


def _command(proc: Path, pid: int) -> str:
    with suppress(OSError):
        return decoded((proc / str(pid) / "comm").read_bytes().strip())
    return ""


def _program_of(link: Path, info: Path) -> int:
    """The id of the program of a descriptor; 0 = it is no program, and no link of one."""
    with suppress(OSError, ValueError):
        if os.readlink(link) in _HELD:
            for line in info.read_bytes().splitlines():
                name, _, value = line.partition(b":")
                if name == b"prog_id":
                    return int(value)
    return 0
