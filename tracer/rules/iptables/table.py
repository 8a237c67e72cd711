# SPDX-License-Identifier: Apache-2.0
"""A legacy table as the walk goes through it: rules by their offset, chains, hooks, policies.

Read from the kernel it is a blob (tracer/rules/iptables/blob.py); it can also be put together from text
(tracer/rules/iptables/assemble.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from tracer.rules.iptables.entry import Entry

HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
RETURN = -5
"""Verdict of RETURN in a standard target; others are -1 - NF_*, and from 0 on the offset jumped to."""
VERDICTS = {-1: "DROP", -2: "ACCEPT", -4: "QUEUE", RETURN: "RETURN"}


class Table(ABC):
    """hooks: offset of a base chain's first rule by hook number; underflows: of its policy. starts: chain by the offset of its
    first rule. family: "ip" or "ip6"."""

    family: str
    name: str
    hooks: Mapping[int, int]
    underflows: Mapping[int, int]
    starts: Mapping[int, str]
    octets: int = 0
    """Of its rules, where they were read from the kernel."""

    @property
    @abstractmethod
    def chains(self) -> Iterable[str]:
        """Their names."""

    @abstractmethod
    def offsets(self, chain: str) -> list[int]:
        """Of its rules, in order, without the chain's own last one."""

    @abstractmethod
    def entry(self, at: int) -> Entry:
        """The rule at an offset. KeyError."""

    @abstractmethod
    def target_name(self, at: int) -> str:
        """Of the rule at an offset, as `iptables -L` shows it: the chain jumped to, the target, the verdict, "" when the rule
        only counts."""

    def size(self, chain: str) -> int:
        """How many rules it has."""
        return len(self.offsets(chain))

    def rules(self, chain: str) -> list[Entry]:
        """Of a chain, in order."""
        return [self.entry(at) for at in self.offsets(chain)]

    def policy(self, hook: int) -> str:
        return self.target_name(self.underflows[hook])

    def named(self, verdict: int, after: int) -> str:
        """What a standard target does. after: offset of the next rule."""
        if verdict < 0:
            return VERDICTS.get(verdict, str(verdict))
        return "" if verdict == after else self.starts.get(verdict, "")
