# SPDX-License-Identifier: Apache-2.0
"""Runs the tracer under stress: it reports what it cannot do in one sentence and with its exit status, it does not hang, and
its memory is bounded.

    python3 tests/kernel/all_stress.py [--only NAME,...]     (as root, in a machine of the lab; make stress)

One line per case, with figures. The last line is cases=… failed=…: the exit status is 0 when none failed.
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
"""In a mount namespace: $TMPDIR is a full file system of one MB, and everything else is read-only."""
START_SECONDS, END_SECONDS, PATIENCE = 600.0, 300.0, 300.0
LAST_BYTES = 1 << 20
"""Bytes read from the end of the output; the summary is shorter."""
_PACKET, _LOST, _PORT = (re.compile(text) for text in (rb'\{"type": ?"packet"', rb'\{"type": ?"lost"', rb'"[sd]port": ?(\d+)'))
GENERATIONS, GENERATION_SECONDS, MAP_ELEMENTS = 20, 10.0, 50_000
"""How often rules with a large map change, after which time each, and the size of the map."""
MEMORY_MB = 512
"""Upper limit of a run's memory, MB: half of the DaemonSet's limit."""


class Failed(AssertionError):
    """A case that did not end as required."""


def require(condition: object, why: str) -> None:
    if not condition:
        raise Failed(why)


def started(shell: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a start without a traceback. shell: "{run}" is the command, "{ask}" makes packets."""
    text = shell.replace("{run}", shlex.join(COMMAND)).replace("{ask}", shlex.join(ASK))
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", text], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, timeout=START_SECONDS
    )
    require("Traceback" not in done.stderr, done.stderr)
    return done.returncode, done.stdout, done.stderr


def nowhere_to_write() -> str:
    status, out, err = started(f"{READ_ONLY} ulimit -l 0; exec {{run}} {OPTIONS} {{ask}}")
    packets = out.count('"type": "packet"') + out.count('"type":"packet"')
    require(status == 10 and packets >= 10, f"status {status}, {packets} packets: {err}")
    return f"TMPDIR full, all read-only, memlock 0: status {status}, {packets} packets reported"


def memlock_without_rights() -> str:
    status, _, err = started(f"ulimit -l 0; exec setpriv --bounding-set=-sys_resource -- {{run}} {OPTIONS} {{ask}}")
    require(status == 10 or (status == 7 and err.count("k8snet-trace:") == 1), f"status {status}: {err}")
    return f"memlock 0 without CAP_SYS_RESOURCE: status {status} {err.strip().splitlines()[-1:] if status == 7 else ''}"


def few_descriptors() -> str:
    status, _, err = started(f"ulimit -Sn 64; exec {{run}} {OPTIONS} {{ask}}")
    require(status == 10, f"soft limit 64: status {status}: {err[-2000:]}")
    hard, _, why = started(f"ulimit -n 64; exec {{run}} {OPTIONS} {{ask}}")
    messages = [line for line in why.splitlines() if line.startswith("k8snet-trace:")]
    require(
        hard in (6, 7) and len(messages) == 1 and "descriptors" in messages[0], f"hard limit 64: status {hard}: {why[-2000:]}"
    )
    return f"soft limit of 64 files: status {status}; hard limit: status {hard}, {messages[0]}"


def unwritable_output() -> str:
    closed, _, text = started("exec {run} --port 80 >&-")
    require(closed == 20 and "closed" in text, f"status {closed}: {text}")
    full, _, why = started(f"exec {{run}} {OPTIONS} {{ask}} >/dev/full")
    require(full == 20 and "The output stops here" in why, f"status {full}: {why}")
    return f"stdout closed: status {closed}; /dev/full: status {full}"


class StressedTracer:
    """A tracer under stress, with its figures."""

    def __init__(self, directory: Path) -> None:
        ports = (traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP, stress.PASSING, stress.HOSTILE)
        self.tracer = Tracer(directory, "stressed", ports=ports)
        require(self.tracer.started(), self.tracer.messages())
        self.pid = int((directory / "stressed.ready").read_text())
        self._out, self._lost, self._reported = (directory / "stressed.out").open("rb"), 0, dict.fromkeys(ports, 0)
        self.before = self.files

    def reported(self, port: int) -> int:
        """Number of packets of a port so far."""
        self._read()
        return self._reported[port]

    @property
    def lost(self) -> int:
        self._read()
        return self._lost

    def _read(self) -> None:
        """Counts new lines by regular expressions: they are too many to be parsed."""
        at = self._out.tell()
        for line in self._out:
            if not line.endswith(b"\n"):
                self._out.seek(at)
                break
            at += len(line)
            if _LOST.match(line):
                self._lost += int(json.loads(line)["count"])
            elif _PACKET.match(line):
                for port in {int(number) for number in _PORT.findall(line)} & self._reported.keys():
                    self._reported[port] += 1

    @property
    def memory(self) -> int:
        """Peak memory so far, MB."""
        return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) >> 10

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def figures(self) -> str:
        require(self.tracer.process.poll() is None, f"it has ended: {self.tracer.messages()}")
        require(self.memory < MEMORY_MB, f"{self.memory} MB")
        return f"{self.lost} lost, {self.memory} MB at most, {self.files} files open ({self.before} before)"

    def end(self) -> tuple[int, dict[str, Any]]:
        """Ends it with SIGINT; returns its exit status and its last line."""
        self.tracer.signal(signal.SIGINT)
        status = self.tracer.process.wait(END_SECONDS)
        with open(self._out.name, "rb") as out:
            out.seek(max(0, out.seek(0, os.SEEK_END) - LAST_BYTES))
            return status, json.loads(out.read().splitlines()[-1])

    def settled(self, port: int, fewest: int) -> int:
        """Number of reported packets of a port, once their number no longer grows."""
        until, reported, last = time.monotonic() + PATIENCE, -1, 0
        while time.monotonic() < until and (last != reported or last < fewest):
            last = reported
            time.sleep(3)
            reported = self.reported(port)
        return reported


