# SPDX-License-Identifier: Apache-2.0
"""Records the demonstration and all incidents with each kernel filter that options can produce; in the lab, as root.

    python3 tests/kernel/all_options.py DIRECTORY [--attach auto,kprobe] [--backends legacy] [--only WORDS] [--sides WORDS]

tests/support/options_check.py reads the recordings under all options, outside of the machine: an emulated machine takes twenty
times as long to explain a packet. A case is built once and recorded on its sides one after another. For NAME there are
NAME.k8st, the printed output, and NAME.about, which names the case and is written when the recording is complete.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

import incidents  # noqa: E402
from incidents.objects import Object  # noqa: E402
from scenes import nfnetlink, scene  # noqa: E402
from scenes.rules import Backend  # noqa: E402
from tests.kernel import modules, option_runs  # noqa: E402
from tests.kernel.recorder import Recorder  # noqa: E402
from tests.kernel.watching import NOTHING  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402
from tracer.rules.iptables import sockopt  # noqa: E402

TRIES = 3
_texts: dict[tuple[int, str, str], str | None] = {}
"""The output of iptables-save for the case that is up."""
_save = sockopt.save


def saved_once(family: str, table: str, watch: object = None) -> str | None:
    """Replaces sockopt.save: a case has the same rules on all its sides, and iptables-save takes a second here. Its output is
    compared with the kernel's own rules each time (tracer/rules/iptables/save_join.py)."""
    key = Path("/proc/thread-self/ns/net").stat().st_ino, family, table
    if key not in _texts:
        _texts[key] = _save(family, table)
    return _texts[key]


BACK_ENDS: tuple[Backend, ...] = ("legacy", "nft")


def record_case(recorder: Recorder, attach: str, case: option_runs.Case, sides: list[option_runs.Options]) -> None:
    """Records a case on these sides. The case is built once, and again after lost events, which leave findings unproven."""
    objects: list[Object] | None = None
    for side in sides:
        if side.by_service and objects is not None and not objects:
            continue
        name = f"{attach} {case.name} {side.name}".replace(" ", "-")
        if (recorder.directory / f"{name}.about").exists():
            continue
        for _ in range(TRIES):
            began = time.monotonic()
            new = objects is None
            if objects is None:
                _texts.clear()
                objects = case.up()
            else:
                nfnetlink.conntrack_flush()
            try:
                totals = option_runs.record(recorder, case, side, objects, name).summary
            except OSError:  # some traffic cannot be made twice on one scene
                if new:
                    raise
                objects = None
                continue
            print(f"{time.monotonic() - began:5.1f} s  {name}: {totals.events} events, {totals.lost} lost", flush=True)
            if not totals.lost:
                break
            objects = None
        about = {"attach": attach, "case": case.name, "side": side.name}
        (recorder.directory / f"{name}.about").write_text(json.dumps(about))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--attach", default="auto,kprobe", help="ways to attach, separated by commas")
    parser.add_argument("--backends", default="legacy", help="of iptables, separated by commas")
    parser.add_argument("--only", default="", metavar="WORDS", help="cases with one of these, separated by commas")
    parser.add_argument("--sides", default="", metavar="WORDS", help="sides with these words in their name")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    modules.load(modules.RANDOM_RULES)
    modules.load(modules.INCIDENTS)
    kernel, failed = Kernel.running(), 0
    sockopt.save = saved_once
    try:
        for attach in arguments.attach.split(","):
            with scene.scene(), Session(kernel, NOTHING, only=attach) as session:
                print(f"{attach}: probes compiled in {session.compile_seconds:.0f} s", flush=True)
                recorder = Recorder(kernel, session, arguments.directory)
                cases = [c for b in BACK_ENDS if b in arguments.backends.split(",") for c in option_runs.cases(b)]
                for case in (c for c in cases if any(words in c.name for words in arguments.only.split(","))):
                    try:
                        record_case(recorder, attach, case, [s for s in option_runs.SIDES if arguments.sides in s.name])
                    except (OSError, subprocess.SubprocessError) as e:
                        failed += 1
                        print(f"{attach} {case.name}: not recorded: {e}", flush=True)
    finally:
        incidents.down()
        for path in arguments.directory.iterdir():
            path.chmod(0o644)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
