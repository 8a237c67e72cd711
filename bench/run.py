# SPDX-License-Identifier: Apache-2.0
"""Boots virtual machines, runs every benchmark in them, then the native benchmarks; prints tables and ratios.

    python3 bench/run.py [--clock instructions|time] [--rounds N] [--seconds S] [--only WORDS] [PART]...

PART: kernel, scenes, live, throughput, which have goals, and variants, starts, drain, costs, beside, nftables; all by default.
The two groups run in two machines, each with its own time limit: at the same time with counted instructions, because the load
of the host has no effect then, else one after the other. The default clock is real time where KVM works, else counted
instructions in an emulator (bench/counted.py). Results: build/bench/results.json. A run of all parts also writes
bench/results.json and the table of docs/performance.md (bench/figures.py). Exit status 1 when a part could not be measured; a
missed goal is only printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "vagrant")]

from bench import figures, report  # noqa: E402

OUT = Path("build/bench")
"""Path in the repository, which is also the guest's working directory."""
KERNEL = "6.12"
GROUPS = (("kernel", "scenes", "live", "throughput"), ("variants", "starts", "drain", "costs", "beside", "nftables"))
"""Parts of one machine, in order: those with goals, and the others."""
TIME_LIMIT = 2700
"""Limit of one machine's run, s; on a busy host it takes twice as long as on an idle one."""
CLOCKS = {
    "time": ("real", ROOT / "vagrant/lab/lab", 5, 3.0),
    "instructions": ("1 s is 10^9 instructions, of one CPU", ROOT / "bench/counted.py", 2, 0.4),
}
"""Clock -> description, program that runs the machine, rounds, seconds per blast."""
MEMORY = 3072
"""Memory of the machine, MiB: captures of every packet stay in the page cache, so that no disk is measured."""
REPEATS = 3


def usual_clock() -> str:
    """The clock "time" where KVM works, else "instructions". Builds the machine's images: finding out boots one."""
    from lab import accel, cli, kernels

    kernel = kernels.find(KERNEL)
    cli.ensure(kernel)
    return "time" if accel.choose(kernel).name == "kvm" else "instructions"


def directory(parts: list[str]) -> Path:
    """Where a machine with these parts writes. Each group of parts has its own directory."""
    return OUT / ("goals" if set(parts) <= set(GROUPS[0]) else "others")


def in_machine(lab: Path, rounds: int, seconds: float, only: str, parts: list[str]) -> dict[str, Any]:
    """The guest's results; every part has failed when the machine wrote none."""
    out = directory(parts)
    shutil.rmtree(ROOT / out, ignore_errors=True)
    (ROOT / out).mkdir(parents=True)
    machine = ["run", "--kernel", KERNEL, "--mem", str(MEMORY), "--timeout", str(TIME_LIMIT)]
    # As in an installation: modules are compiled once, not at each start.
    python = ["env", "PYTHONPATH=.:vagrant", "PYTHONPYCACHEPREFIX=/tmp/pycache", f"BENCH_ONLY={only}", "python3"]
    words = [*python, "-m", "bench.inside", str(out), str(rounds), str(seconds), *parts]
    status = subprocess.run([sys.executable, str(lab), *machine, "--", *words], check=False).returncode
    result = ROOT / out / "guest.json"
    return with_missing(json.loads(result.read_text()) if result.exists() else {"parts": parts, "failed": {}}, status)


def in_machines(lab: Path, rounds: int, seconds: float, only: str, groups: list[list[str]], at_once: bool) -> dict[str, Any]:
    """The results of all groups as of one machine.

    Raises:
        SystemExit: No machine wrote any.
    """
    with ThreadPoolExecutor(len(groups) if at_once else 1) as threads:
        found = list(threads.map(lambda parts: in_machine(lab, rounds, seconds, only, parts), groups))
    results: dict[str, Any] = {}
    for each in reversed(found):
        results |= each
    if "machine" not in results:
        raise SystemExit("bench: the virtual machines left no results")
    results["parts"] = [part for each in found for part in each["parts"]]
    results["part_seconds"] = {part: seconds for each in found for part, seconds in each.get("part_seconds", {}).items()}
    results["failed"] = {part: why for each in found for part, why in each["failed"].items()}
    return results


def with_missing(found: dict[str, Any], status: int) -> dict[str, Any]:
    """The guest's results; its parts that neither ended nor failed are marked as failed. status: of the machine."""
    for name in found["parts"]:
        if name not in found:
            found["failed"].setdefault(name, f"the machine ended before this part did (status {status})")
    return found


