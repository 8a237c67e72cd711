"""Boots one virtual machine, runs every benchmark in it, then what can be done natively; prints tables and ratios.

    python3 -m bench.run [--rounds N] [--seconds S] [PART]...

PART: startup, drain, costs, throughput; all of them unless named. Results: build/bench/results.json. Exit status 1 when a part
could not be measured; a goal that was missed is only said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also when started as `python3 bench/run.py`

from bench import report  # noqa: E402

OUT = Path("build/bench")
"""Below the repository, which is also the guest's working directory."""
KERNEL = "6.12"
TIME_LIMIT = 1500
"""Seconds for the machine; on a busy host it takes twice as long as on an idle one."""
MEMORY = 3072
"""MiB: captures of every packet stay in the page cache, so that no disk is measured."""
REPEATS = 3


def in_machine(rounds: int, seconds: float, parts: list[str]) -> dict[str, Any]:
    """The guest's results. Raises SystemExit when the machine left none."""
    result = ROOT / OUT / "guest.json"
    result.unlink(missing_ok=True)
    lab = [str(ROOT / "vagrant/lab/lab"), "run", "--kernel", KERNEL, "--mem", str(MEMORY), "--timeout", str(TIME_LIMIT)]
    python = ["env", "PYTHONPATH=.:vagrant", "PYTHONDONTWRITEBYTECODE=1", "python3"]
    words = [*python, "-m", "bench.inside", str(OUT), str(rounds), str(seconds), *parts]
    status = subprocess.run([*lab, "--", *words], check=False).returncode
    if not result.exists():
        raise SystemExit(f"bench: the virtual machine left no results (status {status})")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def native(module: str, needs: str, *arguments: str) -> list[dict[str, float]]:
    """`python -m MODULE ARGUMENTS` REPEATS times, with a Python here that can import `needs`; [] where there is none."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'vagrant'}"}
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", f"import {needs}"], check=False, capture_output=True).returncode:
            continue
        found = []
        for _ in range(REPEATS):
            done = subprocess.run(
                [python, "-m", module, *arguments], env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=False
            )
            if done.returncode == 0:
                found.append(json.loads(done.stdout))
        return found
    return []


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure by itself."""
    return {name: median(run[name] for run in runs) for name in runs[0]} if runs else {}


def main() -> int:
    options = argparse.ArgumentParser(description="Benchmarks of k8snet-trace, in one virtual machine.")
    options.add_argument("--rounds", type=int, default=5, help="of throughput (5)")
    options.add_argument("--seconds", type=float, default=3.0, help="measured of each blast (3)")
    options.add_argument("parts", nargs="*", metavar="PART", help="startup, drain, costs, throughput (all)")
    given = options.parse_args()
    (ROOT / OUT).mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    results = in_machine(given.rounds, given.seconds, given.parts)
    if "startup" in results:
        kernel = str(OUT / "kernel")
        results["startup"]["native"] = medians(native("bench.startup", "bcc", "", kernel))
    if "drain" in results:
        results["drain"]["native"] = medians(native("bench.drain", "numpy", str(OUT / "events.npy")))
    results["wall_seconds"] = time.monotonic() - began
    (ROOT / OUT / "results.json").write_text(json.dumps(results, indent=1))
    print(report.text(results))
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
