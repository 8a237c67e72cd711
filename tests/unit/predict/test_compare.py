# SPDX-License-Identifier: Apache-2.0
"""What was told of a packet, beside what it met: the first difference is the one that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import audits
from tests.support.audits import CLIENT, NODE
from tests.support.nodes import node
from tracer.commands import explain
from tracer.commands.explain import is_first_packet_of
from tracer.model.evidence import Evidence
from tracer.model.packet import Endpoints, Hop, Packet
from tracer.model.prediction import PredictedPath
from tracer.predict.compare import compare, steps
from tracer.predict.query import PathQuery
from tracer.rules import inventory

QUESTION = PathQuery(CLIENT, 0, NODE, 30285)


@pytest.fixture
def told(tmp_path: Path) -> list[PredictedPath]:
    state = audits.state(node("1.36.2-iptables-legacy", "S2-three"), tmp_path)
    return audits.journey(state).predict(QUESTION)


def seen(predicted: PredictedPath, *changes: tuple[int, Hop]) -> Packet:
    """A packet that went as told, but for some hops, and on into a pod."""
    hops = [replace(h, evidence=Evidence.OBSERVED) for h in predicted.packet.hops if h.what != "route"]
    for at, hop in changes:
        hops[at] = hop
    ends = replace(predicted.packet.endpoints, sport=40812)
    made = replace(predicted.packet, hops=[*hops, Hop(9, "hook", "pod-a", "PREROUTING", verdict="ACCEPT")], endpoints=ends)
    made.outcome = "delivered"
    return made


def index(packet: Packet, hook: str, what: str, table: str = "") -> int:
    hops = [h for h in packet.hops if h.what != "route"]
    return next(i for i, h in enumerate(hops) if (h.hook, h.what) == (hook, what) and table in h.table)


def test_any_of_the_endpoints_is_as_told(told: list[PredictedPath]) -> None:
    for story in told:
        found = compare(told, seen(story))
        assert not found.difference and found.predicted is story and found.agreed >= 6


def test_another_endpoint_is_the_first_difference(told: list[PredictedPath]) -> None:
    one = told[0]
    at = index(one.packet, "PREROUTING", "nat")
    nat = next(h for h in one.packet.hops if h.nat).nat
    assert nat
    other = replace(nat, after=replace(nat.after, dst="10.244.9.9"))
    hop = replace(next(h for h in one.packet.hops if h.nat), nat=other)
    found = compare(told, seen(one, (at, hop)))
    assert found.difference == "in PREROUTING DNAT predicted 10.244.0.11:8080, seen 10.244.9.9:8080"


def test_a_verdict_that_was_not_told(told: list[PredictedPath]) -> None:
    one = told[0]
    at = index(one.packet, "FORWARD", "table", "filter")
    hop = replace([h for h in one.packet.hops if h.what != "route"][at], verdict="DROP", rule_trace=None)
    found = compare(told, seen(one, (at, hop)))
    assert found.difference.startswith("in FORWARD filter predicted ACCEPT by ") and found.difference.endswith("seen DROP")


def test_a_translation_that_did_not_come(told: list[PredictedPath]) -> None:
    one = seen(told[0])
    one.hops = [h for h in one.hops if not (h.nat and h.hook == "POSTROUTING")]
    assert compare(told, one).difference == "predicted POSTROUTING SNAT 10.244.0.1, which was not seen"


def test_hops_of_other_namespaces_and_copies_do_not_count(told: list[PredictedPath]) -> None:
    one = seen(told[0])
    before = steps(one)
    one.hops.insert(0, Hop(0, "table", "pod-a", "OUTPUT", "filter", verdict="DROP"))
    one.hops.insert(0, Hop(0, "table", "node", "FORWARD", "filter", verdict="DROP", clone=True))
    assert steps(one) == before


def test_which_packets_were_asked_about(told: list[PredictedPath]) -> None:
    one = seen(told[0])
    assert is_first_packet_of(one, QUESTION) and is_first_packet_of(one, replace(QUESTION, sport=40812))
    assert not is_first_packet_of(one, replace(QUESTION, sport=1))
    assert not is_first_packet_of(replace(one, tcp_flags="ACK"), QUESTION)
    assert not is_first_packet_of(replace(one, complete=False), QUESTION), "nothing is concluded from a packet that lost a part"
    assert not is_first_packet_of(replace(one, endpoints=Endpoints("10.0.0.1", 1, NODE, 30285)), QUESTION)


def test_a_packet_that_is_sent_back_is_compared_on_its_first_way(told: list[PredictedPath]) -> None:
    """A router without a better route sends it where it came from."""
    one = seen(told[0])
    before = steps(one)
    assert any(s.key[0] == "POSTROUTING" for s in before)
    again = [replace(h, in_iface="eth0") for h in one.hops if h.hook == "PREROUTING" and h.netns == "node"]
    one.hops += again
    assert again and steps(one) == before
    one.hops[-len(again) :] = [replace(h, in_iface="lo") for h in again]
    assert len(steps(one)) > len(before), "by the loopback it goes on"


@pytest.mark.parametrize("unread", [(), ("the rules of nftables cannot be read: nft took longer than 60 s",)])
def test_rules_that_could_not_be_read_leave_a_doubt(
    unread: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = audits.state(node("1.36.2-iptables-legacy", "S2-three"), tmp_path)
    rules = replace(state.installed, unread=unread)
    monkeypatch.setattr(inventory, "read", lambda _: rules)
    monkeypatch.setattr(explain, "PathPredictor", lambda _: audits.journey(state))
    kube: Any = SimpleNamespace(cluster=state.context.cluster)
    predicted_paths, told = explain.predict_paths(QUESTION, kube)
    assert predicted_paths and told == unread
    assert all(
        story.conditions == (("no rule that could not be read acts on it",) if unread else ()) for story in predicted_paths
    )
