# SPDX-License-Identifier: Apache-2.0
"""The error of a stream that does not follow the protocol."""

from __future__ import annotations


class MalformedFrame(ValueError):
    """A frame cannot be read. `str()` is a clause that says what is wrong; the stream cannot be read any further."""
