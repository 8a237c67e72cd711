# SPDX-License-Identifier: Apache-2.0
"""Traces and audits all incidents, their healthy twins, ten variations of each, and situations of each mode of kube-proxy;
in the lab, as root: `python3 tests/kernel/all_incidents.py`.

The last line is incidents=… found=… false=…: the expected findings, the expected findings that were found, and findings that
were not expected. The exit status is 0 when all expected findings were found and none is false.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

import incidents  # noqa: E402
from incidents import service_situations, situations, variations  # noqa: E402
from scenes import scene  # noqa: E402
from tests.kernel import incident_runs, modules  # noqa: E402
from tests.kernel.incident_runs import Result  # noqa: E402
from tests.kernel.watching import NOTHING, Watch  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402

TRIES = 3
Run = Callable[[], tuple[Result, ...]]


def settled(watch: Watch, run: Callable[[], tuple[Result, ...]]) -> tuple[Result, ...]:
    """A run's results. A run with lost events is repeated, because it proves nothing about what was not found."""
    for _ in range(TRIES):
        watch.lost = 0
        results = run()
        if not watch.lost or all((r.right, r.false) == (r.expected, 0) for r in results):
            break
    return results


def selected(options: argparse.Namespace) -> list[incidents.Incident]:
    return [i for i in incidents.every() if not options.only or str(i.number) in options.only.split(",")]


def recorded(watch: Watch, options: argparse.Namespace) -> Iterator[Run]:
    """Each state of each incident, with the recorded rules, in each back end."""
    for backend in options.backends.split(",") if options.backends else ():
        for incident in selected(options):
            for state in incident.states_in(backend):
                yield partial(_one, incident_runs.run, watch, incident, state, backend)


def varied(watch: Watch, options: argparse.Namespace) -> Iterator[Run]:
    for incident in selected(options):
        for variation in variations.variations(incident.number, options.seed, options.variations):
            yield partial(_one, incident_runs.vary, watch, variation)


def in_modes(watch: Watch, options: argparse.Namespace) -> Iterator[Run]:
    """Each situation in each mode of kube-proxy."""
    for situation in (*situations.every(), *service_situations.every()):
        if not options.only or any(words in situation.text for words in options.only.split(",")):
            yield partial(incident_runs.situate, watch, situation)


def _one(run: Callable[..., Result], *arguments: Any) -> tuple[Result, ...]:
    return (run(*arguments),)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", default=os.environ.get("K8SNET_ATTACH", "auto"), choices=("auto", "kprobe"))
    parser.add_argument("--backends", default="legacy,nft", help="of iptables, separated by commas")
    only = "of these incidents, or words of situations, separated by commas"
    parser.add_argument("--only", default="", metavar="NUMBERS", help=only)
    parser.add_argument("--variations", type=int, default=10, metavar="N", help="of each incident")
    parser.add_argument("--seed", type=int, default=1, help="of the variations")
    options = parser.parse_args()
    modules.load(modules.RANDOM_RULES)
    modules.load(modules.INCIDENTS)
    kernel = Kernel.running()
    results: list[Result] = []
    try:
        with scene.scene(), Session(kernel, NOTHING, only=options.attach) as session:
            watch = Watch(kernel, session)
            for run in (*recorded(watch, options), *varied(watch, options), *in_modes(watch, options)):
                began = time.monotonic()
                for result in settled(watch, run):
                    results.append(result)
                    print(f"{time.monotonic() - began:4.1f} s  {result.text}", flush=True)
    finally:
        incidents.down()
    expected, found, false = (sum(values) for values in zip(*((r.expected, r.right, r.false) for r in results), strict=True))
    print(f"incidents={expected} found={found} false={false}")
    return int(found != expected or bool(false))


if __name__ == "__main__":
    sys.exit(main())
