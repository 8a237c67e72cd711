# SPDX-License-Identifier: Apache-2.0
"""The node on which the real kube-proxy runs: its Services, a hostPort by the real portmap, and the requests to all of them.

The links are those of tests/kernel/audit_nodes.py; `far` is a pod of node-2, behind the tunnel.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from incidents import ipvs, links, objects
from incidents.objects import Object
from scenes import rules, servers, traffic
from scenes.topology import CLIENT
from scenes.traffic import Reply
from tests.kernel import audit_nodes
from tests.kernel.audit_nodes import FAR, MINE, NODE, OTHERS, PODS, PORT

SPACES = (CLIENT, *audit_nodes.LOCAL, "far")
HOST_PORT, HOSTED, CONTAINER = 5000, "default/pod-d", "d0" * 32
"""The hostPort, its pod, and the pod's container."""
WEB, LONELY, LOCAL, AWAY, STICKY, DNS = (f"default/{name}" for name in ("web", "lonely", "local", "away", "sticky", "dns"))
ADDRESSES = {label: f"172.30.0.{n}" for n, label in enumerate((WEB, LONELY, LOCAL, AWAY, STICKY, DNS), start=10)}
NODE_PORTS = {label: 30000 + 100 * n for n, label in enumerate(ADDRESSES, start=1)}
LABELS = {*ADDRESSES, HOSTED}
CHANGED_PORT = 30999
"""The NodePort that a Service gets while the API is not reachable."""
PORTS = (80, 53, HOST_PORT, CHANGED_PORT, *NODE_PORTS.values())
"""Ports of the traced packets, before or after translation."""
REFUSED, SILENT = "refused", "timeout"
UDP_PORT = 5353

KUBELET = """*nat
:KUBE-MARK-DROP - [0:0]
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m comment --comment "kubernetes firewall for dropping marked packets" -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
"""
"""Rules of a kubelet of 1.20. kube-proxy of that version jumps to KUBE-MARK-DROP for Services without a local endpoint."""


@dataclass(frozen=True)
class Request:
    """A request. ns: namespace of the client, None = the node itself. label: owner of the address and port. expected: possible
    servers, or possible failures."""

    ns: str | None
    address: str
    port: int
    label: str
    expected: tuple[str, ...]
    udp: bool = False

    @property
    def text(self) -> str:
        return f"{self.ns or 'node'} -> {self.address}:{self.port} ({self.label})"

    def send(self, sport: int, timeout: float) -> Reply:
        make_request = traffic.udp_ask if self.udp else traffic.http_get
        return make_request(self.address, self.port, ns=self.ns, timeout=timeout, sport=sport)


def answer(reply: Reply) -> str:
    """The server that answered, or how the request failed."""
    return reply.server or reply.outcome


def requests(web: tuple[str, ...] = ("pod-a", "pod-b")) -> Iterator[Request]:
    """Requests to all Services and the hostPort. web: the pods behind the Service of that name."""
    yield Request(CLIENT, NODE, NODE_PORTS[WEB], WEB, web)
    for ns in (CLIENT, "pod-c", None):
        yield Request(ns, ADDRESSES[WEB], 80, WEB, web)
    yield Request(None, NODE, NODE_PORTS[WEB], WEB, web)
    yield Request(CLIENT, NODE, NODE_PORTS[LONELY], LONELY, (REFUSED,))
    yield Request(None, ADDRESSES[LONELY], 80, LONELY, (REFUSED,))
    yield Request(CLIENT, NODE, NODE_PORTS[LOCAL], LOCAL, ("pod-a",))
    yield Request(CLIENT, NODE, NODE_PORTS[AWAY], AWAY, (SILENT, REFUSED))
    yield Request("pod-c", ADDRESSES[AWAY], 80, AWAY, ("far",))
    for _ in range(3):
        yield Request(CLIENT, NODE, NODE_PORTS[STICKY], STICKY, ("pod-a", "pod-b", "pod-c"))
    yield Request(None, ADDRESSES[STICKY], 80, STICKY, ("pod-a", "pod-b", "pod-c"))
    yield Request(CLIENT, NODE, NODE_PORTS[DNS], DNS, ("pod-b",), udp=True)
    for ns in (CLIENT, None, "pod-c"):
        yield Request(ns, NODE, HOST_PORT, HOSTED, ("pod-d",))


