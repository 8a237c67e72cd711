# SPDX-License-Identifier: Apache-2.0
"""Where the results of each node are written: in the order in which they came, and in batches."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping

from tracer.model.summary import OutputLoss
from tracer.render.base import Output

MOST_DELAYED = 1 << 16
"""Largest number of results of one node that wait behind packets; the oldest are then written before these packets."""


class NodeOutputs:
    """The outputs of all nodes.

    A packet may wait for its views on other nodes. So the other results of a node wait until the packets that came before
    them are written.

    Args:
        output: Where results are written.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._outputs: dict[str, Output] = {}
        self._delayed: dict[str, deque[tuple[int, Callable[[], None]]]] = {}
        self._fed: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._open_batches: set[str] = set()
        self._not_sent: dict[str, Counter[str]] = {}

    def of(self, node: str) -> Output:
        """The output with the name of a node."""
        if node not in self._outputs:
            self._outputs[node] = self._output.for_node(node)
        return self._outputs[node]

    def feed(self, node: str) -> None:
        """A packet of a node has come, and will be written."""
        self._fed[node] += 1

    def waiting(self, node: str) -> int:
        """Number of packets of a node that have come and are not written."""
        return self._fed[node] - self._written[node]

    def written(self, node: str) -> None:
        """A packet of a node was written: the results behind it follow."""
        self._written[node] += 1
        self._write_delayed(node)

    def later(self, node: str, write: Callable[[], None]) -> None:
        """Writes a result of a node behind the packets that came before it."""
        delayed = self._delayed.setdefault(node, deque())
        delayed.append((self._fed[node], write))
        if len(delayed) > MOST_DELAYED:
            delayed[0] = (0, delayed[0][1])
        self._write_delayed(node)

    def write_all(self) -> None:
        """Writes the results that still wait: the run is over."""
        for node in self._delayed:
            self._write_delayed(node, is_over=True)

    def _write_delayed(self, node: str, is_over: bool = False) -> None:
        delayed, written = self._delayed.get(node) or deque(), self._written[node]
        while delayed and (is_over or delayed[0][0] <= written):
            _, write = delayed.popleft()
            self.begin_batch(node)
            write()

    def begin_batch(self, node: str) -> None:
        """Begins a batch of a node's results, unless one has begun."""
        if node not in self._open_batches:
            self._open_batches.add(node)
            self.of(node).begin_batch()

    def end_batch(self, node: str, now: int) -> None:
        """Ends the batch of a node's results, if one has begun. now: ns, CLOCK_MONOTONIC."""
        if node in self._open_batches:
            self._open_batches.discard(node)
            self.of(node).end_batch(now)

    def not_sent(self, node: str, frames: Mapping[str, int]) -> None:
        """Counts what a node did not send, by kind of frame. It is noted once; the summary has the totals."""
        counts = self._not_sent.setdefault(node, Counter())
        if not counts:
            self._output.note(f"Node {node} sends more than this client takes: some results are not shown (see the summary).")
        known = {kind: count for kind, count in frames.items() if kind in _PLURALS and count > 0}
        counts.update(known)
        self.of(node).not_sent(known)

    def losses(self) -> Iterator[OutputLoss]:
        """What the nodes did not send, for the summary."""
        for node, counts in self._not_sent.items():
            what = ", ".join(f"{_PLURALS[kind]}: {count}" for kind, count in sorted(counts.items()))
            yield OutputLoss(f"this client by {node}", counts.total(), f"the client was too slow ({what})")

    def add_lost_events(self) -> None:
        """Adds the lost events of the nodes to those of all outputs, by probe."""
        for output in self._output.outputs():
            for node in self._outputs.values():
                output.lost_by_probe.update(next(node.outputs()).lost_by_probe)


_PLURALS = {
    "packet": "packets", "finding": "findings", "verdict": "causes of SYNs", "timeline": "timelines",
    "loss": "reports of losses", "note": "notes", "connection": "connections", "batch": "ends of batches",
    "capture": "parts of the capture",
}  # fmt: skip
