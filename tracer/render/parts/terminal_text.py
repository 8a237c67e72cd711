# SPDX-License-Identifier: Apache-2.0
"""What tables for people share with the text format: styles, times, counts."""

from __future__ import annotations

from tracer.render._clock import local
from tracer.render._format import count, outcome_style
from tracer.render._style import STYLES, plain

__all__ = ["STYLES", "count", "local", "outcome_style", "plain"]
