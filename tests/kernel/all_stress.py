# SPDX-License-Identifier: Apache-2.0
"""Hard times for a run: what it cannot do it says in one sentence, with its status; it does not hang, its memory is bounded.

    python3 tests/kernel/all_stress.py [--only NAME,...]     (as root, in a machine of the lab; make stress)

One line a case, with figures. The last line is cases=… failed=…: the exit status is 0 when none failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import scene, traffic  # noqa: E402
from tests.kernel import modules, stress  # noqa: E402
from tests.kernel.test_command import ASK, COMMAND, ENVIRONMENT  # noqa: E402
from tests.kernel.tracers import Tracer  # noqa: E402
from tracer.node import nfnetlink  # noqa: E402

OPTIONS = f"-o json --no-kube --port {traffic.NODEPORT_HTTP} --port {traffic.NODEPORT_LONELY} --"
READ_ONLY = (
    "mount -t tmpfs -o size=1M none /media && head -c 2000000 /dev/zero >/media/full 2>/dev/null; export TMPDIR=/media; "
    "for at in / /tmp /run /dev/shm /var/tmp; do mount -o remount,bind,ro $at 2>/dev/null; done; ! touch /tmp/x 2>/dev/null && "
)
"""In a mount namespace: a full $TMPDIR of one MB, and nothing else that can be written to."""
START_SECONDS, END_SECONDS, PATIENCE = 600.0, 300.0, 300.0
LAST_BYTES = 1 << 20
"""The summary is shorter than this."""
_PACKET, _LOST, _PORT = (re.compile(text) for text in (rb'\{"type": ?"packet"', rb'\{"type": ?"lost"', rb'"[sd]port": ?(\d+)'))
MEMORY_MB = 512
"""What a run may use at most, whatever happens: half of what the DaemonSet gives it."""


class Failed(AssertionError):
    """A case that did not end as it must."""


def must(true: object, why: str) -> None:
    if not true:
        raise Failed(why)


def started(shell: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a start, which may not leave a traceback. shell: "{run}" is the command."""
    text = shell.replace("{run}", shlex.join(COMMAND)).replace("{ask}", shlex.join(ASK))
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", text], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, timeout=START_SECONDS
    )
    must("Traceback" not in done.stderr, done.stderr)
    return done.returncode, done.stdout, done.stderr


def nowhere_to_write() -> str:
    status, out, err = started(f"{READ_ONLY} ulimit -l 0; exec {{run}} {OPTIONS} {{ask}}")
    packets = out.count('"type": "packet"') + out.count('"type":"packet"')
    must(status == 10 and packets >= 10, f"status {status}, {packets} packets: {err}")
    return f"TMPDIR full, all read-only, memlock 0: status {status}, {packets} packets told"


def memlock_without_rights() -> str:
    status, _, err = started(f"ulimit -l 0; exec setpriv --bounding-set=-sys_resource -- {{run}} {OPTIONS} {{ask}}")
    must(status == 10 or (status == 7 and err.count("k8snet-trace:") == 1), f"status {status}: {err}")
    return f"memlock 0 without CAP_SYS_RESOURCE: status {status} {err.strip().splitlines()[-1:] if status == 7 else ''}"


def few_descriptors() -> str:
    status, _, err = started(f"ulimit -Sn 64; exec {{run}} {OPTIONS} {{ask}}")
    must(status == 10, f"soft limit 64: status {status}: {err[-2000:]}")
    hard, _, why = started(f"ulimit -n 64; exec {{run}} {OPTIONS} {{ask}}")
    said = [line for line in why.splitlines() if line.startswith("k8snet-trace:")]
    must(hard in (6, 7) and len(said) == 1 and "descriptors" in said[0], f"hard limit 64: status {hard}: {why[-2000:]}")
    return f"soft limit of 64 files: status {status}; hard limit: status {hard}, {said[0]}"


def nobody_hears() -> str:
    closed, _, said = started("exec {run} --port 80 >&-")
    must(closed == 20 and "closed" in said, f"status {closed}: {said}")
    full, _, why = started(f"exec {{run}} {OPTIONS} {{ask}} >/dev/full")
    must(full == 20 and "The output stops here" in why, f"status {full}: {why}")
    return f"stdout closed: status {closed}; /dev/full: status {full}"


