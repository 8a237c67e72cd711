# SPDX-License-Identifier: Apache-2.0
"""What runs inside the virtual machine: the scene once, all measurements in it, the results as JSON.

    python3 -m bench.inside DIRECTORY ROUNDS SECONDS [PART]...

A part that fails is written down with its error, and the others go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import beside, costs, drain, startup, throughput, tools

_began = time.monotonic()


def say(text: str) -> None:
    """Progress, on stderr: stdout belongs to the tables."""
    print(f"[{time.monotonic() - _began:5.0f} s] {text}", file=sys.stderr, flush=True)


def starts(directory: Path) -> dict[str, Any]:
    """CPU seconds of a start, with the ways the tracer chooses and by kprobes alone; copies the kernel for the host."""
    startup.save(directory / "kernel")
    found = {}
    for name, way in (("fentry", ""), ("kprobe", "kprobe")):
        command = [sys.executable, "-m", "bench.startup", way]
        found[name] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main(directory: Path, rounds: int, seconds: float, wanted: list[str]) -> int:
    """Exit status 1 when a part failed."""
    parts: dict[str, Callable[[], Any]] = {
        "startup": lambda: starts(directory),
        "drain": lambda: drain.run(directory / "events.npy"),
        "costs": lambda: costs.run(seconds),
        "throughput": lambda: throughput.run(rounds, seconds, say),
        "beside": lambda: beside.run(say),
        "nftables": lambda: throughput.nftables(rounds, seconds, say),
    }
    uname = os.uname()
    results: dict[str, Any] = {
        "machine": {"kernel": uname.release, "cpus": os.cpu_count(), "versions": tools.versions()},
        "rounds": rounds,
        "seconds": seconds,
        "failed": {},
    }
    with throughput.flow():
        for name in wanted or parts:
            say(name)
            try:
                results[name] = parts[name]()
            except Exception:
                results["failed"][name] = traceback.format_exc()
    (directory / "guest.json").write_text(json.dumps(results, indent=1))
    say("done")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
