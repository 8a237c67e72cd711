# SPDX-License-Identifier: Apache-2.0
"""The captures that the fuzzer changes: taken apart, with records of all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fuzz.files import Parts, taken_apart
from tests.support import captures
from tests.support.ctnetlink import FakeConntrack
from tests.unit.capture.format.test_rulesets import snapshot
from tests.unit.capture.test_change_events import conntrack_of_a_connection
from tracer.capture.format import rulesets
from tracer.capture.format.codec import to_json
from tracer.kube.cni_cache import Sandbox
from tracer.model.kube import HostPort
from tracer.model.loss import Loss
from tracer.rules.nftables.watcher import RulesetUpdate

SANDBOX = Sandbox("c0ffee", "cbr0", "default", "web-a", ("10.244.0.11",), (HostPort(3306, 3306, "tcp", ""),))
OBJECTS: list[dict[str, Any]] = [
    captures.SERVICE,
    {"kind": "EndpointSlice", "metadata": {"namespace": "default", "name": "http-proxy-x",
     "labels": {"kubernetes.io/service-name": "http-proxy"}}, "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
     "endpoints": [{"addresses": ["10.244.0.11"], "conditions": {"ready": True}, "nodeName": "node-1",
                    "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-a"}}]},
    {"kind": "Endpoints", "metadata": {"namespace": "default", "name": "old"}, "subsets": [{
        "addresses": [{"ip": "10.244.0.12", "nodeName": "node-1", "targetRef": {"kind": "Pod", "namespace": "a", "name": "b"}}],
        "notReadyAddresses": [{"ip": "10.244.0.13"}], "ports": [{"name": "x", "port": 80, "protocol": "TCP"}]}]},
    {"kind": "Pod", "metadata": {"namespace": "default", "name": "web-a"}, "spec": {"nodeName": "node-1", "hostNetwork": False,
     "containers": [{"ports": [{"containerPort": 8080, "hostPort": 30285, "protocol": "TCP", "hostIP": "0.0.0.0"}]}]},
     "status": {"phase": "Running", "podIP": "10.244.0.11", "podIPs": [{"ip": "10.244.0.11"}]}},
    {"kind": "Node", "metadata": {"name": "node-1"}, "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
     "status": {"addresses": [{"type": "InternalIP", "address": "192.168.56.10"}, {"type": "Hostname", "address": "node-1"}]}},
    {"kind": "NetworkPolicy", "metadata": {"namespace": "default", "name": "allow"}, "spec": {
        "podSelector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}, "namespaceSelector": {}}],
                     "ports": [{"port": 80, "endPort": 90}, {"port": "x"}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.244.0.0/24"]}}]}]}},
]  # fmt: skip
"""One object of each kind that the tracer reads."""


def bases(directory: Path) -> list[Parts]:
    """An explained run, a run that was only recorded, and a run with all records that a real run can have."""
    made = [
        captures.capture(
            directory / "a.k8st", captures.some_batches(6), follow=True, conntrack=conntrack_of_a_connection()
        ).path,
        captures.capture(
            directory / "b.k8st", captures.some_batches(6), explained=False, conntrack=FakeConntrack(why="no")
        ).path,
    ]
    found = [taken_apart(path) for path in made]
    found.append(taken_apart(made[0]))
    more = found[-1].records
    at = next(n for n, r in enumerate(more) if r[0] >= 1)
    kinds = ("Service", "EndpointSlice", "Endpoints", "Pod", "Node", "NetworkPolicy")
    extra = [[1, "objects", f"{k} x", ["apply", k, [o]]] for k, o in zip(kinds, OBJECTS, strict=True)]
    extra += [[1, "objects", k, ["replace", k, [o]]] for k, o in zip(kinds, OBJECTS, strict=True)]
    extra += [[1, "sandboxes", "", [1, to_json([SANDBOX])]], [1, "note", "", "A note."], [1, "gap", "", [3, "so"]]]
    extra += [[1, "loss", "table", to_json(Loss("table", 1, 17, "so"))]]
    extra += [
        [1, "nft", "100 7", rulesets.encode_update(RulesetUpdate(100, 7, False, snapshot()))],
        [1, "change", "", [[1000, "so"]]],
    ]
    extra += [[1, "answer", "x", [to_json(q), 1, to_json(a)]] for q, a in ANSWERS]
    more[at:at] = extra
    return found


ANSWERS: tuple[tuple[tuple[object, ...], object], ...] = (
    (("node", ("bound", "tcp")), ()),
    (("node", ("is kube-proxy", 1)), False),
    (("node", ("setting", "net/ipv4/tcp_syncookies", 0)), "1"),
    (("node", ("counters", 0)), {"ListenDrops": 1}),
    (("node", "conntrack"), {"insert_failed": 0}),
    (("node", "addresses"), {"192.168.56.10": "eth0"}),
    (("node", "flannel"), ("10.244.0.0/24",)),
    (("node", ("mtu", "eth0")), 1500),
    (("node", ("way out", "10.244.0.11")), "cni0"),
    (("space names",), ["node"]),
    (("space", "node", "counters"), {"ListenDrops": 1}),
    (("process", 48213), (219, "nginx")),
    (("netns", 200), "pod-a"),
    (("function", 16), "tcp_v4_rcv"),
)
