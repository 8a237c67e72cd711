# SPDX-License-Identifier: Apache-2.0
"""The agent with a run that has no kernel, finds something at its beginning and at its end, and ends by a signal.

    python -m tests.support.endless_agent finding|finding_again OPTIONS-OF-AGENT

The first word is the call of the outputs with which the finding comes at the end.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.support.sample_findings import FOUND
from tracer.cli.main import main
from tracer.commands import trace as tracing
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopSignals


def trace(cmd: Any, outputs: Any, notes: Any, view: Any, end_seconds: float, **arguments: Any) -> int:
    stop = StopSignals(end_seconds)
    with view as output:
        output.begin([], "")
        output.finding(FOUND)
        while not stop.is_requested:
            time.sleep(0.01)
            output.end_batch(time.monotonic_ns())
        getattr(output, sys.argv[1])(FOUND)
        output.summary(RunSummary())
    return 0


if __name__ == "__main__":
    tracing.trace = trace  # type: ignore[assignment]
    main(["agent", "--metrics", "127.0.0.1:0", *sys.argv[2:]])
