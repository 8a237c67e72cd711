# SPDX-License-Identifier: Apache-2.0
"""Variations of the incidents: the same for one seed, of every kind, with rules that match the API objects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vagrant"))

from incidents import varied
from incidents.proxy import iptables, ipvs
from incidents.variations import BACKENDS, FINDINGS, variations
from scenes.topology import NODE4
from tests.support import audits
from tests.support import findings as f
from tracer.audit import audit
from tracer.audit.state import NodeState
from tracer.findings import finders, syn_finders
from tracer.findings.context import FindingContext
from tracer.kube.catalog import ClusterView
from tracer.kube.owners import owner_of
from tracer.kube.store import ObjectStore
from tracer.rules import save_parser

NUMBERS = sorted(FINDINGS)


@pytest.mark.parametrize("incident", NUMBERS)
def test_ten_variations_of_each_incident(incident: int) -> None:
    ten = list(variations(incident))
    assert ten == list(variations(incident)) and ten != list(variations(incident, seed=2)) and len(ten) == 10
    assert FINDINGS[incident] in {name for name, _ in (*finders(), *syn_finders())}
    assert {v.backend for v in ten} == set(BACKENDS) - ({"native"} if incident == 3 else set())
    assert any(v.busy for v in ten) and sum(v.healthy for v in ten) == 2 and all(v.expected == 0 for v in ten if v.healthy)
    assert {v.family for v in ten} == {4, 6}
    assert len({v.services[0].name for v in ten}) == 10 and len({v.services[0].node_port for v in ten}) >= 9
    for v in ten:
        ports = [s.node_port for s in (*v.services, v.beside)]
        assert len(set(ports)) == len(ports) and all(30000 <= p < 32768 for p in ports)
    if incident in (1, 4, 5):
        assert any(v.expected == 2 for v in ten), "two faults at once"


@pytest.mark.parametrize("incident", NUMBERS)
def test_each_rule_is_attributed_to_its_service(incident: int) -> None:
    for v in variations(incident):
        every = (*v.services, v.beside)
        store = ObjectStore("node-1")
        store.load(varied.objects_of(v))
        known = ClusterView(store)
        rules = save_parser.parse(iptables.rules(every, v.host_ports, first=v.first), "ip6" if v.family == 6 else "ip")
        labels = {s.label for s in every}
        for (_, _, chain), found in rules.chains.items():
            for rule in found if chain.startswith(("KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-")) else ():
                assert owner_of(rule, rules, known).label in labels, rule
        for host in v.host_ports:
            (rule,) = [
                r for r in rules.chain("ip6" if v.family == 6 else "ip", "nat", "CNI-HOSTPORT-DNAT") if str(host.port) in r.text
            ]
            assert owner_of(rule, rules, known).label == f"default/host-{host.port}"


def test_the_audit_finds_the_hostports_of_variations_and_none_in_their_twins() -> None:
    for v in variations(5):
        every = (*v.services, v.beside)
        store = ObjectStore("node-1")
        store.load(varied.objects_of(v))
        in_ipvs = v.backend == "ipvs"
        text = ipvs.rules(every, v.host_ports, first=v.first) if in_ipvs else iptables.rules(every, v.host_ports, first=v.first)
        addresses = {s.address: "kube-ipvs0" for s in every if in_ipvs}
        more = (ipvs.sets(every), ipvs.virtual_servers(every, NODE4)) if in_ipvs else ("", "")
        state = audits.of_text(text, ClusterView(store), f.FakeNode(interfaces=addresses), "legacy", *more)
        assert isinstance(state, NodeState) and isinstance(state.context, FindingContext)
        assert len([found for found in audit(state) if found.name == v.finding]) == v.expected, v.text
