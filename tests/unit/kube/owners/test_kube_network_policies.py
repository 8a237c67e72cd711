# SPDX-License-Identifier: Apache-2.0
"""The queue of kube-network-policies and of kindnet: its number and its program, and no policy."""

from __future__ import annotations

import json

import pytest

from tracer.kube.catalog import ClusterView
from tracer.kube.owners import owner_of
from tracer.rules.nftables import json_parser


@pytest.mark.parametrize(("table", "program"), [("kube-network-policies", "kube-network-policies"),
                                                ("kindnet-network-policies", "kindnet")])  # fmt: skip
def test_a_queue(table: str, program: str) -> None:
    match = {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "@podips-v4"}}
    queue = {"queue": {"num": 101, "flags": "bypass"}}
    items = [
        {"rule": {"family": "inet", "table": table, "chain": "postrouting", "handle": n, "expr": expressions}}
        for n, expressions in enumerate([[match, queue], [{"accept": None}]], 1)
    ]
    found = json_parser.parse(json.dumps({"nftables": items})).ruleset
    texts = [owner_of(rule, found, ClusterView()).text for rule in found.chain("inet", table, "postrouting")]
    assert texts == [f"{program}, NetworkPolicies, queue 101, the policy is not shown", f"{program}, table {table}"]
