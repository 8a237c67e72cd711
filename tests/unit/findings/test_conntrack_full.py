# SPDX-License-Identifier: Apache-2.0
"""A full conntrack table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import findings as f
from tests.support.syns import decision_detail
from tracer.findings.conntrack_full import COUNT, LIMIT
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, HookHop, TableHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Packet

ENDS = Endpoints(f.CLIENT, 40000, "192.168.56.10", 30285)


def packet(hook: Hook = Hook.PREROUTING) -> Packet:
    dropped = DropHop(1, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow"))
    return f.packet([HookHop(0, HOST, hook, verdict=Verdict.DROP), dropped], ENDS)


def found(made: Packet, count: str = "65536", limit: str = "65536") -> list[Finding]:
    return f.findings_of(
        [made], ClusterView(), f.FakeNode(settings={COUNT.name: count, LIMIT.name: limit}, conntrack={"drop": 3})
    )[1]


def test_full() -> None:
    (finding,) = found(packet())
    assert finding.certain and finding.cause.startswith("The conntrack table is full (65536 entries, 65536 are allowed)")
    assert f.proofs(finding, "counter") == ["of conntrack, since boot: drop 3 (/proc/net/stat/nf_conntrack)"]
    assert "nf_conntrack_max=131072" in finding.cure


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [("12", "6", " (12 entries, 6 are allowed)"), ("3", "6", ":"), ("", "", ":")],
)
def test_a_failed_eviction_in_the_kernel_is_certain(count: str, limit: str, expected: str) -> None:
    """Certain, whatever the numbers are a moment later. The packet has no hook: it was not tracked before it was dropped."""
    hops = [decision_detail("table-full", 0, HOST), DropHop(1, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow"))]
    (finding,) = found(replace(f.packet(hops, ENDS), complete=False), count, limit)
    assert finding.certain and finding.cause.startswith("The conntrack table is full" + expected)
    figures = [f"nf_conntrack_count = {count}, nf_conntrack_max = {limit}, read after the packet (/proc/sys)"] if limit else []
    assert f.proofs(finding, "setting") == figures
    assert "conntrack found no entry that it could evict for this one (early_drop) (observed)" in f.proofs(finding, "packet")


@pytest.mark.parametrize(("count", "limit"), [("100", "65536"), ("", ""), ("5", "x")])
def test_not_full_or_not_known(count: str, limit: str) -> None:
    assert found(packet(), count, limit) == []


def test_a_drop_elsewhere_by_a_table_or_of_a_connection_is_no_finding() -> None:
    assert found(packet(Hook.FORWARD)) == []
    by_raw = packet()
    by_raw = replace(by_raw, hops=(TableHop(0, HOST, Hook.PREROUTING, table="raw", verdict=Verdict.DROP), *by_raw.hops))
    assert found(by_raw) == []
    assert found(replace(packet(), flow=Flow(ENDS, ENDS.reversed, "NEW", False, 0))) == []
    assert found(replace(packet(), complete=False)) == []
