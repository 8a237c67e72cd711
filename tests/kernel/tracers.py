# SPDX-License-Identifier: Apache-2.0
"""The command beside a test, with fewer rights or less of a kernel than it would like, and what it printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from scenes import traffic
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import COMMAND, ENVIRONMENT, START_SECONDS

Line = dict[str, Any]
"""One of its lines, as JSON has it."""


def holding(*names: str) -> str:
    """What to put before a command that is to be root with these capabilities and no other."""
    words = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names)
    return f"setpriv --bounding-set=-all,{words} --inh-caps=-all --"


def without_symbols(directory: Path, *names: str) -> str:
    """What to put before a command that is not to find these functions in the kernel."""
    kept, words = directory / "kallsyms", " ".join(f"-e {name}" for name in names)
    script = f'grep -v -w {words} /proc/kallsyms >{kept}; mount --bind {kept} /proc/kallsyms && exec "$@"'
    return f"unshare -m sh -c '{script}' sh"


class Tracer:
    """The command, tracing these ports, with its output in files. before: what to run it by."""

    def __init__(self, directory: Path, name: str, before: str = "", ports: tuple[int, ...] = (traffic.NODEPORT_HTTP,)) -> None:
        self.name, self._ready = name, directory / f"{name}.ready"
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        options = ["-o", "json", "--no-kube", *(word for port in ports for word in ("--port", str(port)))]
        words = " ".join([before, *COMMAND, "--ready-file", str(self._ready), *options])
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(["sh", "-c", f"exec {words}"], stdout=out, stderr=err, env=ENVIRONMENT, cwd=ROOT)

    def started(self) -> bool:
        """Once its probes are on; False when it has ended instead."""
        until = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def signal(self, number: int) -> None:
        os.kill(int(self._ready.read_text()), number)

    def lines(self) -> list[Line]:
        """What it has printed so far."""
        return read(self._out)

    def end(self) -> list[Line]:
        """All its lines, by its own end. Shows what a user would want to see of them, for a test that fails."""
        if self.process.poll() is None:
            self.signal(signal.SIGINT)
        self.process.wait(120)
        lines = self.lines()
        print(f"---- {self.name}: status {self.process.returncode}\n{self.said()}")
        print(*(f"  {f['subject']}: {f['state']}: {f['text']}" for f in facts(lines) if f["state"] != "ok"), sep="\n")
        print(*(f"  {line}" for line in lines if line["type"] in ("lost", "summary")), sep="\n")
        return lines

    def said(self) -> str:
        """On stderr."""
        return self._err.read_text()


def read(path: Path) -> list[Line]:
    """The lines in a file that are written to their end."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def facts(lines: list[Line]) -> list[Line]:
    """What it said at its start, of what works and what does not."""
    return list(lines[0]["facts"]) if lines else []


def packets(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["type"] == "packet"]


def of_port(lines: list[Line], port: int) -> list[Line]:
    """Packets with this port, of their own or of their connection."""
    return [packet for packet in packets(lines) if port in _ports(packet)]


def _ports(packet: Line) -> set[int]:
    flow = packet.get("flow") or {}
    ends = (packet, flow.get("orig") or {}, flow.get("reply") or {})
    return {end[name] for end in ends for name in ("sport", "dport") if name in end}


def told(lines: list[Line]) -> dict[str, bool]:
    """What a run may lack, and whether it told it."""
    hops = [hop for packet in packets(lines) for hop in packet["hops"]]
    return {
        "verdicts": any(h["what"] in ("table", "chain") for h in hops),
        "rules of iptables": any("rule" in h and h["what"] == "table" for h in hops),
        "rules of nftables": any("rule" in h and h["what"] == "chain" for h in hops),
        "translations": any("nat" in h for h in hops),
        "processes": any("pid" in h.get("socket", {}) for h in hops),
        "functions that dropped packets": any("function" in h.get("drop", {}) for h in hops),
        "names of namespaces": "client" in {h["netns"] for h in hops},
    }
