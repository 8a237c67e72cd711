# SPDX-License-Identifier: Apache-2.0
"""The captures that a run wrote, read again as one: packets have to be joined, and called lost, as the wire carried them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.wire import WireFrame
from tests.cluster import join_truth, loss_truth
from tests.cluster.join_truth import JoinCount
from tests.cluster.loss_truth import LossCount
from tests.cluster.wire_truth import Line

READ_SECONDS = 300.0
"""Limit for reading the captures, s."""
LEAST_SHARE = 0.9
"""Share of the live joins that has to be found in the captures: pings after the run could have told more about the clocks."""


def read(captures: Sequence[Path]) -> tuple[list[Line], str]:
    """The lines of captures of several nodes, and a problem; "" = none."""
    words = [word for path in captures for word in ("-r", str(path))]
    command = [sys.executable, "-m", "tracer", *words, "-o", "json"]
    done = subprocess.run(command, capture_output=True, timeout=READ_SECONDS)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    problem = f"reading the captures ended with status {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
    return found, problem if done.returncode else ""


def compare(captures: Sequence[Path], live: JoinCount, log: Sequence[WireFrame]) -> tuple[JoinCount, LossCount, list[str]]:
    """The joins in the captures, what is called lost, and what is wrong: what the wire contradicts, or far fewer joins."""
    lines, problem = read(captures)
    found, losses = join_truth.count(lines), loss_truth.compare(lines, log)
    join_truth.compare(found, log)
    found.wrong += losses.wrong
    differences = [problem] if problem else []
    if sum(found.joined.values()) < LEAST_SHARE * sum(live.joined.values()):
        differences.append(f"captures: {sum(found.joined.values())} joined, live {sum(live.joined.values())}")
    return found, losses, differences
