# SPDX-License-Identifier: Apache-2.0
"""Carries out the check and the cure of every finding: the check must show what it promises, the cure must remove the finding.

A case builds one situation on the node of cures/box.py and defines how its finding is looked for. Each command that the finding
prints between backticks is run: a command of the check must print what the case expects, a command of the cure must succeed. If
the cure is a sentence and no command, the case carries it out (`repair`). Each file of this package has the cases of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules

from tests.kernel.cures.box import Box
from tracer.model.finding import Finding

_COMMAND = re.compile("`([^`]+)`")


def no_repair() -> None:
    """The `repair` of a cure that consists of commands only."""


@dataclass
class BuiltCase:
    """A case that is built, and how it is checked.

    Attributes:
        find: Looks for the finding now; [] when it is gone.
        expected_output: Words of a command of the check -> regular expression that must match its output.
        repair: Does the part of the cure that is no command.
        skipped: Words of a command that is not run -> reason.
        namespace: Network namespace in which the check's commands run, "" = the node's.
        editor: sed script that stands in for the user's editor.
        proxy: Version of the real kube-proxy that wrote the rules.
    """

    find: Callable[[], list[Finding]]
    expected_output: Mapping[str, str] = field(default_factory=dict)
    repair: Callable[[], object] = no_repair
    skipped: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    editor: str = ""
    proxy: str = "1.36.2"


@dataclass(frozen=True)
class Case:
    """One situation in which a finding must be found and cured.

    Attributes:
        finding: Name of a finding or of an audit check.
        situation: Where the fault is, or how it arose.
        build: Makes the situation.
        needs: "ipvs", "ovs" and "bridge" of the kernel, "conntrack" (the program), "machine" (a machine that belongs to the
            tests alone), "real" (the real kube-proxy).
    """

    finding: str
    situation: str
    build: Callable[[Box], BuiltCase]
    needs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.finding} ({self.situation})"


CASES: list[Case] = []


def case(finding: str, situation: str, *needs: str) -> Callable[[Callable[[Box], BuiltCase]], Callable[[Box], BuiltCase]]:
    """Adds a case to CASES."""

    def add(build: Callable[[Box], BuiltCase]) -> Callable[[Box], BuiltCase]:
        CASES.append(Case(finding, situation, build, needs))
        return build

    return add


def all_cases() -> list[Case]:
    """The cases of all files of this package."""
    for module in sorted(iter_modules(__path__), key=lambda each: each.name):
        import_module(f"{__name__}.{module.name}")
    return CASES


def commands(text: str) -> list[str]:
    """The commands between backticks in the text of a check or a cure."""
    return _COMMAND.findall(text)
