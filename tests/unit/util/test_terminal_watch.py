# SPDX-License-Identifier: Apache-2.0
"""A terminal that was closed is noticed without reading or writing."""

from __future__ import annotations

import os

from tracer.util.terminal_watch import TerminalWatch


def test_a_terminal_is_closed_when_its_other_end_is() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as stream:
        watch = TerminalWatch(stream)
        assert not watch.is_closed
        os.write(ours, b"typed\n")
        assert not watch.is_closed
        os.close(ours)
        assert watch.is_closed and watch.is_closed


def test_a_stream_that_is_no_terminal_is_never_closed() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream:
        watch = TerminalWatch(stream)
        os.close(writing)
        assert not watch.is_closed
    assert not TerminalWatch(None).is_closed and not TerminalWatch(stream).is_closed
