# SPDX-License-Identifier: Apache-2.0
"""Session affinity: each endpoint has one or two paths with short conditions, and no impossible path."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tracer.model.hop import RewriteHop

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents.proxy import iptables
from incidents.proxy.model import Service
from tests.support import audits, real_nodes
from tests.support.audits import CLIENT, NODE
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.model.prediction import PredictedPath
from tracer.predict.ipsets import IpSetReader
from tracer.predict.query import PathQuery
from tracer.rules.inventory import RuleInventory
from tracer.rules.nftables import json_parser

ENDS = tuple((f"10.244.0.{n}", 8080) for n in (11, 12, 13))


def predict(ends: int, sets: IpSetReader | None = None) -> list[PredictedPath]:
    service = Service("shop/checkout", "172.30.5.109", 443, 31222, ENDS[:ends], "tls", affinity=True)
    predictor = audits.path_predictor(audits.of_text(iptables.rules([service])))
    predictor.sets = sets or predictor.sets
    return predictor.predict(PathQuery(CLIENT, 0, NODE, 31222))


def target(predicted: PredictedPath) -> str:
    return next(h.nat.after.dst for h in predicted.packet.hops if isinstance(h, RewriteHop) and h.nat.kind == "DNAT")


@pytest.mark.parametrize("ends", [2, 3])
def test_a_client_that_may_be_remembered(ends: int) -> None:
    found = predict(ends)
    assert len(found) == 2 * ends, "the client is remembered there, or the endpoint is chosen by chance"
    assert {s.packet.outcome for s in found} == {"forwarded"}, "no packet is delivered on this node"
    for path in found:
        assert all(len(d) < 120 and "--rcheck --name KUBE-SEP-" in d for d in path.conditions), path.conditions
        assert len({d.partition(" is ")[0] for d in path.conditions}) == len(path.conditions), "each list appears once"
    by_chance = [s for s in found if s.share != 1]
    assert sorted(map(target, by_chance)) == [a for a, _ in ENDS[:ends]] and {s.share for s in by_chance} == {Fraction(1, ends)}
    assert all(" is false in " in d for s in by_chance for d in s.conditions) and len(by_chance[0].conditions) == ends


def test_one_endpoint_has_no_condition() -> None:
    (path,) = predict(1)
    assert not path.conditions and target(path) == "10.244.0.11"
    (note,) = path.notes
    assert "KUBE-SVC-" in note and "is false in rule" in note, "the note names the other rule with the same result"


def test_a_client_in_no_list_gets_an_endpoint_by_chance(tmp_path: Path) -> None:
    (tmp_path / "xt_recent").mkdir()
    service = Service("shop/checkout", "172.30.5.109", 443, 31222, ENDS[:2], "tls", affinity=True)
    names = {w.split(" ")[0] for w in iptables.rules([service]).split("--name ")[1:]}
    for name in names:
        (tmp_path / "xt_recent" / name).write_text("src=192.168.56.7 ttl: 64 last_seen: 4295 oldest_pkt: 1 4295\n")
    found = predict(2, IpSetReader(tmp_path))
    assert [(s.share, s.conditions) for s in found] == [(Fraction(1, 2), ())] * 2
    for name in names:
        (tmp_path / "xt_recent" / name).write_text(f"src={CLIENT} ttl: 64 last_seen: 4295 oldest_pkt: 1 4295\n")
    assert len(predict(2, IpSetReader(tmp_path))) == 4, "it is in the lists, perhaps for too long"


def test_in_nftables_the_update_of_a_set_always_holds() -> None:
    place = {"family": "ip", "table": "kube-proxy"}
    base = {**place, "name": "nat-prerouting", "handle": 1, "type": "nat", "hook": "prerouting", "prio": -100}
    update = {"set": {"op": "update", "elem": {"payload": {"protocol": "ip", "field": "saddr"}}, "set": "@affinity"}}
    dnat = {"dnat": {"addr": "10.244.0.11", "port": 8080}}
    listed: list[Any] = [{"chain": base}, {"rule": {**place, "chain": "nat-prerouting", "handle": 2, "expr": [update]}},
                         {"rule": {**place, "chain": "nat-prerouting", "handle": 3, "expr": [dnat]}}]  # fmt: skip
    installed = RuleInventory(nft=json_parser.parse(json.dumps({"nftables": listed})))
    (path,) = audits.path_predictor(NodeState(FindingContext(), installed, audits.FakeRoutes())).predict(
        PathQuery(CLIENT, 0, NODE, 31222)
    )
    assert not path.conditions and target(path) == "10.244.0.11"


STATEMENTS = [
    # As nft 1.0.6 prints them with -j; the first has "no json callback" there, so nft prints it as text among the expressions.
    "update @ports { ip saddr : tcp sport }", {"ct helper": "ftp"}, {"dup": {"addr": "10.0.0.1"}},
    {"set": {"op": "delete", "elem": {"payload": {"protocol": "ip", "field": "saddr"}}, "set": "@seen"}}, {"last": None},
    {"map": {"op": "update", "elem": "10.0.0.1", "data": 80, "map": "@ports"}}, {"ct timeout": "long"},
]  # fmt: skip


@pytest.mark.parametrize("statement", STATEMENTS, ids=str)
def test_a_statement_that_always_goes_on_is_no_condition(statement: Any) -> None:
    place = {"family": "ip", "table": "t", "chain": "in"}
    base = {"family": "ip", "table": "t", "name": "in", "handle": 1, "type": "filter", "hook": "prerouting", "prio": 0}
    rule = {**place, "handle": 2, "expr": [statement, {"drop": None}]}
    listed = {"nftables": [{"chain": base}, {"rule": rule}]}
    installed = RuleInventory(nft=json_parser.parse(json.dumps(listed)))
    (path,) = audits.path_predictor(NodeState(FindingContext(), installed, audits.FakeRoutes())).predict(
        PathQuery(CLIENT, 0, NODE, 80)
    )
    assert not path.conditions and path.packet.outcome == "dropped"


def test_a_statement_in_unknown_text_is_a_condition() -> None:
    place = {"family": "ip", "table": "t", "chain": "in"}
    base = {"family": "ip", "table": "t", "name": "in", "handle": 1, "type": "filter", "hook": "prerouting", "prio": 0}
    rule = {**place, "handle": 2, "expr": ["brand new 5", {"drop": None}]}
    installed = RuleInventory(nft=json_parser.parse(json.dumps({"nftables": [{"chain": base}, {"rule": rule}]})))
    found = audits.path_predictor(NodeState(FindingContext(), installed, audits.FakeRoutes())).predict(
        PathQuery(CLIENT, 0, NODE, 80)
    )
    assert sorted(s.conditions for s in found) == [(f"brand new 5 is {value} in rule 1 of in",) for value in ("false", "true")]


def test_physdev_is_decided_by_an_interface_that_is_no_bridge() -> None:
    rule = "-A PREROUTING -d 192.168.56.10/32 -m physdev ! --physdev-is-in -j DNAT --to-destination 10.244.0.11:80"
    text = f"*nat\n:PREROUTING ACCEPT [0:0]\n{rule}\nCOMMIT\n"
    predictor = audits.path_predictor(audits.of_text(text))
    (path,) = predictor.predict(PathQuery(CLIENT, 0, NODE, 80))
    assert not path.conditions and target(path) == "10.244.0.11"
    (from_pod,) = predictor.predict(PathQuery("10.244.0.12", 0, NODE, 80))
    assert not from_pod.conditions and from_pod.packet.outcome == "refused", (
        "it came in by a bridge port, and iptables sees that"
    )
    predictor.node.settings["net/bridge/bridge-nf-call-iptables"] = "0"  # type: ignore[attr-defined]
    (unseen_by_iptables,) = predictor.predict(PathQuery("10.244.0.12", 0, NODE, 80))
    assert not unseen_by_iptables.conditions and target(unseen_by_iptables) == "10.244.0.11", (
        "bridged packets do not come to iptables there"
    )


@pytest.mark.parametrize(
    ("option", "source", "dest", "outcomes"),
    [
        ("--physdev-is-in", "10.244.0.12", "192.168.9.9", {"dropped"}),
        ("--physdev-is-in", CLIENT, "10.244.0.11", {"forwarded"}),
        ("--physdev-is-out", CLIENT, "10.244.0.11", {"forwarded"}),
        ("--physdev-is-bridged", "10.244.0.12", "192.168.9.9", {"forwarded"}),
        ("--physdev-is-out", "10.244.0.12", "10.244.0.11", {"dropped", "forwarded"}),
        ("--physdev-in veth-a", CLIENT, "10.244.0.11", {"forwarded"}),
        ("--physdev-in veth-a", "10.244.0.12", "192.168.9.9", {"dropped", "forwarded"}),
    ],
)
def test_physdev_in_forward(option: str, source: str, dest: str, outcomes: set[str]) -> None:
    """A routed packet has an input port if it came in by a bridge, and it has no output port."""
    text = f"*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m physdev {option} -j DROP\nCOMMIT\n"
    found = audits.path_predictor(audits.of_text(text)).predict(PathQuery(source, 0, dest, 80))
    assert {s.packet.outcome for s in found} == outcomes and all(bool(s.conditions) == (len(outcomes) > 1) for s in found)


def test_the_recorded_node() -> None:
    """The rules of kube-proxy 1.20 for session affinity, with the jump to them put back."""
    text = real_nodes.text("ipvs-iptables-save")
    jump = "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"
    text = text.replace(jump, "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")
    state = real_nodes.switched_to_ipvs(rules=text)
    (path,) = state.predictor.predict(PathQuery(real_nodes.CLIENT, 0, real_nodes.NODE, 30777, "udp"))
    assert not path.conditions and target(path) == "10.60.7.4" and len(path.twins) == 1
