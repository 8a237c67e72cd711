# SPDX-License-Identifier: Apache-2.0
"""Builds a variation of an incident, with rules as kube-proxy would write them, and makes its traffic."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import incidents
from incidents import Requests, ipvs, kube_proxy, links, missing_masquerade, objects
from incidents.objects import Object
from incidents.proxy import iptables, nftables
from incidents.proxy import ipvs as in_ipvs
from incidents.proxy.model import PODS as POD_NETWORKS
from incidents.proxy.model import Service
from incidents.variations import Variation
from scenes import rules, scene, servers
from scenes import traffic as ask
from scenes.topology import CLIENT, NODE4, NODE6, PODS, STATE_DIR

PAUSE = 0.1
"""Time between two requests of other clients, s: all their packets are explained, which takes long in an emulator."""


def up(v: Variation) -> list[Object]:
    """Removes what is there, builds the variation, and returns the API's objects."""
    incidents.down()
    scene.bare(servers.POD_SERVERS if v.incident != 2 or v.healthy else _stuck(v))
    post: list[str] = []
    if v.incident == 3:
        missing_masquerade.tunnel(v.family)
        net, mine, others = missing_masquerade.NETWORKS[v.family]
        groups = "ff00::/8" if v.family == 6 else "224.0.0.0/4"
        post = [f"! -s {net} -d {others} -j RETURN"] if not v.healthy else []
        post += [f"-s {net} -d {net} -j RETURN", f"-s {net} ! -d {groups} -j MASQUERADE", f"! -s {net} -d {mine} -j RETURN",
                 f"! -s {net} -d {net} -j MASQUERADE"]  # fmt: skip
        servers.start([servers.Server("node-2", "far", http=8080, udp=None)])
    every = (*v.services, v.beside)
    _rules(v, every, post)
    if v.incident == 1:
        ports = [s.node_port for s in v.services] if not v.healthy else [v.beside.node_port - 1]
        servers.start([servers.Server(None, f"host-{port}", http=port, udp=None) for port in ports])
    if v.incident == 4:
        kube_proxy.start(config=f'kind: KubeProxyConfiguration\nhostnameOverride: "{"node-1" if v.healthy else "bare-name"}"\n')
    found = objects_of(v)
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    (STATE_DIR / "objects.json").write_text(json.dumps({"kind": "List", "items": found}))
    return found


def _rules(v: Variation, every: tuple[Service, ...], post: list[str]) -> None:
    """Loads the rules that kube-proxy would write. post: flannel's rules."""
    first, pods = v.first if v.host_ports else "kube", "none" if post else POD_NETWORKS[v.family]
    if v.backend == "native":
        text = nftables.rules(every, _node(v)) + nftables.host_ports(v.host_ports)
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, capture_output=True)
    elif v.backend == "ipvs":
        links.ipset(in_ipvs.sets(every))
        rules.restore_text(in_ipvs.rules(every, v.host_ports, post, first, pods), v.family, "legacy")
        ipvs.put(in_ipvs.virtual_servers(every, _node(v)), [s.address for s in every])
    else:
        text = iptables.rules(every, v.host_ports, post, first, pods)
        rules.restore_text(text, v.family, "legacy" if v.backend == "legacy" else "nft")


def _stuck(v: Variation) -> list[servers.Server]:
    return [servers.Server(p.name, p.name, accept=p is not PODS[0], backlog=1 + v.number % 3) for p in PODS]


def _node(v: Variation) -> str:
    return NODE6 if v.family == 6 else NODE4


def objects_of(v: Variation) -> list[Object]:
    """The API's objects."""
    every = (*v.services, v.beside)
    _, cidr, others = missing_masquerade.NETWORKS[v.family]
    if v.incident != 3:
        cidr = "fd00:10:244::/64" if v.family == 6 else "10.244.0.0/24"
    found = [objects.node("node-1", _node(v), cidr)]
    if v.incident == 3:
        found.append(objects.node("node-2", missing_masquerade.NODE_2[v.family], others))
    for s in every:
        policy = {"externalTrafficPolicy": "Local"} if v.incident == 4 and s is not v.beside else {}
        found.append(objects.service(s.name, s.address, s.port, s.node_port, s.port_name, **policy))
        on = "node-2" if v.incident == 3 and s is not v.beside else "node-1"
        ends = [(f"pod-{n}", address, on) for n, (address, _) in enumerate(s.ends)]
        if ends:
            found.append(objects.endpoints(s.name, ends, s.ends[0][1], s.port_name))
    # Pods with a hostPort are added below.
    taken = {h.address for h in v.host_ports}
    for name, address in ((p.name, p.addr6 if v.family == 6 else p.addr4) for p in PODS):
        if address not in taken:
            found.append(objects.pod(f"default/{name}", address, "node-1", servers.HTTP_PORT))
    for h in v.host_ports:
        found.append(objects.pod(f"default/host-{h.port}", h.address, "node-1", h.to, h.port))
    return found


def traffic(v: Variation) -> Requests:
    """Requests to each affected Service, together with those of other clients if the node is busy."""
    results: Requests = []
    with _others(v) if v.busy else nullcontext():
        for s in v.services:
            if v.incident == 2 and not v.healthy:
                results += _until_one_is_lost(v, s)
                continue
            for _ in range(2):
                ns = None if v.incident == 3 else CLIENT
                address, port = (s.address, s.port) if v.cluster_ip else (_node(v), s.node_port)
                reply = ask.http_get(address, port, ns=ns, timeout=1.0)
                results.append((f"{ns or 'node-1'} $ curl {address} {port}", reply.body or reply.outcome))
    return results


def _until_one_is_lost(v: Variation, s: Service) -> Requests:
    pod = PODS[0].addr6 if v.family == 6 else PODS[0].addr4
    # Other clients may already have filled the queue.
    with suppress(OSError), ask.connections(pod, servers.HTTP_PORT, 2 + v.number % 3, timeout=1.0):
        pass
    results: Requests = []
    while len(results) < 40 and "timeout" not in {what for _, what in results}:
        reply = ask.http_get(_node(v), s.node_port, timeout=0.7)
        results.append((f"curl {_node(v)} {s.node_port}", reply.body or reply.outcome))
    return results


@contextmanager
def _others(v: Variation) -> Iterator[None]:
    """Other clients use the healthy Service within the block, one request after another."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(PAUSE):
            ask.http_get(_node(v), v.beside.node_port, timeout=0.5)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5)
