# SPDX-License-Identifier: Apache-2.0
"""The findings about several nodes that the plugin printed, compared with the faults that were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.cluster.wire_truth import Line
from tracer.cluster_findings import DEPARTURES, ENDS, SUSPICIONS, VIEWS

NAMES = frozenset({name for name, _ in (*DEPARTURES, *VIEWS, *ENDS)} | {name for name, _, _ in SUSPICIONS})
"""The findings about several nodes. Those of single nodes are not counted here."""


@dataclass(frozen=True)
class ExpectedFinding:
    """A finding that a fault must give.

    Attributes:
        name: Its name.
        words: Words of its text.
        certain: Whether it must be certain; otherwise it must be a guess.
    """

    name: str
    words: tuple[str, ...]
    certain: bool = True

    def is_shown_by(self, line: Line) -> bool:
        """Whether a finding is this one."""
        return (
            line["name"] == self.name and line["certain"] is self.certain and all(word in line["text"] for word in self.words)
        )


@dataclass
class FindingCount:
    """What was found.

    Attributes:
        expected: Number of findings that the faults must give.
        found: Number of those that were given.
        perhaps: Number of guesses that no fault was made for.
        wrong: A line for each certain finding that no fault was made for.
        missing: A line for each finding that was not given.
    """

    expected: int = 0
    found: int = 0
    perhaps: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The result in one line."""
        return f"expected={self.expected} found={self.found} wrong={len(self.wrong)} perhaps={self.perhaps}"

    def add(self, other: FindingCount) -> None:
        """Adds the count of another run."""
        self.expected += other.expected
        self.found += other.found
        self.perhaps += other.perhaps
        self.wrong += other.wrong
        self.missing += other.missing


def findings(lines: Sequence[Line]) -> list[Line]:
    """The findings about several nodes as they stand at the end: those of the last summary, and printed ones that it lacks."""
    printed = [line for line in lines if line["type"] == "finding" and line["name"] in NAMES]
    summaries = [line for line in lines if line["type"] == "summary" and "node" not in line]
    final = [each for each in (summaries[-1]["findings"] if summaries else ()) if each["name"] in NAMES]
    known = {(each["name"], each["text"]) for each in final}
    return [*final, *(line for line in printed if (line["name"], line["text"]) not in known)]


def compare(lines: Sequence[Line], expected: Sequence[ExpectedFinding], beside: Sequence[ExpectedFinding] = ()) -> FindingCount:
    """Compares findings with faults.

    Args:
        lines: The plugin's lines.
        expected: What the faults must give.
        beside: What they may give, too.
    """
    found = FindingCount(len(expected))
    shown = findings(lines)
    for each in expected:
        if any(each.is_shown_by(line) for line in shown):
            found.found += 1
        else:
            found.missing.append(f"not found: {each.name} with {', '.join(map(repr, each.words))}")
    for line in shown:
        if any(each.is_shown_by(line) for each in (*expected, *beside)):
            continue
        if line["certain"]:
            found.wrong.append(f"found without a fault: {line['name']}: {line['text']}")
        else:
            found.perhaps += 1
    return found
