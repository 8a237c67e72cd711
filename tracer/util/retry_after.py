# SPDX-License-Identifier: Apache-2.0
"""The header Retry-After of HTTP."""

from __future__ import annotations


def retry_seconds(text: str) -> int:
    """The number of seconds in the header; 0 = there is none, or it is a date or no number. The caller limits it."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
