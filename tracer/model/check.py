# SPDX-License-Identifier: Apache-2.0
"""What is known about the machine before anything is attached to it, and where to look for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "degraded", "missing"]


@dataclass(frozen=True)
class CheckResult:
    """What works here, or not, and what that costs.

    subject: what it is about, in a word or two. text: the rest of the sentence. status: the exit status that a run
    has because of it (docs/exit-status.md): 0 = a default run loses nothing, 1 = it loses something, more = it cannot
    start.
    """

    subject: str
    state: State
    text: str
    status: int = 0
