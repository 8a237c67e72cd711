# SPDX-License-Identifier: Apache-2.0
"""The audit: finds problems of this node without traffic. A check is one file of this package, found by its name.

A file has `check(state)`, which gives the Findings that follow from rules, objects, sockets, routes and settings. If a packet
could show the same problem, the check has the name, the text and the page of that finding. The first line of its docstring
describes it in `audit --list`. NEEDS are functions of _needs.py: what it needs beside rules. A new check needs a test
tests/unit/audit/test_NAME.py, a line in docs/audit.md and a case in tests/kernel/cures.

Must not know: how packets are caught, how a finding is shown, other checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from tracer.audit._needs import Need
from tracer.audit.state import NodeState
from tracer.model.finding import Finding
from tracer.util.registry import Registry

Check = Callable[[NodeState], Iterable[Finding]]

_CHECKS: Registry[Check] = Registry(__name__, "check", helpers=("state",))


@cache
def checks() -> tuple[tuple[str, Check], ...]:
    """All checks: (name of the file, function)."""
    return _CHECKS.entries()


def names() -> tuple[str, ...]:
    """The names of all checks. No check is imported."""
    return _CHECKS.names()


def description(name: str) -> str:
    """What a check looks for, a sentence."""
    return (_CHECKS.values("__doc__", "")[name] or "").partition("\n")[0]


def limits(state: NodeState) -> list[tuple[str, str]]:
    """What checks could not look at: (name of the check, why, a clause)."""
    needs: dict[str, Sequence[Need]] = _CHECKS.values("NEEDS", ())
    return [(name, why) for name, of in needs.items() for need in of if (why := need(state))]


def audit(state: NodeState) -> list[Finding]:
    """Runs all checks. Certain findings come first; each cause is reported once."""
    found: dict[tuple[object, ...], Finding] = {}
    for name, check in checks():
        for finding in check(state):
            found.setdefault((name, *finding.key), replace(finding, name=name, packets=0))
    return sorted(found.values(), key=lambda f: not f.certain)
