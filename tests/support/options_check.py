# SPDX-License-Identifier: Apache-2.0
"""Reads recordings of the demonstration and of all incidents with every option that changes the output.

    python -m tests.support.options_check DIRECTORY [--options WORDS]

tests/kernel/all_options.py makes the recordings. Each run must have the finding of its case and no other, and no packet without
addresses. The last line is runs=... wrong=... lost=... (lost: runs in which events were lost); the exit status is 0 when
nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0:0] = [str(ROOT / "vagrant")]

from scenes.rules import Backend  # noqa: E402
from tests.kernel import option_runs  # noqa: E402
from tests.kernel.option_runs import Options, Result  # noqa: E402

BACK_ENDS: tuple[Backend, ...] = ("legacy", "nft")
CASES = {case.name: case for backend in BACK_ENDS for case in option_runs.cases(backend)}
LIVE = Options("drops-only, live", drops=True)
READ_AS_DROPS = Options("record, -r --drops-only", drops=True)
READINGS: dict[str, tuple[Options, ...]] = {
    "all": (Options("record"), Options("no-rules", no_rules=True), Options("follow", follow=True), READ_AS_DROPS),
    "drops": (LIVE, Options("drops-only", drops=True), Options("drops-only follow", drops=True, follow=True),
              Options("drops-only no-rules", drops=True, no_rules=True)),
    "service": (Options("service", by_service=True), Options("service follow", by_service=True, follow=True)),
    "drops-service": (Options("drops-only service", drops=True, by_service=True),),
}  # fmt: skip
"""By the recorded side. Text and JSON are written for each."""


def results(about: Path, words: str) -> Iterator[Result]:
    """The results of one recording, with each option that applies to it."""
    recorded = json.loads(about.read_text())
    case, files = CASES[recorded["case"]], [about.with_suffix(".k8st")]
    for options in READINGS[recorded["side"]]:
        if words in options.name:
            result = option_runs.read(files, case, options, drops=options is READ_AS_DROPS)
            if options is LIVE:
                result.wrong += _live_differences(result, about)
            yield result


def _live_differences(result: Result, about: Path) -> Iterator[str]:
    """The differences between the live output and the output of this reading."""
    yield from option_runs.differing(about.with_suffix(".text").read_text(), result.text)
    lines = [json.loads(line) for line in about.with_suffix(".json").read_text().splitlines()]
    # Names only: the text of a finding's cause may change when further packets show it.
    live = {line["name"] for line in lines if line["type"] == "finding"}
    read = {finding.name for finding in result.findings}
    if live != read:
        yield f"the live run had the findings {sorted(live)}, the reading has {sorted(read)}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--options", default="", metavar="WORDS", help="only options with these words in their name")
    parser.add_argument("--show", action="store_true", help="also print the output of each run")
    given = parser.parse_args()
    found = []
    for about in sorted(given.directory.glob("*.about")):
        for result in results(about, given.options):
            found.append(result)
            print(f"{about.stem}: {result.line}", flush=True)
            if given.show or result.wrong:
                print(*(f"    {line}" for line in result.text.splitlines()), sep="\n", flush=True)
    wrong, lost = sum(bool(r.wrong) for r in found), sum(bool(r.summary.lost) for r in found)
    print(f"runs={len(found)} wrong={wrong} lost={lost}")
    return int(bool(wrong) or not found)


if __name__ == "__main__":
    sys.exit(main())
