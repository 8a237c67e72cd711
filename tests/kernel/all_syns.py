# SPDX-License-Identifier: Apache-2.0
"""Makes every cause of a SYN's end for real and checks the reported cause; in the lab, as root:
`python3 tests/kernel/all_syns.py`.

The last line is causes=… syns=… explained=… differences=…: causes that were made and reported, SYNs that were seen, SYNs with
the right cause, and all differences: from what was made, from the kernel's counters, from tcpdump. The exit status is 0 when
nothing differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import scene  # noqa: E402
from tests.kernel import modules, syn_runs  # noqa: E402
from tests.kernel.syn_scenes import SCENES, Scene  # noqa: E402
from tests.kernel.watching import NOTHING, Watch  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402

TRIES = 3


def settled(watch: Watch, each: Scene) -> syn_runs.Result:
    """A scene's result. A scene with lost events is repeated, because it proves nothing about what was not found."""
    for _ in range(TRIES):
        result = syn_runs.run(watch, each)
        if not result.errors or not result.lost:
            break
    return result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", default=os.environ.get("K8SNET_ATTACH", "auto"), choices=("auto", "kprobe"))
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="scenes with these words in their name, separated by commas"
    )
    options = parser.parse_args()
    modules.load(modules.RANDOM_RULES)
    modules.load(modules.INCIDENTS)
    results = []
    with scene.scene(), ExitStack() as stack:
        kernel = Kernel.running()  # after the scene: the modules that its rules need are loaded, as on a node
        watch = Watch(kernel, stack.enter_context(Session(kernel, NOTHING, only=options.attach)))
        for each in SCENES:
            if any(words in each.name for words in options.only.split(",")):
                results.append(settled(watch, each))
                print(results[-1].text, flush=True)
    causes = {r.scene.cause for r in results if r.causes[r.scene.cause]}
    syns, explained = sum(len(r.verdicts) for r in results), sum(r.explained for r in results)
    differences = sum(r.errors for r in results)
    print(f"causes={len(causes)} syns={syns} explained={explained} differences={differences}")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
