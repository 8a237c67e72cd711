# SPDX-License-Identifier: Apache-2.0
"""Statistics and differences of captures with any number of hosts and rules are bounded, and say what they left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import sample_packets
from tracer.analysis import diff, stats
from tracer.analysis.stats import _counter, latencies
from tracer.analysis.stats._counter import KeyCounter, titled
from tracer.model.evidence import Evidence
from tracer.model.hop import TableHop
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import RuleHit, RuleLocation, RuleTrace


def asked(address: str, outcome: Outcome = Outcome.DELIVERED, **more: Any) -> Packet:
    packet = sample_packets.node_port()
    assert packet.flow
    return replace(packet, flow=replace(packet.flow, orig=replace(packet.flow.orig, dst=address)), outcome=outcome, **more)


def test_a_counter_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_counter, "MOST", 3)
    counter: KeyCounter[int] = KeyCounter()
    for n in range(5):
        counter.add(n % 4, 10)
    assert (dict(counter.of), counter.rest) == ({0: 20, 1: 10, 2: 10}, 10)
    assert titled("Rules", counter) == "Rules; 10 more, of more than 3 kinds, are not in the table"
    assert titled("Rules", KeyCounter()) == "Rules"


@pytest.mark.parametrize("name", stats.names())
def test_every_statistic_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each packet has an owner, a rule, a verdict and a namespace of its own."""
    for module in (_counter, latencies):
        monkeypatch.setattr(module, "MOST", 10)
    one = stats.make(name)
    for n in range(200):
        packet = asked(f"10.0.0.{n}", verdict=f"verdict {n}", src_owner=Owner("Pod", "shop", f"web-{n}"))
        one.feed(replace(packet, hops=tuple(replace(h, netns=Netns(f"netns {n}")) for h in packet.hops)))
    for held in vars(one).values():
        sizes = [len(held.of)] if isinstance(held, KeyCounter) else [len(held)] if isinstance(held, dict) else []
        assert all(size <= 10 for size in sizes), (name, held)


def test_a_kind_that_was_perhaps_not_counted_does_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be called "not seen"."""
    monkeypatch.setattr(diff, "MOST", 5)
    one, other = diff.CaptureProfile(), diff.CaptureProfile()
    for n in range(5):
        one.feed(asked(f"10.0.0.{n}"))
    for n in range(9, -1, -1):
        other.feed(asked(f"10.0.0.{n}"))
    one.feed(asked("10.0.0.9", Outcome.DROPPED))
    other.feed(asked("10.0.0.9", Outcome.DELIVERED))
    assert len(one.ends) == len(other.ends) == 5
    outcomes = list(diff.tables(one, other, ("a", "b")))[2]
    assert list(outcomes.rows) == []


def test_decisions_of_one_kind_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "MOST_DECISIONS", 3)
    one, other = diff.CaptureProfile(), diff.CaptureProfile()
    for n in range(20):
        trace = RuleTrace((RuleHit((RuleLocation("INPUT", 3),), None, "DROP", Evidence.OBSERVED),))
        owner = Owner("Service", "shop", f"s{n}")
        hop = TableHop(1, HOST, Hook.INPUT, table="filter", verdict=Verdict.DROP, rule_trace=trace, owner=owner)
        packet = sample_packets.node_port()
        one.feed(replace(packet, hops=(hop,)))
    other.feed(sample_packets.node_port())
    assert [len(counts) for counts in one.decided.values()] == [3] and one.partial == set(one.decided)
    decided = list(diff.tables(one, other, ("a", "b")))[3]
    assert list(decided.rows) == []
