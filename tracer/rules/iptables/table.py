# SPDX-License-Identifier: Apache-2.0
"""A table of iptables as it is traversed: rules by their offset, chains, hooks, policies.

It is either read from the kernel as a blob (tracer/rules/iptables/blob.py) or built from text
(tracer/rules/iptables/assemble.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from tracer.rules.iptables.entry import Entry

RETURN = -5
"""Verdict of RETURN in a standard target. Other negative verdicts are -1 - NF_*; from 0 on it is the offset jumped to."""
VERDICTS = {-1: "DROP", -2: "ACCEPT", -4: "QUEUE", RETURN: "RETURN"}


class Table(ABC):
    """A table.

    Attributes:
        family: "ip" or "ip6".
        name: Its name.
        hooks: Offset of each base chain's first rule, by hook number.
        underflows: Offset of each base chain's policy, by hook number.
        starts: Chain by the offset of its first rule.
        octets: Bytes of its rules in the kernel, 0 = built from text.
    """

    family: str
    name: str
    hooks: Mapping[int, int]
    underflows: Mapping[int, int]
    starts: Mapping[int, str]
    octets: int = 0

    @property
    @abstractmethod
    def chains(self) -> Iterable[str]:
        """Names of the chains."""

    @abstractmethod
    def offsets(self, chain: str) -> list[int]:
        """Offsets of the rules of a chain, in order, without the chain's own last entry."""

    @abstractmethod
    def entry(self, at: int) -> Entry:
        """The rule at an offset. Raises KeyError."""

    @abstractmethod
    def target_name(self, at: int) -> str:
        """Target of the rule at an offset, as `iptables -L` shows it: chain, target or verdict; "" if the rule only counts."""

    def size(self, chain: str) -> int:
        """Number of rules in a chain."""
        return len(self.offsets(chain))

    def rules(self, chain: str) -> list[Entry]:
        """Rules of a chain, in order."""
        return [self.entry(at) for at in self.offsets(chain)]

    def policy(self, hook: int) -> str:
        """Policy of the base chain at a hook: "ACCEPT", "DROP"."""
        return self.target_name(self.underflows[hook])

    def verdict_name(self, verdict: int, after: int) -> str:
        """Name of a standard target's verdict: a verdict or a chain; "" if it leads to the next rule, at offset `after`."""
        if verdict < 0:
            return VERDICTS.get(verdict, str(verdict))
        return "" if verdict == after else self.starts.get(verdict, "")
