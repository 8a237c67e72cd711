# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz [--cases N] [--seconds S] [--seed N] [--only files|objects]`: hostile captures and objects.

The last line is cases=… crashes=… hangs=… too-large=…; the exit status is 1 when one of the last three is not 0, or when fewer
cases than requested ran. Case N runs again with --first N --cases 1.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.fuzz.cases import run


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0, help="end after this time, even with fewer cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=["files", "objects"], default="")
    given = parser.parse_args()
    found = run(given.first, given.cases, given.seconds, given.seed, min(given.workers, given.cases), given.only)
    print(f"cases={found['cases']} crashes={found['crash']} hangs={found['hang']} too-large={found['too-large']}")
    ended_early = not given.seconds and found["cases"] < given.cases
    return int(bool(ended_early or found["crash"] or found["hang"] or found["too-large"]))


if __name__ == "__main__":
    sys.exit(main())
