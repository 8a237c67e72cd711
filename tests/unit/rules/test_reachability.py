# SPDX-License-Identifier: Apache-2.0
"""The rules that a packet can reach from the base chains."""

from __future__ import annotations

import pytest

from tests.support import audits
from tests.support.nodes import MODES, node
from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules import save_parser
from tracer.rules.nftables.json_parser import NftListing
from tracer.rules.reachability import Reachability
from tracer.util.json_value import JsonObject

TABLE = """*nat
:PREROUTING ACCEPT [0:0]
:A - [0:0]
:B - [0:0]
:C - [0:0]
:D - [0:0]
:E - [0:0]
-A PREROUTING -p tcp -j A
-A PREROUTING -j RETURN
-A PREROUTING -j E
-A A -g B
-A A -j C
-A B -j RETURN
-A C -j D
-A D -j C
COMMIT
"""


def test_jumps_gotos_and_ends() -> None:
    rules = save_parser.parse(TABLE)
    reach = Reachability(rules)
    assert {chain for _, _, chain in reach.chains} == {"PREROUTING", "A", "B"}
    assert [r.text for r in reach.acting(("ip", "nat", "PREROUTING"))] == ["-p tcp -j A", "-j RETURN"]
    assert [r.text for r in reach.acting(("ip", "nat", "A"))] == ["-g B"], "a goto does not return"
    assert reach.acting(("ip", "nat", "C")) == (), "C and D jump to each other, and no reachable rule jumps to them"
    assert not reach.acts(rules.chain("ip", "nat", "D")[0]) and reach.acts(rules.chain("ip", "nat", "B")[0])


@pytest.mark.parametrize("mode", [m for m in MODES if "nftables" in m])
def test_verdict_maps(mode: str) -> None:
    listed = audits.recorded(node(mode, "S2-three")).nft
    assert listed
    reach = Reachability(listed.ruleset, listed)
    chains = {chain for _, table, chain in reach.chains if table == "kube-proxy"}
    assert any(c.startswith("external-") for c in chains) and any(c.startswith("service-") for c in chains)
    assert ("ip", "kube-proxy", "service-nodeports") in reach.maps
    all_chains = {chain for _, table, chain in listed.ruleset.chains if table == "kube-proxy"}
    assert not any(c.startswith("service-") for c in all_chains - chains), (
        "kube-proxy leaves no service chain that is unreachable"
    )


@pytest.mark.parametrize(
    "leads",
    [
        {"vmap": {"key": {"meta": {"key": "mark"}}, "data": {"unknown": "elements (they were not read)"}}},
        {"vmap": {"key": {"meta": {"key": "mark"}}, "data": "@not-read"}},
        {"unknown": "verdict 77"},
    ],
    ids=["unnamed map", "named map", "expression"],
)
def test_what_is_unknown_may_lead_to_any_chain_of_its_table(leads: JsonObject) -> None:
    key = ("ip", "t", "in")
    rule = Rule(*key, 1, "", handle=5)
    chains: dict[ChainKey, tuple[Rule, ...]] = {key: (rule,), ("ip", "t", "x"): (), ("ip", "other", "y"): ()}
    ruleset = Ruleset("nft", 0, "1", chains, {key: "ACCEPT"})
    reach = Reachability(ruleset, NftListing(ruleset, expressions={(*key, 5): (leads,)}))
    assert reach.chains == {key, ("ip", "t", "x")}
