# SPDX-License-Identifier: Apache-2.0
"""The end of an audit as text: which checks ran, which of them found something, and what they could not look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tracer.model.finding import Finding
from tracer.render._style import KEEP, Styler, plain

LABEL = 11
"""Columns before the names of the checks."""


def check_lines(
    findings: Sequence[Finding], checks: Sequence[str], limits: Sequence[tuple[str, str]], style: Styler
) -> Iterator[str]:
    """Yields the lines. limits: the name of a check, and why it could not look at something, a clause."""
    numbers = Counter(finding.name for finding in findings)
    with_findings = [f"{name}{KEEP}({numbers[name]})" if numbers[name] > 1 else name for name in checks if numbers[name]]
    without = [name for name in checks if not numbers[name]]
    for title, names in (("found", with_findings), ("nothing", without)):
        if names:
            yield style.fold(f"  {title:<7}  {', '.join(names)}", LABEL)
    by_reason: dict[str, list[str]] = {}
    for name, why in limits:
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        yield style.fold(style("doubt", f"  limited  {', '.join(names)}: {plain(why)}"), LABEL)
