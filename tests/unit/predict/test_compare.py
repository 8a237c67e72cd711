# SPDX-License-Identifier: Apache-2.0
"""Predicted paths are compared with a packet that was seen: the first difference is reported."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import audits, hop_fields
from tests.support import sample_packets as samples
from tests.support.audits import CLIENT, NODE
from tests.support.nodes import node
from tracer.commands import explain
from tracer.commands.explain import is_first_packet_of
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import HookHop, Hop, NatHop, RewriteHop, RouteHop, TableHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.model.prediction import PredictedPath
from tracer.model.prediction_check import PredictionCheck
from tracer.predict.compare import compare, steps
from tracer.predict.query import PathQuery
from tracer.render.text import TextOutput
from tracer.rules import inventory
from tracer.util.frozen import evolve

QUERY = PathQuery(CLIENT, 0, NODE, 30285)


@pytest.fixture
def predictions(tmp_path: Path) -> list[PredictedPath]:
    state = audits.state(node("1.36.2-iptables-legacy", "S2-three"), tmp_path)
    return audits.path_predictor(state).predict(QUERY)


def seen(predicted: PredictedPath, *changes: tuple[int, Hop]) -> Packet:
    """A packet that met the predicted path except for these hops, and went on into a pod."""
    hops: list[Hop] = [evolve(h, evidence=Evidence.OBSERVED) for h in predicted.packet.hops if not isinstance(h, RouteHop)]
    for at, hop in changes:
        hops[at] = hop
    ends = replace(predicted.packet.endpoints, sport=40812)
    hops.append(HookHop(9, Netns("pod-a"), Hook.PREROUTING, verdict=Verdict.ACCEPT))
    return replace(predicted.packet, hops=tuple(hops), endpoints=ends, outcome=Outcome.DELIVERED)


def index(packet: Packet, hook: str, what: str, table: str = "") -> int:
    hops = [h for h in packet.hops if not isinstance(h, RouteHop)]
    return next(i for i, h in enumerate(hops) if (h.hook, h.kind) == (hook, what) and table in hop_fields.table(h))


def test_any_of_the_endpoints_agrees_with_its_prediction(predictions: list[PredictedPath]) -> None:
    for path in predictions:
        found = compare(predictions, seen(path))
        assert not found.difference and found.predicted is path and found.agreed >= 6


def test_another_endpoint_is_the_first_difference(predictions: list[PredictedPath]) -> None:
    one = predictions[0]
    at = index(one.packet, "PREROUTING", "nat")
    rewrite = next(h for h in one.packet.hops if isinstance(h, NatHop))
    hop = replace(rewrite, nat=replace(rewrite.nat, after=replace(rewrite.nat.after, dst="10.244.9.9")))
    found = compare(predictions, seen(one, (at, hop)))
    assert found.difference == "in PREROUTING DNAT predicted 10.244.0.11:8080, seen 10.244.9.9:8080"


def test_a_verdict_that_was_not_predicted(predictions: list[PredictedPath]) -> None:
    one = predictions[0]
    at = index(one.packet, "FORWARD", "table", "filter")
    hop = evolve([h for h in one.packet.hops if not isinstance(h, RouteHop)][at], verdict="DROP", rule_trace=None)
    found = compare(predictions, seen(one, (at, hop)))
    assert found.difference.startswith("in FORWARD filter predicted ACCEPT by ") and found.difference.endswith("seen DROP")


def test_a_predicted_translation_that_was_not_seen(predictions: list[PredictedPath]) -> None:
    one = seen(predictions[0])
    one = replace(one, hops=tuple(h for h in one.hops if not (isinstance(h, RewriteHop) and h.hook == "POSTROUTING")))
    assert compare(predictions, one).difference == "predicted POSTROUTING SNAT 10.244.0.1, which was not seen"


def test_hops_of_other_namespaces_and_copies_do_not_count(predictions: list[PredictedPath]) -> None:
    one = seen(predictions[0])
    before = steps(one)
    elsewhere = TableHop(0, Netns("pod-a"), Hook.OUTPUT, table="filter", verdict=Verdict.DROP)
    of_a_copy = TableHop(0, HOST, Hook.FORWARD, table="filter", verdict=Verdict.DROP, clone=True)
    assert steps(replace(one, hops=(of_a_copy, elsewhere, *one.hops))) == before


def test_which_packets_a_query_matches(predictions: list[PredictedPath]) -> None:
    one = seen(predictions[0])
    assert is_first_packet_of(one, QUERY) and is_first_packet_of(one, replace(QUERY, sport=40812))
    assert not is_first_packet_of(one, replace(QUERY, sport=1))
    assert not is_first_packet_of(replace(one, tcp_flags="ACK"), QUERY)
    assert not is_first_packet_of(replace(one, complete=False), QUERY), "nothing is concluded from an incomplete packet"
    assert not is_first_packet_of(replace(one, endpoints=Endpoints("10.0.0.1", 1, NODE, 30285)), QUERY)


def test_a_packet_that_is_sent_back_is_compared_on_its_first_pass(predictions: list[PredictedPath]) -> None:
    """A router without a better route sends the packet back to its sender."""
    one = seen(predictions[0])
    before = steps(one)
    assert any(s.key[0] == "POSTROUTING" for s in before)
    second_pass = [replace(h, in_iface="eth0") for h in one.hops if h.hook == "PREROUTING" and h.netns == "node"]
    assert second_pass and steps(samples.with_hops(one, *second_pass)) == before
    looped = samples.with_hops(one, *(replace(h, in_iface="lo") for h in second_pass))
    assert len(steps(looped)) > len(before), "through the loopback the same pass goes on"


@pytest.mark.parametrize("unread", [(), ("the rules of nftables cannot be read: nft took longer than 60 s",)])
def test_rules_that_could_not_be_read_are_a_condition(
    unread: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = audits.state(node("1.36.2-iptables-legacy", "S2-three"), tmp_path)
    rules = replace(state.installed, unread=unread)
    monkeypatch.setattr(inventory, "read", lambda _: rules)
    monkeypatch.setattr(explain, "PathPredictor", lambda _: audits.path_predictor(state))
    kube: Any = SimpleNamespace(cluster=state.context.cluster)
    predicted_paths, reported = explain.predict_paths(QUERY, kube)
    assert predicted_paths and reported == unread
    assert all(
        path.conditions == (("no rule that could not be read acts on it",) if unread else ()) for path in predicted_paths
    )


def test_kept_comparisons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`explain --live` may run for days. A difference counts for the exit status, also when it comes late."""
    monkeypatch.setattr(explain, "MAX_CHECKS", 3)
    output = TextOutput(io.StringIO(), io.StringIO())
    results = iter(["", "", "", "", "differs", "differs again", *[""] * 94])
    monkeypatch.setattr(explain, "compare", lambda paths, packet: PredictionCheck(cast(PredictedPath, None), 0, next(results)))
    monkeypatch.setattr(explain, "is_first_packet_of", lambda packet, query: True)
    monkeypatch.setattr(output, "compared", lambda packet, check: None)
    comparison = explain.ComparisonOutput(QUERY, [], output)
    for _ in range(100):
        comparison.packet(samples.node_port())
    assert [check.difference for check in comparison.checks] == ["", "", "", "differs"]
