# SPDX-License-Identifier: Apache-2.0
"""Replays recorded runs here, without root, and compares the output with the output at the time of the recording.

    python -m tests.support.replay_check DIRECTORY

tests/kernel/record_all.py makes the captures; user nobody reads them (tests/support/nobody.py). The last line is captures=…
differences=…; the exit status is 1 when there is a difference, or no capture.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from tests.support.nobody import Nobody

SHOWN, WIDTH = 12, 160


def differences(capture: Path, nobody: Nobody) -> list[str]:
    """The first lines of each difference between the replay and the recorded output."""
    found = []
    for form in ("text", "json"):
        done = nobody.read(capture, "-o", form)
        for what, now in ((form, done.stdout), *((("messages", done.stderr),) if form == "text" else ())):
            before = capture.with_suffix(f".{what}").read_bytes()
            if done.returncode or now != before:
                old, new = before.decode(errors="replace").splitlines(), now.decode(errors="replace").splitlines()
                lines = list(difflib.unified_diff(old, new, "live", "replay", "", "", 1))[:SHOWN]
                found += [f"{what}, status {done.returncode}:", *(line[:WIDTH].rstrip() for line in lines)]
    return found


def main() -> int:
    captures = sorted(Path(sys.argv[1]).glob("*.k8st"))
    wrong = 0
    with Nobody() as nobody:
        print(f"read by {nobody.description}", flush=True)
        for capture in captures:
            found = differences(capture, nobody)
            wrong += bool(found)
            print(f"{capture.stem}: {'differs' if found else 'the same'}", *found, sep="\n    ", flush=True)
    print(f"captures={len(captures)} differences={wrong}")
    return int(bool(wrong) or not captures)


if __name__ == "__main__":
    sys.exit(main())
