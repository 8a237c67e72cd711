# SPDX-License-Identifier: Apache-2.0
"""What the probes of this process do not write at the moment, because it was over its budget."""

from __future__ import annotations


class ReadingLimit:
    """One sentence, which the keeper of the budget writes.

    Attributes:
        text: What is not written, and why; "" = everything is written.
    """

    def __init__(self) -> None:
        self.text = ""


reading_limit = ReadingLimit()
"""The limit of this process."""