def all_objects() -> list[Object]:
    """The API's objects at the start."""
    found = [objects.node("node-1", NODE, MINE), objects.node("node-2", "192.168.57.20", OTHERS)]
    local: dict[str, object] = {"externalTrafficPolicy": "Local"}
    more: dict[str, dict[str, object]] = {LOCAL: local, AWAY: local, STICKY: {"sessionAffinity": "ClientIP"}}
    for label, address in ADDRESSES.items():
        name = "http" if label == WEB else ""
        port = 53 if label == DNS else 80
        found.append(objects.service(label, address, port, NODE_PORTS[label], name, **more.get(label, {})))
        if label == DNS:
            found[-1]["spec"]["ports"][0] |= {"protocol": "UDP", "targetPort": UDP_PORT}
    behind = {WEB: ("pod-a", "pod-b"), LOCAL: ("pod-a", "far"), AWAY: ("far",), STICKY: ("pod-a", "pod-b", "pod-c"),
              DNS: ("pod-b",)}  # fmt: skip
    found += [slice_of(label, *pods) for label, pods in behind.items()]
    for name, address in PODS.items():
        on = "node-2" if name == "far" else "node-1"
        hosted = HOST_PORT if f"default/{name}" == HOSTED else 0
        found.append(objects.pod(f"default/{name}", address, on, _port_of(name), hosted))
    return found


def with_host_port(pod: Object, port: int) -> Object:
    """The pod with a further hostPort."""
    changed: Object = copy.deepcopy(pod)
    changed["spec"]["containers"][0]["ports"].append({"containerPort": audit_nodes.HOSTED, "hostPort": port, "protocol": "TCP"})
    return changed


def slice_of(label: str, *pods: str) -> Object:
    """The EndpointSlice of a Service with these pods."""
    ends = [(pod, PODS[pod], "node-2" if PODS[pod] == FAR else "node-1") for pod in pods]
    found = objects.endpoints(label, ends, UDP_PORT if label == DNS else PORT, "http" if label == WEB else "")
    if label == DNS:
        found["ports"][0]["protocol"] = "UDP"
    return found


def _port_of(pod: str) -> int:
    return audit_nodes.HOSTED if f"default/{pod}" == HOSTED else PORT


def with_node_port(api_objects: Iterable[Object], label: str, node_port: int) -> Object:
    """A Service of these objects, with another NodePort."""
    _, _, name = label.partition("/")
    (found,) = [o for o in api_objects if o["kind"] == "Service" and o["metadata"]["name"] == name]
    changed = copy.deepcopy(found)
    changed["spec"]["ports"][0]["nodePort"] = node_port
    return changed


def build() -> None:
    """Builds the node in this network namespace, and starts the servers in the others."""
    for name in SPACES:
        subprocess.run(["ip", "netns", "add", name], check=True)
    audit_nodes.build()
    servers.start([servers.Server(name, name, http=_port_of(name), udp=UDP_PORT) for name in (*audit_nodes.LOCAL, "far")])


def clear() -> None:
    """Removes all rules, virtual servers, sets and connections of any program."""
    rules.flush()
    # rules.flush() looks for loaded modules, but a kernel may have them built in.
    subprocess.run(["nft", "flush", "ruleset"], check=False)
    for tool in ("iptables-legacy", "ip6tables-legacy"):
        for table in ("nat", "filter", "mangle"):
            for what in ("-F", "-X"):
                subprocess.run([tool, "-t", table, what], check=False, capture_output=True)
    ipvs.remove()
    links.remove_sets()


def kubelet(back: str) -> None:
    """Writes the rules of a kubelet, for iptables in this back end."""
    command = [f"iptables-{back}-restore", "--noflush"]
    subprocess.run(command, input=KUBELET, text=True, check=True, capture_output=True)


def in_force(back: str) -> str:
    """All rules and virtual servers as text. back: "legacy" or "nft" of iptables, "native" = nftables."""
    command = ["nft", "list", "ruleset"] if back == "native" else [f"iptables-{back}-save"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = subprocess.run(["ipvsadm", "-Ln"], capture_output=True, text=True, check=False).stdout
    return text + found
