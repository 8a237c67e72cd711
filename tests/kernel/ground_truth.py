# SPDX-License-Identifier: Apache-2.0
"""Compares rule traces of random packets through random rules with the kernel's own trace; in the lab, as root:

    python3 tests/kernel/ground_truth.py --backend legacy --packets 300

The last line is packets=… rules=… mismatches=…, for legacy with more counts between. The exit status is 0 when there is no
mismatch and as many packets were compared as requested.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "vagrant")]

from scenes.topology import Node  # noqa: E402
from tests.kernel.truth.run import NOTHING, rounds  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="legacy", help="a module of tests/kernel/truth")
    parser.add_argument("--packets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=75, help="legacy: number of packets through one set of rules")
    parser.add_argument("--fragments", action="store_true", help="legacy: the raw table sees fragments as they arrive")
    parser.add_argument("--attach", default="auto", choices=("auto", "kprobe"))
    options = parser.parse_args()
    if options.fragments:
        for name in ("iptable_raw", "ip6table_raw"):
            subprocess.run(["modprobe", name, "raw_before_defrag=1"], check=True)
    module = import_module(f"tests.kernel.truth.{options.backend}")
    if hasattr(module, "run"):
        seen, rules, mismatches = module.run(options.packets, options.seed)
        print(f"packets={seen} rules={rules} mismatches={mismatches}")
        return 1 if mismatches or not rules or seen < options.packets else 0
    with Node(), module.Truth(odd=True) as truth:
        truth.prepare()
        with Session(Kernel.running(), NOTHING, only=options.attach) as session:
            result = rounds(truth, session, options.packets, options.seed, options.each)
    for why, times in result.undecided.most_common():
        print(f"undecided {times} times: {why}")
    print(result)
    return 1 if result.mismatches or not result.rules or result.packets < options.packets else 0


if __name__ == "__main__":
    sys.exit(main())
