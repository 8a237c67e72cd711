# SPDX-License-Identifier: Apache-2.0
"""Predictions on recorded nodes: a request to each Service, NodePort and hostPort ends in rules of that owner only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits, hop_fields
from tests.support.audits import CLIENT, NODE
from tests.support.nodes import MODES, Node, node, owners
from tracer.kube.attribution import attribute_path
from tracer.kube.catalog import ClusterView
from tracer.model.hop import RewriteHop, trace_of
from tracer.model.prediction import PredictedPath
from tracer.predict.ipvs import VirtualServers
from tracer.predict.query import PathQuery
from tracer.rules import save_parser
from tracer.rules.inventory import RuleInventory
from tracer.rules.nftables import json_parser

RULESETS = Path(__file__).resolve().parents[3] / "vagrant/incidents/rulesets"
SCENARIOS = ("S1", "S2-one", "S2-three", "S3", "S4", "S5")
IPTABLES = [m for m in MODES if "ipvs" not in m]


def entry_points(this_node: Node) -> Iterator[tuple[str, str, int, str, int]]:
    """(owner's label, address, port, source address, endpoints) of each address and port that takes TCP requests."""
    slices = {(o["metadata"]["namespace"], o["metadata"].get("labels", {}).get("kubernetes.io/service-name")): o
              for o in this_node.objects if o["kind"] == "EndpointSlice"}  # fmt: skip
    for service in (o for o in this_node.objects if o["kind"] == "Service"):
        meta, spec = service["metadata"], service["spec"]
        slice_endpoints = slices.get((meta["namespace"], meta["name"]), {}).get("endpoints") or []
        for port in spec.get("ports", []):
            label = f"{meta['namespace']}/{meta['name']}" + (f":{port['name']}" if port.get("name") else "")
            if port.get("nodePort"):
                local = spec.get("externalTrafficPolicy") == "Local"
                yield label, NODE, port["nodePort"], CLIENT, 0 if local else len(slice_endpoints)
            yield label, spec["clusterIP"], port["port"], NODE, len(slice_endpoints)
    for pod in (o for o in this_node.objects if o["kind"] == "Pod"):
        for port in (p for c in pod["spec"]["containers"] for p in c.get("ports", []) if p.get("hostPort")):
            yield f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", NODE, port["hostPort"], CLIENT, 1


def predicted_paths(this_node: Node, query: PathQuery, folder: Path) -> tuple[list[PredictedPath], ClusterView]:
    state = audits.state(this_node, folder)
    found = audits.path_predictor(state).predict(query)
    return [attribute_path(each, state.cluster) for each in found], state.cluster


def targets(found: list[PredictedPath]) -> set[str]:
    """Destinations after DNAT, on all paths."""
    return {h.nat.after.dst for s in found for h in s.packet.hops if isinstance(h, RewriteHop) and h.nat.kind == "DNAT"}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("mode", IPTABLES)
def test_each_entry_point_has_its_owner(mode: str, scenario: str, tmp_path: Path) -> None:
    this_node = node(mode, scenario)
    all_entry_points = list(entry_points(this_node))
    labels = {label for label, *_ in all_entry_points}
    assert all_entry_points
    for label, address, port, source, endpoints in all_entry_points:
        found, _ = predicted_paths(this_node, PathQuery(source, 0, address, port), tmp_path)
        assert sum(s.share for s in found if s.conditions == found[0].conditions) == 1, "the shares cover all connections"
        for predicted in found:
            found_owners = owners(predicted.packet, labels)
            assert found_owners == {label} or (not found_owners and label == "default/kubernetes:https"), (label, address, port)
        certain = [s for s in found if s.conditions == found[0].conditions]
        assert len(targets(certain)) == endpoints == (len(certain) if endpoints else 0), (label, address, port, targets(found))
        if not endpoints:
            assert {s.packet.outcome for s in found} == {"dropped" if scenario == "S4" else "rejected"}, (label, address)


@pytest.mark.parametrize("mode", IPTABLES)
def test_a_hostport_and_a_nodeport_on_one_port(mode: str, tmp_path: Path) -> None:
    found, _ = predicted_paths(node(mode, "S5-nodeport"), PathQuery(CLIENT, 0, NODE, 30306), tmp_path)
    if "nftables" in mode:
        assert sorted(t.rpartition(".")[0] for t in targets(found)) == ["10.224.0", "10.244.0"] and len(found) == 2
        assert all("runs first" in s.conditions[0] for s in found), "which chain was registered last is not known"
    else:
        assert targets(found) == {"10.244.0.11"} and not found[0].conditions, "kube-proxy's jump comes first"


def test_two_back_ends_with_the_same_services(tmp_path: Path) -> None:
    """The order of registration in PREROUTING and POSTROUTING does not matter: the paths are the same and are shown once."""
    state = audits.state(node("1.36.2-iptables-legacy", "S2-three"), tmp_path)
    other = audits.recorded(node("1.20.2-iptables-nft", "S2-three"))
    both = replace(state, installed=replace(state.installed, nft=other.nft, saved=other.saved))
    found = audits.path_predictor(both).predict(PathQuery(CLIENT, 0, NODE, 30285))
    assert [s.conditions for s in found] == [()] * 3 and len(targets(found)) == 3
    for predicted in found:
        post, pre = sorted(predicted.notes)
        assert pre.startswith("the same by ip nat PREROUTING 1 > KUBE-SERVICES") and "POSTROUTING" not in pre
        assert post.startswith("the same by ip nat POSTROUTING 1 >") and " if in POSTROUTING ip nat was registered" in post


@pytest.mark.parametrize(("scenario", "port", "end"), [("S1", 30584, "REJECTED"), ("S4", 30420, "DROPPED")])
def test_two_back_ends_that_refuse_in_the_same_way(scenario: str, port: int, end: str, tmp_path: Path) -> None:
    """The client gets the same answer from either filter table in INPUT: one path, and a note."""
    state = audits.state(node("1.36.2-iptables-legacy", scenario), tmp_path)
    other = audits.recorded(node("1.20.2-iptables-nft", scenario))
    both = replace(state, installed=replace(state.installed, nft=other.nft, saved=other.saved))
    (predicted,) = audits.path_predictor(both).predict(PathQuery(CLIENT, 0, NODE, port))
    assert not predicted.conditions and predicted.packet.verdict.startswith(f"{end} in filter/INPUT")
    (note,) = predicted.notes
    assert note.startswith("the same by ip filter INPUT ") and " if in INPUT ip filter was registered after" in note
    found_owners = {each.packet.verdict.partition(" with")[0] for each in predicted.with_twins()}
    assert found_owners == {f"{end} in filter/INPUT", f"{end} in ip filter/INPUT"}


def test_two_back_ends_that_refuse_differently(tmp_path: Path) -> None:
    """One rejects and one drops: that is a difference."""
    rule = "-A INPUT -p tcp -m tcp --dport 80 -j"
    text = "*filter\n:INPUT ACCEPT [0:0]\n{} {}\nCOMMIT\n"
    legacy = audits.of_text(text.format(rule, "REJECT --reject-with tcp-reset"))
    nft = save_parser.parse(text.format(rule, "DROP"), "ip", "nft")
    both = RuleInventory(legacy.installed.legacy, json_parser.NftListing(nft), frozenset({("ip", "filter")}))
    found = audits.path_predictor(replace(legacy, installed=both)).predict(PathQuery(CLIENT, 0, NODE, 80))
    assert {s.packet.outcome for s in found} == {"rejected", "dropped"} and all(len(s.conditions) == 1 for s in found)


def test_a_pods_request_to_itself_through_its_service_is_masqueraded(tmp_path: Path) -> None:
    query = PathQuery("10.244.0.11", 0, "172.30.253.123", 8080)
    for mode in IPTABLES:
        ((predicted,), _) = predicted_paths(node(mode, "S2-one"), query, tmp_path)
        kinds = [h.nat.kind for h in predicted.packet.hops if isinstance(h, RewriteHop)]
        assert kinds == ["DNAT", "MASQUERADE"] and predicted.packet.verdict == "forwarded to cni0", mode


@pytest.mark.parametrize(("name", "kinds"), [("canal-stale", ["DNAT"]), ("canal", ["DNAT", "MASQUERADE"])])
def test_a_stale_return_keeps_the_nodes_address(name: str, kinds: list[str]) -> None:
    state = audits.of_text((RULESETS / f"{name}.rules").read_text())
    routes = audits.FakeRoutes(gateways={"192.168.66.0/24": ("192.168.66.0", "flannel.1")})
    found = audits.path_predictor(replace(state, routes=routes)).predict(PathQuery(NODE, 0, "172.30.253.123", 8080))
    first = found[0]
    open_set = "-m set --match-set cali40masq-ipam-pools src is false in rule 1 of cali-nat-outgoing"
    assert first.conditions == ((open_set,) if name == "canal-stale" else ()), "either of them masquerades"
    assert [h.nat.kind for h in first.packet.hops if isinstance(h, RewriteHop)] == kinds
    assert first.packet.verdict == "sent to flannel.1"
    translating = [h for h in first.packet.hops if h.hook == "POSTROUTING" and hop_fields.table(h) == "nat"]
    hits = next(hop_fields.hits(h) for h in translating if trace_of(h))
    returned = [v.rule.text for v in hits if v.rule and v.verdict == "RETURN" and "192.168.66.0/24" in v.rule.text]
    assert bool(returned) == (name == "canal-stale")


def test_the_outcome_behind_ipvs_is_unknown(tmp_path: Path) -> None:
    state = audits.state(node("1.20.2-ipvs-nft", "S2-one"), tmp_path)
    (tmp_path / "ip_vs").write_text("IP Virtual Server version 1.2.1\nTCP  C0A8380A:764D rr \n  -> 0AF4000B:1F90 Masq 1 0 0\n")
    found = audits.path_predictor(state, node("1.20.2-ipvs-nft", "S2-one"), VirtualServers(tmp_path)).predict(
        PathQuery(CLIENT, 0, NODE, 30285)
    )
    assert {s.packet.outcome for s in found} == {"unknown"} and not found[0].conditions, "its sets are known"
    assert all("by IPVS, virtual server 192.168.56.10:30285" in s.packet.verdict for s in found)
