# SPDX-License-Identifier: Apache-2.0
"""The demonstration and all incidents under every option that changes what is written; in the lab, as root.

    python3 tests/kernel/all_options.py [--attach auto,kprobe] [--backends legacy] [--only WORDS] [--options WORDS]

Each run has the finding that belongs to it and no other, no packet without addresses, and is printed again from its capture.
The last line is runs=... wrong=... lost=... (runs in which events were lost); the exit status is 0 when nothing is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

import incidents  # noqa: E402
from scenes import scene  # noqa: E402
from scenes.rules import Backend  # noqa: E402
from tests.kernel import modules, option_runs  # noqa: E402
from tests.kernel.recorder import Recorder  # noqa: E402
from tests.kernel.watching import NOTHING  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402

TRIES = 3
BACK_ENDS: tuple[Backend, ...] = ("legacy", "nft")


def settled(recorder: Recorder, case: option_runs.Case, options: option_runs.Options) -> option_runs.Result:
    """A run's result; tried again where events were lost, for those prove nothing about what was not found."""
    for _ in range(TRIES):
        result = option_runs.run(recorder, case, options)
        if not (result.wrong and result.totals.lost):
            break
    return result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", default="auto,kprobe", help="ways to attach, separated by commas")
    parser.add_argument("--backends", default="legacy", help="of iptables, separated by commas")
    parser.add_argument("--only", default="", metavar="WORDS", help="cases whose name has these words in it")
    parser.add_argument("--options", default="", metavar="WORDS", help="options whose name has these words in it")
    parser.add_argument("--show", action="store_true", help="print what each run printed, too")
    given = parser.parse_args()
    modules.load(modules.RANDOM_RULES)
    modules.load(modules.INCIDENTS)
    kernel, results = Kernel.running(), []
    try:
        for attach in given.attach.split(","):
            with scene.scene(), tempfile.TemporaryDirectory() as directory, Session(kernel, NOTHING, only=attach) as session:
                recorder = Recorder(kernel, session, Path(directory))
                cases = [c for b in BACK_ENDS if b in given.backends.split(",") for c in option_runs.cases(b)]
                for case in (c for c in cases if given.only in c.name):
                    for options in (o for o in option_runs.OPTIONS if given.options in o.name):
                        began = time.monotonic()
                        results.append(settled(recorder, case, options))
                        took = f"{attach} {time.monotonic() - began:4.1f} s"
                        print(f"{took}  {results[-1].line}", flush=True)
                        if given.show or results[-1].wrong:
                            print(*(f"    {line}" for line in results[-1].text.splitlines()), sep="\n", flush=True)
    finally:
        incidents.down()
    wrong, lost = sum(bool(r.wrong) for r in results), sum(bool(r.totals.lost) for r in results)
    print(f"runs={len(results)} wrong={wrong} lost={lost}")
    return int(bool(wrong) or not results)


if __name__ == "__main__":
    sys.exit(main())
