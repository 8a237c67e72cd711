# SPDX-License-Identifier: Apache-2.0
"""Formats a duration."""

from __future__ import annotations


def format_duration(ns: int) -> str:
    """Formats a duration in ns: `0.50 ms`, `1.20 s`."""
    return f"{ns / 1e6:.2f} ms" if ns < 999_995_000 else f"{ns / 1e9:.2f} s"
