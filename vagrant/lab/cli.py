# SPDX-License-Identifier: Apache-2.0
"""The command line of the lab."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import accel, boot, host, kernelimage, kernels, rootfs, share

REPOSITORY = Path(__file__).resolve().parents[2]

ACTIONS = ("build", "run", "shell", "list")
SHELL = ("bash", "-i")
BOOTS = 3
"""Number of boots at most: an emulated processor sometimes fails when the kernel patches its own text at boot."""
RUN_TIMEOUT = 600.0
"""Time limit of a run, s, so that a command that hangs does not block its caller."""

USAGE = """\
lab build [--kernel K]...
       lab run --kernel K [options] -- CMD [ARG]...
       lab shell --kernel K [options]
       lab list"""

EPILOG = """\
The directory of --share is /mnt/share in the guest, and the working directory. Nothing written elsewhere
survives. stdin of CMD is empty; stdout and stderr are streamed. What is not built yet is built first.

exit status: CMD's own; 124 time-out; 125 the machine died; 2 nothing was run (usage, missing program)

environment:
  K8SNET_LAB_CACHE  where images live (else $XDG_CACHE_HOME/k8snet-trace/lab, ~/.cache/k8snet-trace/lab)
  LAB_MIRROR        Debian mirror (http://deb.debian.org)
  LAB_ACCEL         tcg or kvm: do not find out whether KVM works
  FORCE_COLOR, NO_COLOR, COLUMNS, LINES reach the guest
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the options before `--`."""
    known = ", ".join(kernels.names())
    top = argparse.ArgumentParser(
        prog="lab",
        usage=USAGE,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run a command as root on a real Debian kernel in a throw-away virtual machine.",
    )
    top.add_argument("action", choices=ACTIONS, metavar="build | run | shell | list")
    top.add_argument(
        "--kernel",
        action="append",
        choices=kernels.names(),
        metavar="K",
        help=f"{known}; build: may be repeated ({', '.join(kernels.DEFAULT_BUILD)})",
    )
    run = top.add_argument_group("options of run and shell")
    run.add_argument("--share", type=Path, default=REPOSITORY, metavar="DIR", help="(this repository)")
    run.add_argument("--mem", type=int, default=2048, metavar="MB", help="guest memory (2048)")
    run.add_argument("--cpus", type=int, default=2, metavar="N", help="virtual CPUs (2)")
    run.add_argument(
        "--timeout", type=float, metavar="S", help="kill the machine S seconds after power-on, 0: never (run: 600, shell: 0)"
    )
    run.add_argument("--console", type=Path, metavar="FILE", help="keep the kernel's console output (run)")
    run.add_argument("--append", default="", metavar="STR", help="more kernel options")
    run.add_argument("--time", action="store_true", help="print boot time, total time, CPU time on stderr")
    return top


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command after `--`; wrong usage ends the program with status 2."""
    middle = argv.index("--") if "--" in argv else len(argv)
    own, command = argv[:middle], argv[middle + 1 :]
    top = parser()
    options = top.parse_args(own)
    if options.action in ("run", "shell") and len(options.kernel or ()) != 1:
        top.error("one --kernel is needed")
    if (options.action == "run") != bool(command):
        top.error("run: no command after --" if options.action == "run" else "only run takes a command")
    return options, command


def main(argv: list[str]) -> int:
    """Run the requested action; returns the exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    options, command = parse(argv)
    try:
        match options.action:
            case "build":
                for name in options.kernel or kernels.DEFAULT_BUILD:
                    ensure(kernels.find(name))
                return 0
            case "list":
                return show()
            case _:
                return start(options, command)
    except host.LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of stdout has ended, as in `lab run ... | head`
        return 128 + signal.SIGPIPE


def ensure(kernel: kernels.Kernel) -> None:
    """Build the missing images for that kernel."""
    kernelimage.image(kernel).ensure()
    rootfs.image(kernel.userspace).ensure()


def start(options: argparse.Namespace, command: list[str]) -> int:
    """Actions `run` (with a command) and `shell` (without); returns the exit status."""
    shared = options.share.resolve()
    if not shared.is_dir():
        raise host.LabError(f"--share {options.share}: no such directory")
    host.require(host.RUN_TOOLS)
    share.program()
    kernel = kernels.find(options.kernel[0])
    ensure(kernel)
    timeout = options.timeout if options.timeout is not None else RUN_TIMEOUT if command else 0.0
    request = boot.Request(
        kernel=kernel,
        command=tuple(command) or SHELL,
        accel=accel.choose(kernel),
        shared=shared,
        memory=options.mem,
        cpus=options.cpus,
        timeout=timeout or None,
        append=options.append,
        console=options.console,
        shell=not command,
    )
    outcome = run(request)
    if outcome.problem:
        print(f"lab: {outcome.problem}", file=sys.stderr)
    if options.time:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        booted = "never" if outcome.booted is None else f"{outcome.booted:.2f} s"
        print(
            f"lab: boot to command {booted}, whole run {outcome.seconds:.2f} s, CPU {usage.ru_utime + usage.ru_stime:.1f} s",
            file=sys.stderr,
        )
    return outcome.status


def run(request: boot.Request) -> boot.Outcome:
    """Boot and run the command; a machine that dies before the command starts is booted again."""
    for _ in range(BOOTS - 1):
        outcome = boot.run(request)
        if not outcome.died_in_boot:
            return outcome
        print(f"lab: {outcome.problem}\nlab: it died before the command began: booting again", file=sys.stderr)
    return boot.run(request)


def show() -> int:
    """Action `list`: prints a line per kernel."""
    for kernel in kernels.KERNELS:
        image, root = kernelimage.image(kernel).path, rootfs.image(kernel.userspace).path
        release = (image / kernelimage.RELEASE).read_text().strip() if image.exists() else "not built"
        missing = "" if root.exists() else " (not built)"
        print(f"{kernel.name:5} {release:28} user space {kernel.userspace}{missing}")
    return 0


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise an exception, so that every `with` stops what it started."""
    raise SystemExit(128 + number)
