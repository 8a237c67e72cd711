# SPDX-License-Identifier: Apache-2.0
"""The log that `--debug` writes to stderr: what threads do, how long it takes, and tracebacks of unexpected errors.

Modules log with `logging.getLogger(__name__)`. Without `--debug` nothing is written.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from tracer.util.escape import escaped_line

ROOT = "tracer"
"""The logger of this package; those of libraries are not shown."""


class EscapedFormatter(logging.Formatter):
    """Formats a record in lines without control characters: messages contain texts of others."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(escaped_line, super().format(record).split("\n")))


def enable(stream: TextIO | None = None) -> None:
    """Writes all records to a stream from now on. stream: None = stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(EscapedFormatter("%(asctime)s.%(msecs)03d %(threadName)s %(name)s: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
