# SPDX-License-Identifier: Apache-2.0
"""The command `agent`: a run whose results go to a client as frames. Imported only when it runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from tracer import __version__
from tracer.agent.agent_output import AgentOutput
from tracer.agent.frame_queue import FrameQueue
from tracer.agent.stream import AgentStream
from tracer.commands.start_notes import StartNotes
from tracer.errors import ClientGone, Interrupted, TraceError
from tracer.node.identity import boot_id, node_name
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.messages import Hello
from tracer.util.status_line import StatusLine


class AgentNotes(StartNotes):
    """The notes of an agent's start: warnings are results, and phases are not said. output: where warnings go."""

    def __init__(self, output: AgentOutput) -> None:
        super().__init__(StatusLine(is_wanted=False))
        self._output = output

    def report(self, phase: str, detail: Callable[[], str] | None = None) -> None:
        return

    def warn(self, sentence: str) -> None:
        self._output.note(sentence)

    def ready(self) -> None:
        self.close()


def run(captures: Sequence[str], needs_all_results: bool, options: dict[str, Any]) -> int:
    """Runs an agent on standard input and output. Returns the exit status.

    Args:
        captures: Captures to explain; empty = this machine is traced.
        needs_all_results: The client needs all results of `doctor`.
        options: Those of `trace`.

    Raises:
        ClientGone: The client is gone, or was silent for too long.
        TraceError: The run is impossible.
    """
    target = _own_stdout()
    queue = FrameQueue(waits=bool(captures))
    output = AgentOutput(queue, needs_all_results, options["verbose"])
    stream = AgentStream(queue, _hello(bool(captures)), sys.stdin.fileno(), target)
    status = 1
    try:
        status = _replay(captures, output, stream, options) if captures else _trace(output, queue, stream, options)
    except TraceError as e:
        status = e.status
        if not (stream.has_lost_client and isinstance(e, Interrupted)):
            raise
    finally:
        stream.close(status)
    if stream.problem:
        raise ClientGone(f"The probes are off: {stream.problem}.")
    return ClientGone.status if stream.has_lost_client else status


def _trace(output: AgentOutput, queue: FrameQueue, stream: AgentStream, options: dict[str, Any]) -> int:
    """Traces this machine."""
    from tracer.agent.streamed_capture import StreamedCapture
    from tracer.commands import trace as tracing

    def drive(complete: Callable[[], int], stop: StopRequest) -> int:
        stream.attach(stop)
        return complete()

    capture = StreamedCapture(queue) if options["target"] else None
    view = nullcontext(output)
    with AgentNotes(output) as notes:
        return tracing.trace((), outputs=(), notes=notes, view=view, drive=drive, capture=capture, **options)


def _replay(captures: Sequence[str], output: AgentOutput, stream: AgentStream, options: dict[str, Any]) -> int:
    """Explains captures."""
    from tracer.commands import read
    from tracer.pipeline.shutdown import reading

    with reading(captures) as stop:
        stream.attach(stop)
        return read.replayed(captures, read.replay_request(options), output, stop)


def _hello(is_replay: bool) -> Hello:
    system = os.uname()
    return Hello(
        program=__version__,
        node=node_name(),
        kernel=system.release,
        boot=boot_id(),
        monotonic=time.monotonic_ns(),
        wall=time.time_ns(),
        is_replay=is_replay,
    )


def _own_stdout() -> int:
    """A descriptor of standard output for frames alone: what else is printed goes to standard error."""
    sys.stdout.flush()
    target = os.dup(1)
    os.dup2(2, 1)
    return target
