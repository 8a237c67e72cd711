# SPDX-License-Identifier: Apache-2.0
"""The evidence for a statement: observed or derived."""

from __future__ import annotations

from enum import StrEnum


class Evidence(StrEnum):
    """How something is known: seen by a probe, or computed from what probes saw."""

    OBSERVED = "observed"
    DERIVED = "derived"
