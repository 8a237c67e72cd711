"""Replays recorded runs here, without root, and compares with what was printed when they were recorded.

    python -m tests.replay_check DIRECTORY

Captures come from tests/kernel/record_all.py. As root, the replays run as user nobody. The last line is captures=…
differences=…; the exit status is 1 when there is a difference, or no capture.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOBODY = 65534
SHOWN, WIDTH = 12, 160


def python() -> str:
    """A Python that a user who may nothing can run: this one, or that of K8SNET_PYTHON. SystemExit when there is none."""
    for found in (os.environ.get("K8SNET_PYTHON"), sys.executable):
        if found:
            with suppress(OSError):
                if as_nobody([found, "-c", "import click, numpy, rich"]).returncode == 0:
                    return found
    raise SystemExit(f"User nobody cannot run {sys.executable}: name another Python with K8SNET_PYTHON.")


def as_nobody(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """A command of a user without rights, in another time zone; as whoever this is when that is not root."""
    who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"], "TZ": "Pacific/Apia"}
    return subprocess.run(command, capture_output=True, env=environment, cwd="/", check=False, **who)


def differences(capture: Path, python: str) -> list[str]:
    """What is not as it was printed: some lines of it."""
    found = []
    for form in ("text", "json"):
        done = as_nobody([python, "-m", "tracer", "-r", str(capture), "-o", form])
        before = capture.with_suffix(f".{form}").read_bytes()
        # Live, what is said beside the results went to the same file: a text begins with it.
        now = done.stderr + done.stdout if form == "text" else done.stdout
        if done.returncode or now != before:
            old, new = before.decode(errors="replace").splitlines(), now.decode(errors="replace").splitlines()
            lines = list(difflib.unified_diff(old, new, "live", "replay", "", "", 1))[:SHOWN]
            found += [f"{form}, status {done.returncode}:", *(line[:WIDTH].rstrip() for line in lines)]
    return found


def main() -> int:
    captures = sorted(Path(sys.argv[1]).glob("*.k8st"))
    wrong, runs = 0, python()
    for capture in captures:
        told = differences(capture, runs)
        wrong += bool(told)
        print(f"{capture.stem}: {'differs' if told else 'the same'}", *told, sep="\n    ", flush=True)
    print(f"captures={len(captures)} differences={wrong}")
    return int(bool(wrong) or not captures)


if __name__ == "__main__":
    sys.exit(main())
