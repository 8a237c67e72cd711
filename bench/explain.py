# SPDX-License-Identifier: Apache-2.0
"""Packets explained per CPU second: a recorded scene, multiplied, is replayed with rules and owners; the output is discarded.

    python3 -m bench.explain CAPTURE [EVENTS]       prints one line of JSON

Each output format is measured in a separate process. Only the replay counts, not the imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import capture

FORMATS = ("text", "oneline", "json")
"""Output formats that are measured: those that a user chooses. `auto` is text or oneline."""
EVENTS = 300_000
"""Number of events in the multiplied capture, by default."""


def measure(source: Path, events: int = EVENTS) -> dict[str, Any]:
    """Packets per CPU second by output format."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        many = Path(scratch) / "many.k8st"
        capture.record(source, many, events)
        for form in FORMATS:
            words = [str(source), "--keep", str(many), "--step", form]
            ran = subprocess.run([sys.executable, "-m", "bench.capture", *words], stdout=subprocess.PIPE, check=True)
            step = json.loads(ran.stdout)
            found[form] = {
                "packets": step["packets"], "events": step["events"], "cpu": step["replay_cpu"],
                "rate": step["packets"] / step["replay_cpu"], "first_of_kind": step["first_of_kind"],
            }  # fmt: skip
    return found


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), *map(int, sys.argv[2:3]))))
