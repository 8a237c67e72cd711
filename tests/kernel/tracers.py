# SPDX-License-Identifier: Apache-2.0
"""Runs the command beside a test, with fewer rights or with kernel functions hidden, and reads its output."""

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
"""One line of the JSON output."""


def with_capabilities(*names: str) -> str:
    """The prefix of a command that runs as root with these capabilities only."""
    added = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names)
    return f"setpriv --bounding-set=-all,{added} --inh-caps=-all --"


def without_symbols(directory: Path, *names: str) -> str:
    """The prefix of a command that must not find these functions in the kernel."""
    kept, patterns = directory / "kallsyms", " ".join(f"-e {name}" for name in names)
    script = f'grep -v -w {patterns} /proc/kallsyms >{kept}; mount --bind {kept} /proc/kallsyms && exec "$@"'
    return f"unshare -m sh -c '{script}' sh"


def without_events(directory: Path, row: str) -> str:
    """The prefix of a command with a probe that never writes an event. row: of the probe table; its point is entry."""
    source = ROOT / "bpf" / "probes" / f"{row}.h"
    text, begin = source.read_text(), f"int {row}_entered(struct call *c)\n{{\n"
    assert text.count(begin) == 1, row
    changed = directory / source.name
    changed.write_text(text.replace(begin, f"{begin}    if (c->arg[0])\n        return 0;\n"))
    return f"unshare -m sh -c 'mount --bind {changed} {source} && exec \"$@\"' sh"


class Tracer:
    """The command; it traces these ports and writes its output to files. prefix: command that starts it, with its options."""

    def __init__(self, directory: Path, name: str, prefix: str = "", ports: tuple[int, ...] = (traffic.NODEPORT_HTTP,)) -> None:
        self.name, self._ready = name, directory / f"{name}.ready"
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        options = ["-o", "json", "--no-kube", *(word for port in ports for word in ("--port", str(port)))]
        command = " ".join([prefix, *COMMAND, "--ready-file", str(self._ready), *options])
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(["sh", "-c", f"exec {command}"], stdout=out, stderr=err, env=ENVIRONMENT, cwd=ROOT)

    def started(self) -> bool:
        """Waits until its probes are attached; False when it ended or was not ready in time."""
        until = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def signal(self, number: int) -> None:
        os.kill(int(self._ready.read_text()), number)

    def lines(self) -> list[Line]:
        """The lines printed so far."""
        return read(self._out)

    def end(self) -> list[Line]:
        """Ends the command and returns all its lines. Prints messages, degraded checks and losses, for a test that fails."""
        if self.process.poll() is None:
            self.signal(signal.SIGINT)
        self.process.wait(120)
        lines = self.lines()
        print(f"---- {self.name}: status {self.process.returncode}\n{self.messages()}")
        print(*(f"  {f['subject']}: {f['state']}: {f['text']}" for f in facts(lines) if f["state"] != "ok"), sep="\n")
        print(*(f"  {line}" for line in lines if line["type"] in ("lost", "summary")), sep="\n")
        return lines

    def messages(self) -> str:
        """Its output on stderr."""
        return self._err.read_text()


def read(path: Path) -> list[Line]:
    """The complete lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def facts(lines: list[Line]) -> list[Line]:
    """The check results that the command printed at its start."""
    return list(lines[0]["facts"]) if lines else []


def packets(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["type"] == "packet"]


def of_port(lines: list[Line], port: int) -> list[Line]:
    """Packets with this port in their header or in their connection."""
    return [packet for packet in packets(lines) if port in _ports(packet)]


def _ports(packet: Line) -> set[int]:
    flow = packet.get("flow") or {}
    ends = (packet, flow.get("orig") or {}, flow.get("reply") or {})
    return {end[name] for end in ends for name in ("sport", "dport") if name in end}


def reported(lines: list[Line]) -> dict[str, bool]:
    """Whether a run reported each of the details that may be missing."""
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
