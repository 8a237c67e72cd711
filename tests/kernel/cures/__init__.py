# SPDX-License-Identifier: Apache-2.0
"""What every finding advises, carried out: its check must show what it says, and after its cure it must be gone.

A case makes one situation on the node of cures/box.py and says how its finding is looked for. Each command that the finding
prints between backticks is run: one of the check must print what the case expects of it, one of the cure must succeed. A cure
in words is done by the case (`mend`). A file of this package holds the cases of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.kernel.cures.box import Box
from tracer.model.finding import Finding

_COMMAND = re.compile("`([^`]+)`")


def nothing() -> None:
    """The mend of a cure that is all commands."""


@dataclass
class Look:
    """find: the finding as it is now, [] when it is gone. shows: words of a command of the check -> regular expression that its
    output must have in it. apart: words of a command that is not run -> why. space: the network namespace that the check's
    commands are to be run in, "" = the node's. editor: a sed script, what an editor is to do. proxy: the version of the real
    kube-proxy that wrote the rules.
    """

    find: Callable[[], list[Finding]]
    shows: Mapping[str, str] = field(default_factory=dict)
    mend: Callable[[], object] = nothing
    apart: Mapping[str, str] = field(default_factory=dict)
    space: str = ""
    editor: str = ""
    proxy: str = "1.36.2"


@dataclass(frozen=True)
class Case:
    """finding: the name of a finding or a check. situation: what it is in, or how it came. needs: "ipvs", "bridge" of the
    kernel, "conntrack" for the program, "machine" for a machine that belongs to the tests alone, "real" for the real
    kube-proxy.
    """

    finding: str
    situation: str
    build: Callable[[Box], Look]
    needs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.finding} ({self.situation})"


CASES: list[Case] = []


def case(finding: str, situation: str, *needs: str) -> Callable[[Callable[[Box], Look]], Callable[[Box], Look]]:
    """Adds a case to CASES."""

    def add(build: Callable[[Box], Look]) -> Callable[[Box], Look]:
        CASES.append(Case(finding, situation, build, needs))
        return build

    return add


def commands(text: str) -> list[str]:
    """The commands that a check or a cure prints."""
    return _COMMAND.findall(text)
