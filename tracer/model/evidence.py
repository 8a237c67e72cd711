# SPDX-License-Identifier: Apache-2.0
"""How sure a statement is."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class Evidence(StrEnum):
    """How something is known: a probe saw it, or it was computed from what probes saw."""

    OBSERVED = "observed"
    DERIVED = "derived"
