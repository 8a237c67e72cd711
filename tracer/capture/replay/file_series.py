# SPDX-License-Identifier: Apache-2.0
"""Reads the consecutive files of one run as one capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tracer.capture.format.migrations import RecordRow
from tracer.capture.record.capture_files import REPEATED
from tracer.capture.replay.capture_reader import BatchChunk, BatchSpan, CaptureReader
from tracer.errors import BadOption


class FileSeries(CaptureReader):
    """Several files, in the order of their batches. Records that a later file repeats are skipped.

    Raises CaptureUnreadable, NewerCapture; BadOption for files of different runs.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        with ExitStack() as stack:
            found = [stack.enter_context(CaptureReader(path)) for path in paths]
            firsts = [next(capture.chunks(), None) for capture in found]
            pairs = sorted(((b.first_batch if b else 0, n) for n, b in enumerate(firsts)))
            self._files = [(first_batch, found[n]) for first_batch, n in pairs]
            self._stack = stack.pop_all()
        first = self._files[0][1]
        self.path = first.path if len(found) == 1 else f"{first.path} and {len(found) - 1} more"
        self.meta, self.layout, self.version = first.meta, first.layout, first.version
        if any(c.meta.get("clock") != first.meta.get("clock") or c.meta["layout"] != first.meta["layout"] for c in found):
            self.close()
            raise BadOption(f"{', '.join(paths)} are not of one run: read them one by one.")
        for capture in found:
            capture.missed = 0

    @property
    def missed(self) -> int:
        return sum(capture.missed for _, capture in self._files)

    @missed.setter
    def missed(self, count: int) -> None:
        self._files[0][1].missed += count - self.missed

    def records(self, repeated: bool = False) -> Iterator[RecordRow]:
        for number, (first_batch, capture) in enumerate(self._files):
            # Older files do not have the number of repeated records: all records before their first batch count as repeated.
            has_count = REPEATED in capture.meta
            yield from (row for row in capture.records(not number) if not number or has_count or row[0] >= first_batch)

    def chunks(self) -> Iterator[BatchChunk]:
        for _, capture in self._files:
            yield from capture.chunks()

    def batch_spans(self) -> Iterator[BatchSpan]:
        for _, capture in self._files:
            yield from capture.batch_spans()

    def spans(self) -> list[tuple[int, int, int]]:
        return [span for _, capture in self._files for span in capture.spans()]

    def ended(self) -> tuple[float, int] | None:
        return self._files[-1][1].ended()

    def clock(self) -> tuple[int, int] | None:
        return next((found for _, capture in reversed(self._files) if (found := capture.clock())), None)

    def close(self) -> None:
        self._stack.close()


def opened(paths: Sequence[str]) -> CaptureReader:
    """One capture, of one file or of several."""
    return CaptureReader(paths[0]) if len(paths) == 1 else FileSeries(paths)
