# SPDX-License-Identifier: Apache-2.0
"""What is reported on this kernel, and with which evidence: the rows of docs/matrix.md. `make matrix` writes it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator

import pytest

from scenes import rules, topology, traffic
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.evidence import Evidence
from tracer.model.filter import Filter
from tracer.model.hop import (
    DropHop,
    HandshakeHop,
    Hop,
    RewriteHop,
    RuleHop,
    SocketHop,
    decision_of,
    is_from_conntrack,
    owner_of,
    trace_of,
    verdict_of,
)
from tracer.model.packet import Packet

pytestmark = pytest.mark.matrix

CLOSED_PORT = 9123
NFTABLES_RULES = f"""table ip shop {{
    chain services {{ type nat hook prerouting priority -100; tcp dport {traffic.NODEPORT_HTTP} goto web; }}
    chain web {{
        meta mark set mark or 0x4000
        meta l4proto tcp dnat to {topology.PODS[0].addr4}:8080 comment "default/http-proxy:http"; }}
    chain leave {{ type nat hook postrouting priority 100; meta mark and 0x4000 != 0 masquerade; }}
    chain enter {{ type filter hook input priority 0;
        tcp dport {traffic.NODEPORT_LONELY} reject comment "default/lonely-web:http has no endpoints"; }}
}}"""
NOT_AVAILABLE = "not available"


def _of_rule(hop: Hop) -> Evidence | None:
    """The evidence of the deciding rule, if its text is known."""
    decision = decision_of(hop) if trace_of(hop) and not is_from_conntrack(hop) else None
    return decision.evidence if decision and decision.rule and decision.rule.text else None


def _of_hop(has_detail: Callable[[Hop], object]) -> Callable[[Hop], Evidence | None]:
    """The evidence of a hop that has this detail."""
    return lambda hop: hop.evidence if has_detail(hop) else None


ROWS: dict[str, Callable[[Hop], Evidence | None]] = {
    "verdict of a table or chain": _of_hop(lambda h: isinstance(h, RuleHop)),
    "rule that translated": lambda h: _of_rule(h) if isinstance(h, RewriteHop) else None,
    "rule that rejected": lambda h: _of_rule(h) if verdict_of(h) == "REJECT" else None,
    "header before and after": _of_hop(lambda h: isinstance(h, RewriteHop)),
    "owner of the rule": lambda h: _of_rule(h) if owner_of(h) and isinstance(h, RewriteHop) else None,
    "listener, its queues, the SYN's verdict": _of_hop(lambda h: isinstance(h, HandshakeHop)),
    "process": _of_hop(lambda h: isinstance(h, SocketHop) and h.socket.pid),
    "function that dropped": _of_hop(lambda h: isinstance(h, DropHop) and h.drop.function),
    "the kernel's reason": _of_hop(lambda h: isinstance(h, DropHop) and h.drop.reason not in ("", "NOT_SPECIFIED")),
}
"""Each row of the table, and the evidence of a hop that has it."""


def known_rows(packets: Iterable[Packet]) -> dict[str, str]:
    """The evidence of each of ROWS: "observed", "derived", "observed or derived", or NOT_AVAILABLE."""
    hops = [hop for packet in packets for hop in packet.hops]
    found = {row: {evidence for hop in hops if (evidence := evidence_of(hop))} for row, evidence_of in ROWS.items()}
    return {row: " or ".join(e for e in Evidence if e in evidences) or NOT_AVAILABLE for row, evidences in found.items()}


@pytest.fixture
def backend(watch: Watch, request: pytest.FixtureRequest) -> Iterator[str]:
    rules.flush()
    if request.param == "nftables":
        subprocess.run(["nft", "-f", "-"], input=NFTABLES_RULES, text=True, check=True)
    else:
        rules.restore("http-proxy", "http-proxy-v6", backend="nft" if request.param == "iptables-nft" else "legacy")
    yield request.param
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")


@pytest.mark.parametrize("backend", ["legacy", "iptables-nft", "nftables"], indirect=True)
def test_what_is_reported(watch: Watch, backend: str, record_property: Callable[[str, object], None]) -> None:
    view = ClusterView(ObjectStore(), CniCache())
    with watch(Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY, CLOSED_PORT)), nft=backend != "legacy") as seen:
        assert traffic.http_get().outcome == "answered"
        assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"
        assert traffic.tcp_connect(topology.NODE4, CLOSED_PORT).outcome == "refused"
    packets = [attribute(p, view) for p in seen.packets]
    for packet in packets:
        print(packet.tcp_flags, packet.endpoints, packet.verdict, [hop_fields.undecided(h) for h in packet.hops if trace_of(h)])
    rows = known_rows(packets)
    record_property("reported", (backend, rows))
    assert all(p.complete for p in packets)
    missing = {row for row, evidence in rows.items() if evidence == NOT_AVAILABLE}
    assert missing <= {"the kernel's reason"} if watch.kernel.types.builtin_layouts else not missing, rows
    syns = {p.endpoints.dport: p.verdict for p in packets if p.tcp_flags == "SYN"}
    assert syns[traffic.NODEPORT_HTTP].startswith("SYN answered by pid ")
    assert syns[traffic.NODEPORT_LONELY].startswith("REJECTED in ") and "icmp-port-unreachable" in syns[traffic.NODEPORT_LONELY]


def test_probes(watch: Watch, record_property: Callable[[str, object], None]) -> None:
    """Where the kernel describes its modules every probe runs; where it does not, those of IPVS may be missing."""
    ways = {row.probe.shows: f"{row.way}{' *' if row.assumed else ''}" for row in watch.session.planned}
    refused = {row.probe.name: row.why for row in watch.session.refused}
    record_property("probes", ways)
    record_property("refused", {row.probe.shows: row.why for row in watch.session.refused})
    record_property("release", watch.kernel.release)
    record_property("started", [watch.session.compile_seconds, watch.session.attach_seconds])
    record_property("watched", len(watch.session.watched))
    assert all(name.startswith("ipvs_") for name in refused) if watch.kernel.types.builtin_layouts else not refused, refused
