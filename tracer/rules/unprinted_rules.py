# SPDX-License-Identifier: Apache-2.0
"""How long rules are read without the tools that print them, after they changed while a tool printed them."""

from __future__ import annotations

import time

UNPRINTED_TIMES = 10
"""For this many times as long as the reading took that was in vain."""


def print_again_at(began: float) -> float:
    """Time from which the tools print the rules again, s, time.monotonic(). began: of the reading in vain, which ends now."""
    now = time.monotonic()
    return now + UNPRINTED_TIMES * (now - began)
