# SPDX-License-Identifier: Apache-2.0
"""Two datagrams of one flow at the same time."""

from __future__ import annotations

from dataclasses import replace

from tests.support import findings as f
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.hop import Drop, DropHop, HookHop, Hop, Nat, NatHop, TableHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet

ENDS = Endpoints("10.244.0.11", 40000, "172.30.0.10", 53)
TO = Endpoints("10.244.0.11", 40000, "10.244.0.12", 53)


def packet(hook: Hook = Hook.POSTROUTING, protocol: str = "UDP", lost: bool = True) -> Packet:
    hops: list[Hop] = [
        NatHop(0, HOST, Hook.PREROUTING, nat=Nat("DNAT", ENDS, TO)),
        HookHop(1, HOST, hook, verdict=Verdict.DROP if lost else Verdict.ACCEPT),
    ]
    if lost:
        hops.append(DropHop(2, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow")))
    return f.packet(hops, ENDS, protocol=protocol)


def test_the_counter_makes_it_certain() -> None:
    on = f.FakeNode(conntrack={"insert_failed": 4})
    findings = Findings(FindingContext(ClusterView(), on))
    assert findings.look(packet(lost=False)) == []
    on.conntrack = {"insert_failed": 5}
    (finding,) = findings.look(packet())
    assert finding.certain and finding.cause.startswith("Two datagrams from 10.244.0.11:40000 to 172.30.0.10:53 arrived at")
    assert f.proofs(finding, "counter") == ["insert_failed of conntrack is 5, it was 4 (/proc/net/stat/nf_conntrack)"]


def test_without_the_counter_it_is_only_likely() -> None:
    certain, every = f.findings_of([packet()], ClusterView(), f.FakeNode())
    assert certain == [] and [x.certain for x in every] == [False] and "Most likely two datagrams" in every[0].cause


def test_other_drops_are_no_finding() -> None:
    by_rule = packet()
    by_table = TableHop(0, HOST, Hook.POSTROUTING, table="mangle", verdict=Verdict.DROP)
    by_rule = replace(by_rule, hops=(by_rule.hops[0], by_table, *by_rule.hops[1:]))
    for made in (packet(protocol="TCP"), packet(Hook.FORWARD), packet(lost=False), by_rule):
        assert [x for x in f.findings_of([made], ClusterView(), f.FakeNode())[1] if x.name == "udp_insert_race"] == []
