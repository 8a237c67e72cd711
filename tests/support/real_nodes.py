# SPDX-License-Identifier: Apache-2.0
"""The state of a node of a real control plane: kube-proxy 1.20.2 that was switched from iptables to ipvs mode, with portmap's
rules before its own.

tests/data/real has the output of iptables-nft-save and the API's objects; IPVS and its sets are as kube-proxy made them from
these objects.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.support import audits
from tests.support.audits import FakeRoutes
from tests.support.findings import FakeNode
from tracer.audit.state import NodeState
from tracer.kube.catalog import ClusterView
from tracer.kube.store import ObjectStore
from tracer.node.routes import NetworkDevice

DATA = Path(__file__).parents[1] / "data" / "real"
NODE, CLIENT = "10.77.0.7", "10.77.0.1"
LINKS = (
    NetworkDevice("lo", "", ("127.0.0.0/8",)), NetworkDevice("ens5", "", ("10.77.0.0/24",)),
    NetworkDevice("cni0", "bridge", ("10.60.7.0/24",), 9),
    NetworkDevice("flannel.1", "vxlan"), NetworkDevice("kube-ipvs0", "dummy"),
)  # fmt: skip


def text(name: str) -> str:
    return lzma.decompress((DATA / f"{name}.xz").read_bytes()).decode()


def cluster_view(ready: bool = False) -> ClusterView:
    """The cluster view. ready: count pods as ready that are not ready in the recorded objects."""
    store, objects = ObjectStore("worker-7"), text("objects.json")
    store.load(json.loads(objects.replace('"ready":false', '"ready":true') if ready else objects)["items"])
    return ClusterView(store, local=frozenset({NODE, "127.0.0.1", "10.60.7.1"}))


def servers(of: ClusterView) -> str:
    """kube-proxy's virtual servers for these objects, in the format of `ipvsadm --save -n`."""
    lines = []
    for port in of.store.services.values():
        ends = [e for e in of.store.endpoints.all((port.label, port.protocol)) if e.ready]
        # With policy Local: only endpoints on this node.
        mine = [e for e in ends if e.address.startswith("10.60.7.")] if port.local else ends
        doors = [(a, port.port, ends) for a in port.cluster_ips] + ([(NODE, port.node_port, mine)] if port.node_port else [])
        for address, number, behind in doors:
            server = f"-{port.protocol[0]} {address}:{number}"
            lines += [f"-A {server} -s rr", *(f"-a {server} -r {e.address}:{e.port} -m -w 1" for e in behind)]
    return "".join(f"{line}\n" for line in lines)


def sets(of: ClusterView) -> str:
    """kube-proxy's sets for these objects, in the format of `ipset save`."""
    lines = [f"create KUBE-{name} hash:ip,port" for name in ("CLUSTER-IP", "EXTERNAL-IP")]
    lines.append("create KUBE-LOOP-BACK hash:ip,port,ip")
    lines += [f"create KUBE-NODE-PORT{local}-{p} bitmap:port" for local in ("", "-LOCAL") for p in ("TCP", "UDP")]
    for port in of.store.services.values():
        lines += [f"add KUBE-CLUSTER-IP {a},{port.protocol}:{port.port}" for a in port.cluster_ips]
        kinds = ("", "-LOCAL") if port.local else ("",)
        lines += [f"add KUBE-NODE-PORT{k}-{port.protocol.upper()} {port.node_port}" for k in kinds if port.node_port]
    return "".join(f"{line}\n" for line in lines)


def switched_to_ipvs(
    listeners: Mapping[tuple[int, str], object] | None = None, rules: str = "", ready: bool = False
) -> NodeState:
    """The node after the switch. listeners: as in FakeNode. rules: used instead of the recorded rules. ready: as in known()."""
    of = cluster_view(ready)
    node: FakeNode = replace(audits.healthy(), listeners=dict(listeners or {}))  # type: ignore[arg-type]
    state = audits.of_text(rules or text("ipvs-iptables-save"), of, node, "nft", sets(of), servers(of))
    cluster = {a for p in of.store.services.values() for a in p.cluster_ips}
    gateways = {"10.60.8.0/24": ("10.60.8.0", "flannel.1"), "0.0.0.0/0": (CLIENT, "ens5")}
    local = frozenset({NODE, "10.60.7.1"} | cluster)
    return replace(state, routes=_Routes(LINKS, gateways, local))


class _Routes(FakeRoutes):
    """Prefers connected networks to the default route."""

    def to(self, address: str, source: str = "", arrives: str = "", mark: int = 0):  # type: ignore[no-untyped-def]
        found = super().to(address, source, arrives, mark)
        if found.gateway == CLIENT and found.kind == "unicast":
            narrow = FakeRoutes(self.connected, {n: g for n, g in self.gateways.items() if n != "0.0.0.0/0"}, self.local)
            near = narrow.to(address, source, arrives, mark)
            if near.out != "eth0":
                return replace(near, source=near.source if near.kind == "local" or near.out == "cni0" else NODE)
        return replace(found, source=NODE) if found.kind == "unicast" else found
