# SPDX-License-Identifier: Apache-2.0
"""What the lab uses of this machine: programs, and child processes that end with the lab."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
PT_INTERP = 3

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Directories searched after $PATH: mke2fs and depmod are not in every user's $PATH."""

TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "qemu-img": "qemu-utils",
    "depmod": "kmod",
    "busybox": "busybox-static",
    "lz4": "lz4",
    "zstd": "zstd",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "qemu-system-x86_64": "qemu-system-x86",
}
"""Program -> Debian package."""

RUN_TOOLS = ("qemu-system-x86_64",)
BOX_TOOLS = ("debugfs", "qemu-img")
BUILD_TOOLS = tuple(program for program in TOOLS if program not in RUN_TOOLS + BOX_TOOLS)


class LabError(Exception):
    """The lab cannot continue; the text is a sentence for the user. No command was run."""


def find(program: str) -> str | None:
    """The program's path, None if it is not installed."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def require(programs: Sequence[str]) -> None:
    """Raise a LabError that names every missing program and the one command that installs them."""
    missing = [program for program in programs if find(program) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[program] for program in missing}))
        raise LabError(f"missing {', '.join(missing)}: apt-get install --no-install-recommends {packages}")


def static_busybox() -> Path:
    """The path of the host's busybox, the initrd's only program; LabError if it needs shared libraries."""
    path = find("busybox")
    if path is None or is_dynamic(Path(path).read_bytes()):
        raise LabError("the initrd needs a static busybox: apt-get install busybox-static")
    return Path(path)


def is_dynamic(elf: bytes) -> bool:
    """Whether a 64-bit ELF file needs a dynamic loader."""
    (table,) = struct.unpack_from("<Q", elf, 0x20)
    size, count = struct.unpack_from("<HH", elf, 0x36)
    return any(struct.unpack_from("<I", elf, table + i * size)[0] == PT_INTERP for i in range(count))


def spawn(
    argv: Sequence[str],
    *,
    stdin: int | None = subprocess.DEVNULL,
    output: IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    own_session: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that the kernel kills when this process ends for any reason.

    `output` takes its stdout and stderr (None: those of this process). With `own_session`, Ctrl-C at the terminal reaches only
    this process, which then stops the child.
    """
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        start_new_session=own_session,
        preexec_fn=die_with_parent,
        env=env,
        cwd=cwd,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and wait for its end, for 5 s at most: a child that hangs in the kernel is left."""
    if process.poll() is None:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def run(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a build step, its output appended to `log`; LabError with the log's end if it fails.

    An exception during the step (Ctrl-C) ends the step and all processes that it started.
    """
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    with log.open("ab") as sink:
        sink.write(f"$ {' '.join(argv)}\n".encode())
        sink.flush()
        process = spawn(
            [find(argv[0]) or argv[0], *argv[1:]], output=sink, cwd=cwd, env={**os.environ, "PATH": path, **(env or {})}
        )
        try:
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # SIGTERM first: mmdebstrap then cleans up
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if status != 0:
        raise LabError(f"{argv[0]} failed with status {status}:\n{tail(log, 15)}")


def tail(path: Path, lines: int) -> str:
    """The last lines of a text file; empty if it does not exist."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
