# SPDX-License-Identifier: Apache-2.0
"""Values of maps that a rule names, and of unnamed ones that netlink gives by the kernel's name for them."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from tests.support import audits
from tests.support.audits import CLIENT, NODE
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.model.hop import RewriteHop
from tracer.predict.query import PathQuery
from tracer.rules.inventory import RuleInventory
from tracer.rules.nftables import json_parser

PLACE = {"family": "ip", "table": "kube-proxy"}
BASE = {**PLACE, "name": "in", "handle": 1, "type": "nat", "hook": "prerouting", "prio": -100}
RANDOM = {"numgen": {"mode": "random", "mod": 2, "offset": 0}}


def predict(*objects: Any) -> list[tuple[Fraction, str, tuple[Any, ...]]]:
    installed = RuleInventory(nft=json_parser.parse(json.dumps({"nftables": [{"chain": BASE}, *objects]})))
    state = NodeState(FindingContext(), installed, audits.FakeRoutes())
    found = []
    for path in audits.path_predictor(state).predict(PathQuery(CLIENT, 0, NODE, 31222)):
        ends = [f"{h.nat.after.dst}:{h.nat.after.dport}" for h in path.packet.hops if isinstance(h, RewriteHop)]
        found.append((path.share, ends[0] if ends else "", path.conditions))
    return sorted(found, key=str)


def rule(*body: Any, handle: int = 8) -> Any:
    return {"rule": {**PLACE, "chain": "in", "handle": handle, "expr": list(body)}}


def made_map(*elements: Any) -> Any:
    return {"map": {**PLACE, "name": "__map0", "handle": 3, "type": "integer", "map": "x", "elem": list(elements)}}


def test_an_endpoint_by_chance_from_a_map_by_its_name() -> None:
    ends = made_map([0, {"concat": ["10.244.0.11", 8080]}], [1, {"concat": ["10.244.0.12", 8080]}])
    by_name = predict(ends, rule({"dnat": {"family": "ip", "addr": {"map": {"key": RANDOM, "data": "@__map0"}}}}))
    assert by_name == [(Fraction(1, 2), "10.244.0.11:8080", ()), (Fraction(1, 2), "10.244.0.12:8080", ())]
    listed = {"set": ends["map"]["elem"]}
    assert by_name == predict(rule({"dnat": {"family": "ip", "addr": {"map": {"key": RANDOM, "data": listed}}}}))


def test_a_verdict_by_chance_from_a_map_by_its_name() -> None:
    verdicts = made_map([0, {"drop": None}], [1, {"accept": None}])
    found = predict(
        verdicts, rule({"vmap": {"key": RANDOM, "data": "@__map0"}}), rule({"dnat": {"addr": "10.244.0.13"}}, handle=9)
    )
    assert [(share, conditions) for share, _, conditions in found] == [(Fraction(1, 2), ())] * 2


@pytest.mark.parametrize("data", ["@not-read", {"unknown": "elements (they were not read)"}], ids=str)
def test_elements_that_were_not_read_are_a_condition(data: Any) -> None:
    dnat = rule({"dnat": {"addr": "10.244.0.13", "port": 80}}, handle=9)
    ((_, end, conditions),) = predict(rule({"vmap": {"key": RANDOM, "data": data}}), dnat)
    assert end == "10.244.0.13:80" and len(conditions) == 1 and "for this packet is false in rule 1 of in" in str(conditions[0])
    ((share, end, _),) = predict(rule({"dnat": {"family": "ip", "addr": {"map": {"key": RANDOM, "data": data}}}}))
    assert share == 1 and not end.startswith("10."), "the address is not known"
