# SPDX-License-Identifier: Apache-2.0
"""Finds out which capabilities a run can do without, and what it then cannot report; in the lab, as root:

    python3 tests/kernel/all_rights.py [single] [several] [container] [lockdown] [CAP_...]

One run without each capability of tracer/node/capabilities.py, and some without several. The first one compiles the programs,
the others take them from the cache, unless they need other ones. One line per run: its exit
status, and what it reports less than a run with all capabilities; below it its messages. At the end the kernel is locked down,
which only a new boot reverts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import scene, topology, traffic  # noqa: E402
from tests.kernel import modules, tracers  # noqa: E402
from tracer.cli import main as cli_main  # noqa: E402
from tracer.commands import doctor  # noqa: E402
from tracer.kernel import session  # noqa: E402
from tracer.node import capabilities  # noqa: E402

DROPPED, OTHERS = 9126, 9127
"""Ports: of packets that a rule of nftables drops, and of a listener of another user."""
CHAINS = f"table inet few {{ chain in {{ type filter hook input priority 5; tcp dport {DROPPED} drop; }}; }}"
PORTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY, DROPPED, OTHERS)
LISTEN = f"import socket, time; s = socket.create_server(('', {OTHERS})); print(flush=True); time.sleep(1e6)"
OPTIONAL = tuple(name for name in capabilities.BITS if name not in (capabilities.NEEDED, *capabilities.LOSES))
SEVERAL = (("CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"), OPTIONAL)
LOCKDOWN = capabilities.LOCKDOWN
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
WAIT = 240.0

Without = tuple[str, ...]


class Runs:
    """Runs the command several times, each in its own process."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._number = directory, 0
        self._types = session.Kernel.running().types

    def run(self, without: Without = (), contained: bool = False) -> tuple[int, list[tracers.Line], str]:
        """Exit status, lines, and the text on stderr. contained: /sys as it is in a container, and no new privileges."""
        self._number += 1
        name = self._directory / str(self._number)
        pid, ready = self._child(name, without, contained), name.with_suffix(".ready")
        until, ended = time.monotonic() + WAIT, 0
        while not ready.exists() and not ended and time.monotonic() < until:
            time.sleep(0.2)
            ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            traffic.http_get()
            traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
            traffic.tcp_connect(topology.NODE4, OTHERS)
            traffic.tcp_connect(topology.NODE4, DROPPED, timeout=0.5)
            time.sleep(2)
            os.kill(pid, signal.SIGINT)
            _, status = os.waitpid(pid, 0)
        lines = tracers.read(name.with_suffix(".out"))
        return os.waitstatus_to_exitcode(status), lines, name.with_suffix(".err").read_text()

    def _child(self, name: Path, without: Without, contained: bool) -> int:
        pid = os.fork()
        if pid:
            return pid
        status: Any = 1
        try:
            for number, suffix in ((1, ".out"), (2, ".err")):
                os.dup2(os.open(name.with_suffix(suffix), os.O_WRONLY | os.O_CREAT, 0o666), number)
            for module in (session, doctor):
                module.__dict__["KernelTypes"] = lambda *root: self._types
            if contained:
                restrict_like_container()
            drop_capabilities(without)
            ready = ["--ready-file", str(name.with_suffix(".ready")), "-o", "json", "--no-kube"]
            cli_main.main([*ready, *(word for port in PORTS for word in ("--port", str(port)))])
        except SystemExit as e:
            status = e.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 0)


def restrict_like_container() -> None:
    """Gives this process the /sys of a container that is not privileged."""
    libc, new_mounts = ctypes.CDLL(None, use_errno=True), 0x00020000
    if libc.unshare(new_mounts):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run("mount --make-rprivate / && umount -l /sys && mount -t sysfs -o ro none /sys", shell=True, check=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities(without: Without) -> None:
    """Keeps in this process and its children all capabilities of tracer/node/capabilities.py except these."""
    mask, libc = capabilities.mask(tuple(c for c in capabilities.BITS if c not in without)), ctypes.CDLL(None, use_errno=True)
    for bit in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if not mask >> bit & 1:
            libc.prctl(PR_CAPBSET_DROP, bit, 0, 0, 0)
    capabilities.keep(mask)


@contextmanager
def listener_of_another_user() -> Iterator[None]:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", LISTEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield
        process.kill()


def reported(lines: list[tracers.Line]) -> dict[str, bool]:
    """Kinds of information that a run may lack, and whether it reported them."""
    others = [hop for packet in tracers.of_port(lines, OTHERS) for hop in packet["hops"]]
    return tracers.reported(lines) | {"processes of other users": any("pid" in h.get("socket", {}) for h in others)}


def write(what: str, found: tuple[int, list[tracers.Line], str], baseline: dict[str, bool]) -> None:
    status, lines, messages = found
    now = reported(lines)
    missing = ", ".join(name for name, is_reported in baseline.items() if is_reported and not now[name])
    facts = [f"{f['subject']}: {f['text']}" for f in tracers.facts(lines) if f["state"] != "ok"]
    print(f"{what}: status {status}, {len(tracers.packets(lines))} packets; less: {missing or 'nothing'}")
    print(*(f"    {line}" for line in (*messages.splitlines()[-3:], *facts[:12])), sep="\n", flush=True)


def lock(mode: str) -> None:
    if not LOCKDOWN.exists():
        subprocess.run(["mount", "-t", "securityfs", "none", str(LOCKDOWN.parent)], check=True)
    LOCKDOWN.write_text(mode)
    print("lockdown:", LOCKDOWN.read_text().strip(), flush=True)


def main(selected: Sequence[str]) -> int:
    several = SEVERAL if "several" in selected else ()
    modules.load(modules.RANDOM_RULES)
    with tempfile.TemporaryDirectory() as directory, scene.scene(), listener_of_another_user():
        subprocess.run(["nft", "-f", "-"], input=CHAINS, text=True, check=True)
        runs = Runs(Path(directory))
        whole = runs.run()
        baseline = reported(whole[1])
        write("with all", whole, baseline)
        print("    reported:", ", ".join(what for what, is_reported in baseline.items() if is_reported))
        for without in (*((name,) for name in capabilities.BITS if name in selected or "single" in selected), *several):
            write(f"without {' '.join(without)}", runs.run(without), baseline)
        if "container" in selected:
            write(f"in a container, without {' '.join(OPTIONAL)}", runs.run(OPTIONAL, contained=True), baseline)
        if "lockdown" in selected:
            lock("integrity")
            write("with all", runs.run(), baseline)
            lock("confidentiality")
            write("with all", runs.run(), baseline)
            write("in a container, which does not see the lockdown", runs.run(contained=True), baseline)
    return int(not all(baseline.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ("single", "several", "container", "lockdown")))
