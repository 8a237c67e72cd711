# SPDX-License-Identifier: Apache-2.0
"""nft's JSON is parsed, and compared with the text that nft printed of the same rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.nodes import node
from tracer.rules.nftables import json_parser
from tracer.rules.nftables.format import expression, operand
from tracer.util.json_value import JsonObject, UnexpectedJson

S1 = node("1.36.2-nftables-nft", "S1")
S4 = node("1.30.3-nftables-nft", "S4")


def test_rules_of_kube_proxy_have_the_text_of_nft() -> None:
    rules = json_parser.parse(S4.files["nft.json"]).ruleset
    texts = [r.text for r in rules.chain("ip", "kube-proxy", "services")]
    assert texts == [
        "ip daddr . meta l4proto . th dport vmap @service-ips",
        "ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports",
    ]
    assert [r.text for r in rules.chain("ip", "kube-proxy", "masquerading")] == [
        "meta mark & 0x00004000 == 0x00000000 return",
        "meta mark set meta mark ^ 0x00004000",
        "masquerade fully-random",
    ]
    (dnat,) = rules.chain("ip", "kube-proxy", "endpoint-JZKVIKIO-default/kubernetes/tcp/https__192.168.56.10/6443")[1:]
    assert (dnat.text, dnat.target, dnat.handle) == ("meta l4proto tcp dnat to 192.168.56.10:6443", "DNAT", 389)
    assert rules.policies["ip", "kube-proxy", "nat-prerouting"] == "ACCEPT"


def test_maps_and_their_elements() -> None:
    maps = json_parser.parse(S4.files["nft.json"]).maps
    none = maps["ip", "kube-proxy", "no-endpoint-nodeports"]
    (element,) = none.elements.values()
    assert element.text == 'tcp . 30420 comment "2048-game/service-2048" : drop'
    ports = maps["ip", "kube-proxy", "service-nodeports"].elements
    assert ports["tcp", "30420"].verdict == "goto external-ZC2KPEQ4-2048-game/service-2048/tcp/"
    maps = json_parser.parse(S1.files["nft.json"]).maps
    refused = maps["ip", "kube-proxy", "no-endpoint-services"].elements.values()
    assert {e.verdict for e in refused} == {"goto reject-chain"}


def test_comments_that_nft_hides_are_joined_by_handle() -> None:
    recorded = node("1.36.2-iptables-nft", "S1")
    rules = json_parser.parse(recorded.files["nft.json"]).ruleset
    assert {r.comment for r in rules.chain("ip", "nat", "PREROUTING")} == {""}
    rules = json_parser.parse(recorded.files["nft.json"], recorded.netlink_comments()).ruleset
    (first,) = rules.chain("ip", "nat", "PREROUTING")
    assert first.comment == "kubernetes service portals"
    assert first.text == 'comment "kubernetes service portals" jump KUBE-SERVICES'


def test_an_unknown_expression_is_named_by_its_kind() -> None:
    assert expression({"brand new": {"x": 1}}) == "brand new"
    assert operand({"brand new": {"x": 1}}) == "brand new"
    assert operand({"set": ["a", {"range": [1, 5]}]}) == "{ a, 1-5 }"
    assert expression({"reject": None}) == "reject"
    assert expression({"dnat": {"addr": "fd00::1", "port": 80}}) == "dnat to [fd00::1]:80"


def test_a_statement_that_nft_prints_as_text_is_kept_as_text() -> None:
    """nft warns "stmt ops map have no json callback" and puts the statement's text among the expressions."""
    rule = {"family": "ip", "table": "t", "chain": "c", "handle": 2}
    text = "update @m { ip saddr : tcp sport }"
    listed = json_parser.parse(
        json.dumps({"nftables": [{"rule": {**rule, "expr": [text, {"counter": None}, {"accept": None}]}}]})
    )
    (only,) = listed.ruleset.chain("ip", "t", "c")
    assert only.text == f"{text} accept" and only.target == "ACCEPT"
    assert listed.expressions["ip", "t", "c", 2][0] == {"text": text}


