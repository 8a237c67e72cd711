# SPDX-License-Identifier: Apache-2.0
"""Runs inside the virtual machine: builds the scene, makes all measurements in it, writes the results as JSON.

    python3 -m bench.inside DIRECTORY ROUNDS SECONDS PART...

The error of a part that fails is written to the results, and the other parts run. The results are written after each part, so
that a machine that reaches its time limit leaves those of the finished parts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench import beside, costs, drain, live, scenes, startup, throughput, tools
from scenes import scene

OWN_SCENE = frozenset({"kernel", "scenes"})
"""Parts that build their own scene; all others need throughput.flow()."""
_began = time.monotonic()


def report(text: str) -> None:
    """Prints progress to stderr: stdout is for the tables."""
    print(f"[{time.monotonic() - _began:5.0f} s] {text}", file=sys.stderr, flush=True)


def kernel(directory: Path) -> dict[str, Any]:
    """Copies the kernel's types and symbols for the host, which measures starts natively with them.

    They are those of a node on which both back ends of iptables have had kube-proxy's rules: the modules stay loaded.
    """
    for backend in scenes.BACKENDS.values():
        with scene.scene("http-proxy", serve=(), backend=backend):
            pass
    startup.save(directory / "kernel")
    return {"files": len(list((directory / "kernel").rglob("*")))}


def starts() -> dict[str, Any]:
    """CPU seconds of a start, with the tracer's choice of probe types and with kprobes only.

    Each twice: the second start finds the programs of the first one in the cache.
    """
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"K8SNET_TRACE_CACHE": cache}
        for name, way in (("fentry", ""), ("fentry, warm", ""), ("kprobe", "kprobe"), ("kprobe, warm", "kprobe")):
            command = [sys.executable, "-m", "bench.startup", way]
            found[name] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout)
    return found


def all_parts(directory: Path, rounds: int, seconds: float) -> dict[str, Callable[[], Any]]:
    """What measures each part, by its name in bench/run.py."""
    return {
        "kernel": lambda: kernel(directory),
        "scenes": lambda: scenes.run(directory, report),
        "live": lambda: live.run(report),
        "throughput": lambda: throughput.run(rounds, seconds, report, throughput.GOALS),
        "variants": lambda: throughput.run(rounds, seconds, report, throughput.OTHERS),
        "starts": starts,
        "drain": lambda: drain.run(directory / "events.npy"),
        "costs": lambda: costs.run(seconds),
        "beside": lambda: beside.run(report),
        "nftables": lambda: throughput.nftables(rounds, seconds, report),
    }


def main(directory: Path, rounds: int, seconds: float, requested: list[str]) -> int:
    """Returns exit status 1 when a part failed."""
    parts = all_parts(directory, rounds, seconds)
    uname = os.uname()
    results: dict[str, Any] = {
        "machine": {"kernel": uname.release, "cpus": os.cpu_count(), "versions": tools.versions()},
        "rounds": rounds,
        "seconds": seconds,
        "parts": requested,
        "failed": {},
        "part_seconds": {},
    }
    for name in requested:
        report(name)
        began = time.monotonic()
        try:
            with nullcontext() if name in OWN_SCENE else throughput.flow():
                results[name] = parts[name]()
        except Exception:
            results["failed"][name] = traceback.format_exc()
        results["part_seconds"][name] = time.monotonic() - began
        (directory / "guest.json").write_text(json.dumps(results, indent=1))
    report("done")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
