# SPDX-License-Identifier: Apache-2.0
"""Comparison of a predicted path with a traced packet."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.model.prediction import PredictedPath


@dataclass(frozen=True)
class PredictionCheck:
    """The result of the comparison.

    Attributes:
        predicted: The predicted path.
        agreed: Number of steps that agree.
        difference: The first step that differs, as a sentence; "" = no difference.
    """

    predicted: PredictedPath
    agreed: int
    difference: str