def namespaces(running: StressedTracer, options: argparse.Namespace) -> str:
    began = time.monotonic()
    sent = stress.passing_namespaces(options.namespaces)
    seconds, reported = time.monotonic() - began, running.settled(stress.PASSING, sent)
    require(reported + running.lost >= sent, f"{reported} reported, {running.lost} lost of {sent}")
    require(running.files <= running.before + 8, f"{running.files} files open, {running.before} before: namespaces stay open")
    return f"{options.namespaces} namespaces in {seconds:.0f} s, {reported} of {sent} packets reported, {running.figures()}"


def connections(running: StressedTracer, options: argparse.Namespace) -> str:
    made, seconds = stress.tcp_connections(options.seconds)
    reported = running.settled(traffic.NODEPORT_HTTP, made)
    flows, took = stress.udp_flows(options.seconds)
    of_flows = running.settled(traffic.NODEPORT_UDP, flows)
    require(reported + running.lost >= made, f"{made} TCP connections, {reported} packets reported, {running.lost} lost")
    require(of_flows + running.lost >= flows, f"{flows} UDP flows, {of_flows} packets reported, {running.lost} lost")
    tcp = f"{made / seconds:.0f} TCP connections a second for {seconds:.0f} s, {reported} of their packets reported"
    udp = f"{flows / took:.0f} UDP flows a second for {took:.0f} s, {of_flows} packets reported"
    return f"{tcp}; {udp}; {running.figures()}"


def changing_rules(running: StressedTracer, options: argparse.Namespace) -> str:
    """A large map in rules that change again and again."""
    began, before = time.monotonic(), running.reported(stress.HOSTILE)
    stress.large_map(MAP_ELEMENTS)
    for _ in range(GENERATIONS):
        stress.change_rules()
        stress.ask_hostile()
        time.sleep(GENERATION_SECONDS)
    reported = running.settled(stress.HOSTILE, before + GENERATIONS) - before
    stress.remove_map()
    require(reported + running.lost >= GENERATIONS, f"{reported} packets reported of {GENERATIONS}, {running.lost} lost")
    text = f"{GENERATIONS} generations of a map of {MAP_ELEMENTS} elements, {reported} packets reported"
    return f"{text}; {time.monotonic() - began:.0f} s, {running.figures()}"


def hostile_rules(running: StressedTracer, options: argparse.Namespace) -> str:
    began, lost = time.monotonic(), running.lost
    stress.fan_out(10)
    for _ in range(20):
        stress.ask_hostile()
    reported = running.settled(stress.HOSTILE, 20)
    text = f"fan-out of 1,024 paths: {reported} packets reported, {running.lost - lost} more lost"
    stress.huge_set(options.elements)
    stress.ask_hostile()
    later = running.settled(stress.HOSTILE, reported + 1)
    require(later > reported, "no packet is reported after a huge set was added")
    if options.elements > nfnetlink.MOST:
        notes = running.tracer.messages().count("their verdict maps have more than")
        require(notes == 1, f"{notes} messages that the rules are not read, not one")
    text += f"; a set and a map of {options.elements} elements: {later - reported} reported"
    return f"{text}; {time.monotonic() - began:.0f} s, {running.figures()}"


def ends(running: StressedTracer, options: argparse.Namespace) -> str:
    began = time.monotonic()
    status, last = running.end()
    took, text = time.monotonic() - began, running.tracer.messages()
    require(status == 0 and last["type"] == "summary", f"status {status}: {text}")
    require("Traceback" not in text, text)
    return f"{took:.0f} s, {last['packets']} packets, {last['lost']} lost; stderr: {len(text.splitlines())} lines"


STARTS: tuple[Callable[[], str], ...] = (unwritable_output, nowhere_to_write, few_descriptors, memlock_without_rights)
RUNS: tuple[Callable[[StressedTracer, argparse.Namespace], str], ...] = (
    namespaces, connections, changing_rules, hostile_rules, ends,
)  # fmt: skip


def run_case(name: str, case: Callable[[], str]) -> bool:
    began = time.monotonic()
    try:
        text, passed = case(), True
    except (Failed, subprocess.SubprocessError, OSError, KeyError, IndexError) as e:
        text, passed = f"FAILED: {type(e).__name__} {e}", False
    print(f"{time.monotonic() - began:5.0f} s  {name}: {text}", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="NAME,...", help="these cases")
    parser.add_argument("--namespaces", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of connections")
    parser.add_argument("--elements", type=int, default=1_000_000)
    options = parser.parse_args()
    selected = [name for name in options.only.split(",") if name]
    outcomes = []
    modules.load(modules.RANDOM_RULES + " nf_tables nft_ct")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, scene.scene():
        for case in STARTS:
            if not selected or case.__name__ in selected:
                outcomes.append(run_case(case.__name__, case))
        runs = [case for case in RUNS if not selected or case.__name__ in selected]
        if runs:
            running = StressedTracer(Path(directory))
            for each in runs:
                outcomes.append(run_case(each.__name__, lambda each=each: each(running, options)))  # type: ignore[misc]
            with suppress(OSError):
                os.kill(running.pid, signal.SIGKILL)
    print(f"cases={len(outcomes)} failed={outcomes.count(False)}")
    return int(False in outcomes)


if __name__ == "__main__":
    sys.exit(main())
