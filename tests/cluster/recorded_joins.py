# SPDX-License-Identifier: Apache-2.0
"""The captures that a run wrote, read again as one: their packets have to be joined as the wire carried them, too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.wire import WireFrame
from tests.cluster import join_truth
from tests.cluster.join_truth import JoinCount

READ_SECONDS = 300.0
"""Limit for reading the captures, s."""
LEAST_SHARE = 0.9
"""Share of the live joins that has to be found in the captures: pings after the run could have told more about the clocks."""


def read(captures: Sequence[Path]) -> tuple[JoinCount, str]:
    """The joins in captures of several nodes, and a problem; "" = none."""
    words = [word for path in captures for word in ("-r", str(path))]
    command = [sys.executable, "-m", "tracer", *words, "-o", "json"]
    done = subprocess.run(command, capture_output=True, timeout=READ_SECONDS)
    found = join_truth.count(map(json.loads, done.stdout.splitlines()))
    problem = f"reading the captures ended with status {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
    return found, problem if done.returncode else ""


def compare(captures: Sequence[Path], live: JoinCount, log: Sequence[WireFrame]) -> tuple[JoinCount, list[str]]:
    """The joins in the captures, and what is wrong: a join that the wire contradicts, or far fewer than live."""
    found, problem = read(captures)
    join_truth.compare(found, log)
    differences = [problem] if problem else []
    if sum(found.joined.values()) < LEAST_SHARE * sum(live.joined.values()):
        differences.append(f"captures: {sum(found.joined.values())} joined, live {sum(live.joined.values())}")
    return found, differences
