# SPDX-License-Identifier: Apache-2.0
"""Chains of one priority run in the order of their handles; in each order if two tables would decide."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import audits, hop_fields
from tests.support.audits import CLIENT, NODE
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.model.namespace_name import HOST
from tracer.model.packet import Packet
from tracer.model.prediction import PredictedPath
from tracer.predict.compare import compare
from tracer.predict.path import PathPredictor
from tracer.predict.query import PathQuery
from tracer.rules.inventory import RuleInventory
from tracer.rules.nftables import json_parser

DROP, REJECT, ACCEPT = {"drop": None}, {"reject": {"type": "icmp", "expr": "port-unreachable"}}, {"accept": None}
DNAT, ELSEWHERE = ({"dnat": {"addr": f"10.244.0.{n}", "port": 8080}} for n in (11, 12))


def predictor(*chains: tuple[Any, ...]) -> PathPredictor:
    """The predictor of a node with these base chains, one priority per hook, in the order of their creation: (table, name,
    kind, hook, its only rule's statements)."""
    listed: list[Any] = []
    for handle, (table, name, kind, hook, *statements) in enumerate(chains, 1):
        place = {"family": "ip", "table": table}
        prio = -100 if kind == "nat" else 0
        head = {**place, "name": name, "handle": handle, "type": kind, "hook": hook, "prio": prio, "policy": "accept"}
        rule = {**place, "chain": name, "handle": 100 + handle, "expr": statements}
        listed += [{"chain": head}, {"rule": rule}]
    installed = RuleInventory(nft=json_parser.parse(json.dumps({"nftables": listed})))
    return audits.path_predictor(NodeState(FindingContext(), installed, audits.FakeRoutes()))


def predict(*chains: tuple[str, str, str, str, dict[str, Any]]) -> list[PredictedPath]:
    return predictor(*chains).predict(PathQuery(CLIENT, 40000, NODE, 80))


def chains_met(packet: Packet) -> list[str]:
    return [hop_fields.chain(h) for h in packet.hops if hop_fields.chain(h)]


def test_in_one_table_the_chain_made_last_runs_first() -> None:
    (predicted,) = predict(("a", "old", "filter", "input", REJECT), ("a", "new", "filter", "input", DROP))
    assert (
        chains_met(predicted.packet) == ["new"]
        and predicted.packet.outcome == "dropped"
        and not predicted.conditions
        and not predicted.loose
    )


def test_of_two_tables_that_would_decide_each_may_run_first() -> None:
    found = predict(("a", "one", "filter", "input", REJECT), ("b", "two", "filter", "input", DROP))
    assert {(s.conditions[0], s.packet.outcome) for s in found} == {
        ("in INPUT ip a was registered after ip b, and so runs first", "rejected"),
        ("in INPUT ip b was registered after ip a, and so runs first", "dropped"),
    }  # fmt: skip


def test_of_two_tables_that_translate_only_one_runs() -> None:
    found = predict(("a", "one", "nat", "prerouting", DNAT), ("b", "two", "nat", "prerouting", ELSEWHERE))
    assert sorted(chains_met(s.packet) for s in found) == [["one"], ["two"]]


def test_an_order_that_changes_nothing_is_no_condition() -> None:
    (predicted,) = predict(("a", "one", "nat", "prerouting", DNAT), ("b", "two", "nat", "prerouting", DNAT))
    (twin,) = predicted.twins
    assert not predicted.conditions and sorted([chains_met(predicted.packet), chains_met(twin.packet)]) == [["one"], ["two"]]
    (note,) = predicted.notes
    assert note.startswith("the same by ip ") and "if in PREROUTING ip " in note and "runs first" in note
    assert not compare([predicted], twin.packet).difference, "a packet that met the other chain agrees with the prediction"


def test_an_order_that_matters_only_because_of_the_mark() -> None:
    """One table sets the mark and the other one matches it, so the order decides."""
    mark = {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 7}}
    matches_mark = {"match": {"op": "==", "left": {"meta": {"key": "mark"}}, "right": 7}}
    found = predictor(("a", "marks", "filter", "input", mark), ("b", "asks", "filter", "input", matches_mark, DROP)).predict(
        PathQuery(CLIENT, 40000, NODE, 80)
    )
    assert {(s.conditions[0].partition(" was")[0], s.packet.outcome) for s in found} == {
        ("in INPUT ip a", "dropped"), ("in INPUT ip b", "refused"),
    }  # fmt: skip


@pytest.mark.parametrize("other", [ACCEPT, {"counter": {"packets": 0, "bytes": 0}}])
def test_the_order_is_no_condition_where_only_one_table_decides(other: dict[str, Any]) -> None:
    (predicted,) = predict(("a", "one", "filter", "input", other), ("b", "two", "filter", "input", DROP))
    assert not predicted.conditions and predicted.loose == {("INPUT", "ip a", "one"), ("INPUT", "ip b", "two")}


def test_a_packet_that_met_them_in_the_other_order_agrees() -> None:
    predicted_paths = predict(("a", "one", "filter", "input", ACCEPT), ("b", "two", "filter", "input", ACCEPT))
    packet = predicted_paths[0].packet
    chains = [h for h in packet.hops if hop_fields.chain(h)]
    at = [packet.hops.index(h) for h in chains]
    other = list(packet.hops)
    for place, hop in zip(at, reversed(chains), strict=True):
        other[place] = hop
    reversed_packet = Packet(1, 0, HOST, "eth0", "IPv4", "TCP", packet.endpoints, hops=tuple(other), outcome=packet.outcome)
    assert [hop_fields.chain(h) for h in reversed_packet.hops if hop_fields.chain(h)] == list(reversed(chains_met(packet)))
    found = compare(predicted_paths, reversed_packet)
    assert not found.difference and found.agreed == 2
    (one_table,) = predict(("a", "one", "filter", "input", ACCEPT), ("a", "two", "filter", "input", ACCEPT))
    reversed_packet = replace(reversed_packet, hops=tuple(reversed([h for h in one_table.packet.hops if hop_fields.chain(h)])))
    assert compare([one_table], reversed_packet).difference.startswith("predicted INPUT ip a two"), (
        "in one table the order is known"
    )
