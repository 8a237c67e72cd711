# SPDX-License-Identifier: Apache-2.0
"""A kernel counter that the packets of a run do not explain."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.model.namespace_name import Netns, in_netns


@dataclass(frozen=True)
class CounterMismatch:
    """A kernel counter of a namespace, compared with the packets of a run.

    Attributes:
        netns: The namespace.
        counter: The counter's name.
        counted: Increase of the counter during the run.
        explained: Number of packets of the run that explain an increase.
    """

    netns: Netns
    counter: str
    counted: int
    explained: int

    @property
    def open(self) -> int:
        return abs(self.counted - self.explained)

    @property
    def text(self) -> str:
        rest = self.counted - self.explained
        line = f"{self.counter}{in_netns(self.netns)}: {self.counted} counted, {self.explained} explained"
        if rest > 0:
            return f"{line}; {rest} were packets that this run did not see or did not ask for"
        return line + (f"; {-rest} more than the kernel counted" if rest else "")