class Running:
    """A tracer under stress, with its figures."""

    def __init__(self, directory: Path) -> None:
        ports = (traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP, stress.PASSING, stress.HOSTILE)
        self.tracer = Tracer(directory, "stressed", ports=ports)
        must(self.tracer.started(), self.tracer.said())
        self.pid = int((directory / "stressed.ready").read_text())
        self._out, self._lost, self._told = (directory / "stressed.out").open("rb"), 0, dict.fromkeys(ports, 0)
        self.before = self.files

    def told(self, port: int) -> int:
        """Packets of a port so far."""
        self._read()
        return self._told[port]

    @property
    def lost(self) -> int:
        self._read()
        return self._lost

    def _read(self) -> None:
        """Counts the lines that are new: their text, for there are too many to parse each time."""
        at = self._out.tell()
        for line in self._out:
            if not line.endswith(b"\n"):
                self._out.seek(at)
                break
            at += len(line)
            if _LOST.match(line):
                self._lost += int(json.loads(line)["count"])
            elif _PACKET.match(line):
                for port in {int(number) for number in _PORT.findall(line)} & self._told.keys():
                    self._told[port] += 1

    @property
    def memory(self) -> int:
        """MB at most so far."""
        return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) >> 10

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def figures(self) -> str:
        must(self.tracer.process.poll() is None, f"it has ended: {self.tracer.said()}")
        must(self.memory < MEMORY_MB, f"{self.memory} MB")
        return f"{self.lost} lost, {self.memory} MB at most, {self.files} files open ({self.before} before)"

    def end(self) -> tuple[int, dict[str, Any]]:
        """Its exit status, once it was asked to end, and its last line."""
        self.tracer.signal(signal.SIGINT)
        status = self.tracer.process.wait(END_SECONDS)
        with open(self._out.name, "rb") as out:
            out.seek(max(0, out.seek(0, os.SEEK_END) - LAST_BYTES))
            return status, json.loads(out.read().splitlines()[-1])

    def calm(self, port: int, fewest: int) -> int:
        """Packets of a port that were told, once nothing more comes."""
        until, told, last = time.monotonic() + PATIENCE, -1, 0
        while time.monotonic() < until and (last != told or last < fewest):
            last = told
            time.sleep(3)
            told = self.told(port)
        return told


def namespaces(running: Running, options: argparse.Namespace) -> str:
    began = time.monotonic()
    sent = stress.passing_namespaces(options.namespaces)
    seconds, told = time.monotonic() - began, running.calm(stress.PASSING, sent)
    must(told + running.lost >= sent, f"{told} told, {running.lost} lost of {sent}")
    must(running.files <= running.before + 8, f"{running.files} files open, {running.before} before: namespaces are held")
    return f"{options.namespaces} namespaces in {seconds:.0f} s, {told} of {sent} packets told, {running.figures()}"


def connections(running: Running, options: argparse.Namespace) -> str:
    made, seconds = stress.tcp_connections(options.seconds)
    told = running.calm(traffic.NODEPORT_HTTP, made)
    flows, took = stress.udp_flows(options.seconds)
    of_flows = running.calm(traffic.NODEPORT_UDP, flows)
    must(told + running.lost >= made, f"{made} TCP connections, {told} packets told, {running.lost} lost")
    must(of_flows + running.lost >= flows, f"{flows} UDP flows, {of_flows} packets told, {running.lost} lost")
    tcp = f"{made / seconds:.0f} TCP connections a second for {seconds:.0f} s, {told} of their packets told"
    udp = f"{flows / took:.0f} UDP flows a second for {took:.0f} s, {of_flows} packets told"
    return f"{tcp}; {udp}; {running.figures()}"


def hostile_rules(running: Running, options: argparse.Namespace) -> str:
    began, lost = time.monotonic(), running.lost
    stress.fan_out(10)
    for _ in range(20):
        stress.ask_hostile()
    told = running.calm(stress.HOSTILE, 20)
    said = f"fan-out of 1,024 ways: {told} packets told, {running.lost - lost} more lost"
    stress.huge_set(options.elements)
    stress.ask_hostile()
    later = running.calm(stress.HOSTILE, told + 1)
    must(later > told, "nothing is told beside a huge set")
    if options.elements > nfnetlink.MOST:
        said_so = running.tracer.said().count("their verdict maps have more than")
        must(said_so == 1, f"said {said_so} times that the rules are not read")
    said += f"; a set and a map of {options.elements} elements: {later - told} told"
    return f"{said}; {time.monotonic() - began:.0f} s, {running.figures()}"


def ends(running: Running, options: argparse.Namespace) -> str:
    began = time.monotonic()
    status, last = running.end()
    took, said = time.monotonic() - began, running.tracer.said()
    must(status == 0 and last["type"] == "summary", f"status {status}: {said}")
    must("Traceback" not in said, said)
    return f"{took:.0f} s, {last['packets']} packets, {last['lost']} lost; stderr: {len(said.splitlines())} lines"


STARTS: tuple[Callable[[], str], ...] = (nobody_hears, nowhere_to_write, few_descriptors, memlock_without_rights)
RUNS: tuple[Callable[[Running, argparse.Namespace], str], ...] = (namespaces, connections, hostile_rules, ends)


def tried(name: str, case: Callable[[], str]) -> bool:
    began = time.monotonic()
    try:
        said, good = case(), True
    except (Failed, subprocess.SubprocessError, OSError, KeyError, IndexError) as e:
        said, good = f"FAILED: {type(e).__name__} {e}", False
    print(f"{time.monotonic() - began:5.0f} s  {name}: {said}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="NAME,...", help="these cases")
    parser.add_argument("--namespaces", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of connections")
    parser.add_argument("--elements", type=int, default=1_000_000)
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    outcomes = []
    modules.load(modules.RANDOM_RULES + " nf_tables nft_ct")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, scene.scene():
        for case in STARTS:
            if not wanted or case.__name__ in wanted:
                outcomes.append(tried(case.__name__, case))
        runs = [case for case in RUNS if not wanted or case.__name__ in wanted]
        if runs:
            running = Running(Path(directory))
            for each in runs:
                outcomes.append(tried(each.__name__, lambda each=each: each(running, options)))  # type: ignore[misc]
            with suppress(OSError):
                os.kill(running.pid, signal.SIGKILL)
    print(f"cases={len(outcomes)} failed={outcomes.count(False)}")
    return int(False in outcomes)


if __name__ == "__main__":
    sys.exit(main())
