# SPDX-License-Identifier: Apache-2.0
"""A predicted path compared with a packet that was traced."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.model.prediction import PredictedPath


@dataclass(frozen=True)
class PredictionCheck:
    """agreed: steps that are as told. difference: the first one that is not, as a sentence; "" = everything is as told."""

    predicted: PredictedPath
    agreed: int
    difference: str
