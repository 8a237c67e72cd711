# SPDX-License-Identifier: Apache-2.0
"""The result of one check of the machine, made before any probe is attached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "degraded", "missing"]


@dataclass(frozen=True)
class CheckResult:
    """Whether one thing works on this machine, and the consequence for a run.

    Attributes:
        subject: What was checked, in one or two words.
        state: Whether it works.
        text: The rest of the sentence.
        status: The exit status that this result gives a run (docs/exit-status.md): 0 = a default run loses nothing,
            1 = it loses something, more = it cannot start.
    """

    subject: str
    state: State
    text: str
    status: int = 0