def native(module: str, needs: str, *arguments: str, repeats: int = REPEATS, warm_up: int = 0) -> list[dict[str, Any]]:
    """`python -m MODULE ARGUMENTS` several times with a Python here that can import `needs`; [] without one.

    Args:
        module: The module.
        needs: Modules, with commas between.
        arguments: Its arguments.
        repeats: Number of runs.
        warm_up: Number of runs before that are not returned. The first run compiles the Python modules, which the other ones
            find, as in an installation.
    """
    with tempfile.TemporaryDirectory() as cache:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "vagrant"), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": cache, "PYTHONPYCACHEPREFIX": f"{cache}/pycache"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return _native(module, needs, arguments, environment, warm_up + repeats)[warm_up:]


def _native(module: str, needs: str, arguments: tuple[str, ...], environment: dict[str, str], runs: int) -> list[Any]:
    python, found = interpreter(needs), []
    for _ in range(runs if python else 0):
        command = [python, "-m", module, *arguments]
        done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=False)
        if done.returncode == 0:
            found.append(json.loads(done.stdout))
    return found


@cache
def interpreter(needs: str) -> str:
    """A Python of this machine that can import these modules, "" = none. needs: modules, with commas between."""
    for python in (sys.executable, "/usr/bin/python3"):
        if not subprocess.run([python, "-c", f"import {needs}"], check=False, capture_output=True).returncode:
            return python
    return ""


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: median(run[name] for run in runs) for name in runs[0]} if runs else {}


NEEDS = "bcc, click, numpy, pyroute2, rich, yaml"
"""What the tracer imports: the packages of the README, which `make bench` installs. There is no bcc but for the distribution's
Python, so the command runs with that one, and that one is measured."""


def explained() -> dict[str, Any]:
    """Packets explained natively per CPU second, by recorded scene and output format."""
    found = {}
    for path in sorted((ROOT / OUT / "goals").glob("*.k8st")):
        runs = native("bench.explain", NEEDS, str(path), repeats=1)
        if runs:
            found[path.stem] = runs[0]
    return found


def native_machine() -> str:
    """This machine: processor, number of CPUs, and the Python that explains and starts natively."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    python = interpreter(NEEDS)
    version = subprocess.run([python, "--version"], check=True, capture_output=True, text=True).stdout.strip() if python else ""
    return ", ".join(filter(None, (model, f"{os.cpu_count()} CPUs", version)))


def native_starts(kernel: Path) -> dict[str, dict[str, float]]:
    """CPU seconds of native starts with the lab's kernel: each one compiles, or finds kept programs. {} = no Python has bcc."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, place in (("native", "off"), ("native, warm", cache)):
            os.environ["K8SNET_TRACE_CACHE"] = place
            found[name] = medians(native("bench.startup", NEEDS, "", str(kernel), warm_up=1))
    return found


def main() -> int:
    options = argparse.ArgumentParser(description="Benchmarks of k8snet-trace, in virtual machines.")
    options.add_argument("--clock", choices=sorted(CLOCKS))
    options.add_argument("--rounds", type=int, help="rounds of throughput (instructions: 2, time: 5)")
    options.add_argument("--seconds", type=float, help="guest time measured per blast (instructions: 0.4, time: 3)")
    options.add_argument("--only", default="", help="throughput, variants, beside: only tools with these words in their name")
    options.add_argument("parts", nargs="*", metavar="PART", help="see above (all)")
    given = options.parse_args()
    if unknown := set(given.parts) - set(sum(GROUPS, ())):
        options.error(f"no such part: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    clock = given.clock or usual_clock()
    words, lab, rounds, seconds = CLOCKS[clock]
    groups = [[part for part in group if part in (given.parts or group)] for group in GROUPS]
    at_once = clock == "instructions" and (os.cpu_count() or 1) > 1
    results = in_machines(
        lab, given.rounds or rounds, given.seconds or seconds, given.only, [group for group in groups if group], at_once
    )
    results["clock"] = f"{clock} ({words})"
    if "kernel" in results:
        results["starts"] = results.get("starts", {}) | native_starts(OUT / "goals/kernel")
    if "drain" in results:
        results["drain"]["native"] = medians(native("bench.drain", "numpy", str(OUT / "others/events.npy")))
    if "scenes" in results:
        results["explain"] = explained()
        if not results["explain"]:
            results["failed"]["explain"] = "no replay of a scene succeeded: see the messages before"
    results["native"] = native_machine()
    results["wall_seconds"] = time.monotonic() - began
    (ROOT / OUT / "results.json").write_text(json.dumps(results, indent=1))
    print(report.text(results))
    if not given.only and set(GROUPS[0]) <= set(results["parts"]):
        figures.write(results)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
