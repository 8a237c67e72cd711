"""Which capabilities a run can do without, and what it loses by it; in the lab, as root: `python3 tests/kernel/all_rights.py`.

A run for each of tracer/kernel/rights.py, which has all the others and no more. They share one compiled program, for compiling
takes a minute in an emulator; a run that would compile another one does. A line each: its exit status, and what it told less
than one that had all; below it what it said.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import scene, topology, traffic  # noqa: E402
from tests.kernel import tracers  # noqa: E402
from tests.kernel.truth import legacy  # noqa: E402
from tracer import cli  # noqa: E402
from tracer.kernel import acts, rights, session  # noqa: E402
from tracer.kernel.headers import headers  # noqa: E402
from tracer.kernel.program import Program, abilities, load_bcc  # noqa: E402
from tracer.kernel.ring import PAGE  # noqa: E402

DROPPED = 9126
CHAINS = f"table inet few {{ chain in {{ type filter hook input priority 5; tcp dport {DROPPED} drop; }}; }}"
PORTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY, DROPPED)
PR_CAPBSET_DROP = 24
WAIT = 240.0


def texts() -> dict[str, str]:
    """The generated part of the program that this machine's root would run."""
    kernel, can = session.Kernel.running(), abilities(load_bcc())
    planned, _ = session.choose(kernel, can, False)
    watched = acts.plan(kernel.types, kernel.symbols, can)
    return headers(kernel.types, kernel.symbols, planned, watched, session.RING_BYTES // PAGE, session.possible_cpus())


def lose(name: str) -> None:
    """This process, and what it runs, has all of tracer/kernel/rights.py from now on but this one."""
    mask, libc = rights.mask(tuple(c for c in rights.BITS if c != name)), ctypes.CDLL(None, use_errno=True)
    for bit in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if not mask >> bit & 1:
            libc.prctl(PR_CAPBSET_DROP, bit, 0, 0, 0)
    rights.keep(mask)


def child(name: str, directory: Path, compiled: dict[str, str], program: Program) -> int:
    """Runs the command in a process of its own; its number."""
    pid = os.fork()
    if pid:
        return pid
    status: Any = 1
    try:
        for number, suffix in ((1, "out"), (2, "err")):
            os.dup2(os.open(directory / f"{name}.{suffix}", os.O_WRONLY | os.O_CREAT, 0o666), number)
        session.__dict__["Program"] = lambda bcc, wanted: program if wanted == compiled else Program(bcc, wanted)
        ready = ["--ready-file", str(directory / f"{name}.ready"), "-o", "json", "--no-kube"]
        lose(name)
        cli.main([*ready, *(word for port in PORTS for word in ("--port", str(port)))])
    except SystemExit as e:
        status = e.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0)


def run(name: str, directory: Path, compiled: dict[str, str], program: Program) -> tuple[int, list[tracers.Line], str]:
    """Exit status, lines, and what stood on stderr, of a run without this capability."""
    pid, ready = child(name, directory, compiled, program), directory / f"{name}.ready"
    until, ended = time.monotonic() + WAIT, 0
    while not ready.exists() and not ended and time.monotonic() < until:
        time.sleep(0.2)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        traffic.http_get()
        traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
        traffic.tcp_connect(topology.NODE4, DROPPED, timeout=0.5)
        time.sleep(2)
        os.kill(pid, signal.SIGINT)
        _, status = os.waitpid(pid, 0)
    lines = tracers.read(directory / f"{name}.out")
    return os.waitstatus_to_exitcode(status), lines, (directory / f"{name}.err").read_text()


def main() -> int:
    legacy.load_modules()
    with tempfile.TemporaryDirectory() as directory, scene.scene():
        subprocess.run(["nft", "-f", "-"], input=CHAINS, text=True, check=True)
        compiled = texts()
        program = Program(load_bcc(), compiled)
        print("compiled", flush=True)
        everything: dict[str, bool] = {}
        for name in ("", *rights.BITS):
            status, lines, said = run(name, Path(directory), compiled, program)
            now = tracers.told(lines)
            everything = everything or now
            lost = ", ".join(what for what, there in everything.items() if there and not now[what])
            facts = [f"{f['subject']}: {f['text']}" for f in tracers.facts(lines) if f["state"] != "ok"]
            seen = len(tracers.packets(lines))
            print(f"without {name or 'none of them'}: status {status}, {seen} packets; less: {lost or 'nothing'}")
            print(*(f"    {line}" for line in (*said.splitlines()[-3:], *facts[:12])), sep="\n", flush=True)
    print("with all:", ", ".join(what for what, there in everything.items() if there))
    return int(not all(everything.values()))


if __name__ == "__main__":
    sys.exit(main())
