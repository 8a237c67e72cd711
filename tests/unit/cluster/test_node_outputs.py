# SPDX-License-Identifier: Apache-2.0
"""The order of a node's results, their batches, and what is counted of results that a node did not send."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import pytest

from tracer.cluster import node_outputs
from tracer.cluster.node_outputs import NodeOutputs
from tracer.render.json import JsonOutput


class NodesOutput(JsonOutput):
    """Keeps what the outputs of the nodes are asked to do."""

    def __init__(self, node: str = "", calls: list[str] | None = None) -> None:
        super().__init__(io.StringIO(), io.StringIO())
        self.node, self.calls = node, [] if calls is None else calls

    def for_node(self, node: str) -> NodesOutput:
        return NodesOutput(node, self.calls)

    def begin_batch(self) -> None:
        self.calls.append(f"{self.node} begins")

    def end_batch(self, now: int) -> None:
        self.calls.append(f"{self.node} ends {now}")

    def not_sent(self, frames: Mapping[str, int]) -> None:
        self.calls.append(f"{self.node} did not send {dict(frames)}")

    def note(self, text: str) -> None:
        self.calls.append(text)


def result(output: NodesOutput, name: str) -> Callable[[], None]:
    return lambda: output.calls.append(name)


def test_a_result_waits_for_the_packets_before_it() -> None:
    output = NodesOutput()
    outputs = NodeOutputs(output)
    outputs.later("a", result(output, "first"))
    outputs.feed("a")
    outputs.later("a", result(output, "behind a packet"))
    outputs.later("b", result(output, "of another node"))
    assert outputs.waiting("a") == 1 and outputs.waiting("b") == 0
    assert output.calls == ["a begins", "first", "b begins", "of another node"]
    outputs.written("a")
    outputs.end_batch("a", 7)
    outputs.end_batch("a", 8)
    assert output.calls[4:] == ["behind a packet", "a ends 7"] and outputs.waiting("a") == 0


def test_nothing_is_left_at_the_end() -> None:
    output = NodesOutput()
    outputs = NodeOutputs(output)
    outputs.feed("a")
    outputs.later("a", result(output, "behind a packet that never came"))
    assert output.calls == []
    outputs.write_all()
    assert output.calls == ["a begins", "behind a packet that never came"]


def test_too_many_results_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is then written before its packet: nothing is lost, and the order of the others stays."""
    monkeypatch.setattr(node_outputs, "MOST_DELAYED", 2)
    output = NodesOutput()
    outputs = NodeOutputs(output)
    outputs.feed("a")
    for name in ("1", "2", "3"):
        outputs.later("a", result(output, name))
    assert output.calls == ["a begins", "1"]
    outputs.written("a")
    assert output.calls == ["a begins", "1", "2", "3"]


def test_what_a_node_did_not_send() -> None:
    output = NodesOutput()
    outputs = NodeOutputs(output)
    outputs.not_sent("a", {"packet": 2, "unheard-of": 5, "finding": -1})
    outputs.not_sent("a", {"packet": 1, "finding": 1})
    (loss,) = outputs.losses()
    assert (loss.output, loss.records) == ("this client by a", 4) and "(findings: 1, packets: 3)" in loss.why
    assert sum("sends more than this client takes" in call for call in output.calls) == 1, "noted once"
    assert output.calls[1:] == ["a did not send {'packet': 2}", "a did not send {'packet': 1, 'finding': 1}"]
