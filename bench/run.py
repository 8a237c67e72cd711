# SPDX-License-Identifier: Apache-2.0
"""Boots one virtual machine, runs every benchmark in it, then the native benchmarks; prints tables and ratios.

    python3 bench/run.py [--clock instructions|time] [--rounds N] [--seconds S] [--only WORDS] [PART]...

PART: scenes, live, startup, throughput, drain, costs, beside, nftables; all by default. The default clock is real time where
KVM works, else counted instructions in an emulator (bench/counted.py). Results: build/bench/results.json. A run of all parts
also writes bench/results.json and the table of docs/performance.md (bench/figures.py). Exit status 1 when a part could not be
measured; a missed goal is only printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "vagrant")]

from bench import figures, report  # noqa: E402

OUT = Path("build/bench")
"""Path in the repository, which is also the guest's working directory."""
KERNEL = "6.12"
TIME_LIMIT = 3600
"""Limit of the machine's run, s; on a busy host it takes twice as long as on an idle one."""
CLOCKS = {
    "time": ("real", ROOT / "vagrant/lab/lab", 5, 3.0),
    "instructions": ("1 s is 10^9 instructions, of one CPU", ROOT / "bench/counted.py", 3, 0.4),
}
"""Clock -> description, program that runs the machine, rounds, seconds per blast."""
MEMORY = 3072
"""Memory of the machine, MiB: captures of every packet stay in the page cache, so that no disk is measured."""
REPEATS = 3


def usual_clock() -> str:
    """The clock "time" where KVM works, else "instructions"."""
    from lab import accel, kernels

    return "time" if accel.choose(kernels.find(KERNEL)).name == "kvm" else "instructions"


def in_machine(lab: Path, rounds: int, seconds: float, only: str, parts: list[str]) -> dict[str, Any]:
    """The guest's results. Raises SystemExit when the machine wrote none."""
    result = ROOT / OUT / "guest.json"
    result.unlink(missing_ok=True)
    machine = ["run", "--kernel", KERNEL, "--mem", str(MEMORY), "--timeout", str(TIME_LIMIT)]
    python = ["env", "PYTHONPATH=.:vagrant", "PYTHONDONTWRITEBYTECODE=1", f"BENCH_ONLY={only}", "python3"]
    words = [*python, "-m", "bench.inside", str(OUT), str(rounds), str(seconds), *parts]
    status = subprocess.run([sys.executable, str(lab), *machine, "--", *words], check=False).returncode
    if not result.exists():
        raise SystemExit(f"bench: the virtual machine left no results (status {status})")
    return with_missing(json.loads(result.read_text()), status)


def with_missing(found: dict[str, Any], status: int) -> dict[str, Any]:
    """The guest's results; its parts that neither ended nor failed are marked as failed. status: of the machine."""
    for name in found["parts"]:
        if name not in found:
            found["failed"].setdefault(name, f"the machine ended before this part did (status {status})")
    return found


def native(module: str, needs: str, *arguments: str, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """`python -m MODULE ARGUMENTS` several times with a Python here that can import `needs`; [] without one.

    The first one has an empty cache directory, which the others use, too.
    """
    with tempfile.TemporaryDirectory() as cache:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "vagrant"), os.environ.get("PYTHONPATH", "")])
        return _native(module, needs, arguments, os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": cache}, repeats)


def _native(module: str, needs: str, arguments: tuple[str, ...], environment: dict[str, str], repeats: int) -> list[Any]:
    for python in (sys.executable, "/usr/bin/python3"):
        can = [python, "-c", f"import {needs}"]
        if subprocess.run(can, env=environment, check=False, capture_output=True).returncode:
            continue
        found = []
        for _ in range(repeats):
            done = subprocess.run(
                [python, "-m", module, *arguments], env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=False
            )
            if done.returncode == 0:
                found.append(json.loads(done.stdout))
        return found
    return []


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: median(run[name] for run in runs) for name in runs[0]} if runs else {}


def explained() -> dict[str, Any]:
    """Packets explained natively per CPU second, by recorded scene and output format."""
    found = {}
    for path in sorted((ROOT / OUT).glob("*.k8st")):
        runs = native("bench.explain", "numpy", str(path), repeats=1)
        if runs:
            found[path.stem] = runs[0]
    return found


def native_machine() -> str:
    """This machine: processor, number of CPUs, Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def main() -> int:
    options = argparse.ArgumentParser(description="Benchmarks of k8snet-trace, in one virtual machine.")
    options.add_argument("--clock", choices=sorted(CLOCKS))
    options.add_argument("--rounds", type=int, help="rounds of throughput (instructions: 3, time: 5)")
    options.add_argument("--seconds", type=float, help="guest time measured per blast (instructions: 0.4, time: 3)")
    options.add_argument("--only", default="", help="throughput, beside: only tools with these words in their name")
    options.add_argument("parts", nargs="*", metavar="PART", help="see above (all)")
    given = options.parse_args()
    (ROOT / OUT).mkdir(parents=True, exist_ok=True)
    for old in (ROOT / OUT).glob("*.k8st"):
        old.unlink()
    began = time.monotonic()
    clock = given.clock or usual_clock()
    words, lab, rounds, seconds = CLOCKS[clock]
    results = in_machine(lab, given.rounds or rounds, given.seconds or seconds, given.only, given.parts)
    results["clock"] = f"{clock} ({words})"
    if "startup" in results:
        kernel = str(OUT / "kernel")
        os.environ["K8SNET_TRACE_CACHE"] = "off"
        results["startup"]["native"] = medians(native("bench.startup", "bcc", "", kernel))
        with tempfile.TemporaryDirectory() as cache:
            os.environ["K8SNET_TRACE_CACHE"] = cache
            native("bench.startup", "bcc", "", kernel)
            results["startup"]["native, warm"] = medians(native("bench.startup", "bcc", "", kernel))
    if "drain" in results:
        results["drain"]["native"] = medians(native("bench.drain", "numpy", str(OUT / "events.npy")))
    if "scenes" in results:
        results["explain"] = explained()
    results["native"] = native_machine()
    results["wall_seconds"] = time.monotonic() - began
    (ROOT / OUT / "results.json").write_text(json.dumps(results, indent=1))
    print(report.text(results))
    if not (given.parts or given.only):
        figures.write(results)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