def test_an_element_that_is_written_to_a_set() -> None:
    update: JsonObject = {
        "op": "update",
        "elem": {"elem": {"val": {"payload": {"protocol": "ip", "field": "saddr"}}, "timeout": 9}},
    }
    assert expression({"set": {**update, "set": "@affinity"}}) == "update @affinity { ip saddr }"


def test_base_chains_sets_and_expressions() -> None:
    listed = json_parser.parse(S4.files["nft.json"])
    nat = next(b for b in listed.bases if b.key == ("ip", "kube-proxy", "nat-prerouting"))
    assert (nat.kind, nat.hook, nat.priority, nat.policy) == ("nat", "PREROUTING", -100, "ACCEPT")
    assert listed.sets["ip", "kube-proxy", "nodeport-ips"] == ("192.168.56.10",)
    (jump,) = listed.ruleset.chain("ip", "kube-proxy", "nat-prerouting")
    assert listed.expressions["ip", "kube-proxy", "nat-prerouting", jump.handle] == ({"jump": {"target": "services"}},)


CHAIN: dict[str, Any] = {"family": "ip", "table": "t", "name": "c", "type": "nat", "hook": "input", "prio": 0}
RULE: dict[str, Any] = {"family": "ip", "table": "t", "chain": "c", "handle": 2, "expr": []}


@pytest.mark.parametrize(
    "listed",
    [
        [], {}, {"nftables": None}, {"nftables": [1]}, {"nftables": [{"chain": {}, "rule": {}}]},
        {"nftables": [{"chain": None}]},
        {"nftables": [{"chain": {**CHAIN, "prio": "first"}}]}, {"nftables": [{"chain": {**CHAIN, "hook": ["input"]}}]},
        {"nftables": [{"rule": {**RULE, "expr": [None]}}]}, {"nftables": [{"rule": {**RULE, "expr": [{"jump": "c"}]}}]},
        {"nftables": [{"rule": {**RULE, "expr": [{"match": {"left": 1}}]}}]},
        {"nftables": [{"rule": {**RULE, "handle": None}}]},
        {"nftables": [{"map": {**CHAIN, "elem": [["a"]]}}]}, {"nftables": [{"set": {**CHAIN, "elem": 5}}]},
    ],
)  # fmt: skip
def test_a_listing_of_another_form_is_an_error(listed: Any) -> None:
    with pytest.raises(UnexpectedJson):
        json_parser.parse(json.dumps(listed))


def test_names_and_comments_that_are_numbers_are_kept_as_text() -> None:
    rule = {**RULE, "chain": 7, "comment": 5, "expr": [{"jump": {"target": 8}}]}
    (only,) = json_parser.parse(json.dumps({"nftables": [{"rule": rule}]})).ruleset.chain("ip", "t", "7")
    assert (only.text, only.target, only.comment) == ('jump 8 comment "5"', "8", "5")


def test_a_match_that_an_old_nft_does_not_describe() -> None:
    """Before 1.0.6 nft writes {"xt": null} for each match and target of iptables-nft."""
    rule = {**RULE, "comment": "why", "expr": [{"xt": None}, {"counter": None}, {"jump": {"target": "next"}}]}
    target = {**RULE, "handle": 3, "expr": [{"xt": None}]}
    listed = json_parser.parse(json.dumps({"nftables": [{"rule": rule}, {"rule": target}]}))
    first, second = listed.ruleset.chain("ip", "t", "c")
    assert (first.text, first.target) == ('xt jump next comment "why"', "next")
    assert (second.text, second.target) == ("xt", "")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"num": 101, "flags": "bypass"}, "queue flags bypass to 101"),
        ({"num": {"range": [1, 3]}, "flags": ["bypass", "fanout"]}, "queue flags bypass,fanout to 1-3"),
        (None, "queue"),
    ],
)
def test_a_queue_has_its_number(body: object, text: str) -> None:
    assert expression({"queue": body}) == text  # type: ignore[dict-item]
