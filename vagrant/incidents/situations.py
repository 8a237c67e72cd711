# SPDX-License-Identifier: Apache-2.0
"""Situations of real nodes in each mode of kube-proxy: left by mode switches, clean-ups and portmap, and healthy ones.

In most of them the requests meet no fault; some faults are found only without a packet, by `audit`. "legacy", "nft": kube-proxy
in iptables mode, in that back end; "native": in its nftables mode; "ipvs": in its ipvs mode, with its rules in legacy tables.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import incidents
from incidents import Requests, ipvs, kube_proxy, links, missing_masquerade, network_policies, objects
from incidents.objects import Object
from incidents.proxy import iptables, nftables, portmap
from incidents.proxy import ipvs as in_ipvs
from incidents.proxy.model import PODS as POD_NETWORKS
from incidents.proxy.model import HostPort, Service, digest
from incidents.proxy.table import KUBE, table
from scenes import rules, scene, servers
from scenes import traffic as ask
from scenes.rules import Backend
from scenes.topology import CLIENT, NODE4, PODS

BACKENDS = ("legacy", "nft", "native", "ipvs")
A, B, HOSTED = (pod.addr4 for pod in PODS)
SHOP = Service("shop/orders", "172.30.1.10", 80, 30306, ((A, 8080),), "web")
CHAT = Service("video/chat", "172.30.1.20", 7000, 32200, ((A, 8080), (B, 8080)), "ws")
FAR = Service("shop/far", "172.30.1.30", 8080, 30500, ((missing_masquerade.POD, 8080),))
HOST = HostPort(SHOP.node_port, HOSTED, 8080, "c0" * 32)
POD_OF = {address: pod.name for pod, address in zip(PODS, (A, B, HOSTED), strict=True)}


@dataclass(frozen=True)
class Situation:
    """One situation in one mode.

    packets: the finding that its packets must show, "" = none. audit: the certain finding of the audit, "" = none. perhaps:
    findings that the audit may report as likely, about chains that do no harm. allowed: findings that its packets may show too.
    by_answer: the finding of `packets` appears only when the pod with the hostPort answers.
    """

    name: str
    backend: str
    build: Callable[[str], list[Object]]
    requested: tuple[Service, ...] = (SHOP,)
    packets: str = ""
    audit: str = ""
    perhaps: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    by_answer: bool = False
    from_node: bool = False

    @property
    def taker(self) -> str:
        """The name of the pod with the hostPort, which is also its answer."""
        return POD_OF[HOSTED]

    @property
    def text(self) -> str:
        return f"{self.name} ({self.backend})"

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(s.port if self.from_node else s.node_port for s in self.requested)

    def up(self) -> list[Object]:
        """Removes what is there, builds the situation, and returns the API's objects."""
        incidents.down()
        return self.build(self.backend)

    def traffic(self) -> Requests:
        """Two requests to each Service, from the client to its NodePort, or from the node to its cluster IP."""
        results: Requests = []
        for s in (s for s in self.requested for _ in range(2)):
            ns, address, port = (None, s.address, s.port) if self.from_node else (CLIENT, NODE4, s.node_port)
            reply = ask.http_get(address, port, ns=ns, timeout=1.0)
            results.append((f"{ns or 'node-1'} $ curl {address}:{port}", reply.body or reply.outcome))
        return results


def every() -> list[Situation]:
    """All situations, each in every mode in which it exists."""
    found = []
    for mode in BACKENDS:
        found += [
            Situation("hostPort of portmap in iptables-nft on a NodePort", mode, _host_port, packets="hostport_takes_service",
                      audit="hostport_takes_service", by_answer=True),
            Situation("the same, portmap before kube-proxy", mode, _host_port_before, packets="hostport_takes_service",
                      audit="hostport_takes_service", by_answer=True),
            # The rules of CHAT are those of policy Cluster, its object has Local: the client's address is hidden, indeed.
            Situation("chains left that nothing leads to", mode, _dead, (SHOP, CHAT), perhaps=("leftover_chains",),
                      allowed=("client_address_hidden",)),
            Situation("two modes at once", mode, _two_modes, audit="two_modes" if mode == "ipvs" else "mixed_backends"),
            Situation("stale RETURN behind KUBE-POSTROUTING", mode, _stale_behind, (FAR,), from_node=True),
            Situation("the other back end cleaned", mode, _cleaned),
            Situation("policy Local, its pod here not ready", mode, _not_ready, packets="endpoint_not_ready",
                      audit="endpoint_not_ready"),
        ]  # fmt: skip
        if mode != "native":
            found.append(Situation("kube-proxy holds the NodePorts", mode, _held, (SHOP, CHAT)))
        if mode in ("legacy", "nft"):
            found += [
                Situation("a NetworkPolicy that allows another port", mode, _limited, packets="no_policy_allows"),
                Situation("a NetworkPolicy that allows the port", mode, _allowed),
            ]
        if mode != "ipvs":
            found.append(Situation("session affinity", mode, _affinity, (CHAT,)))
    return found


def kube(mode: str, *services: Service, post: tuple[str, ...] = (), pods: str = "") -> None:
    """Loads kube-proxy's rules. post: flannel's rules, after kube-proxy's jump in POSTROUTING."""
    if mode == "native":
        nft(nftables.rules(services, NODE4))
        if post:
            rules.restore_text(table("nat", ("POSTROUTING",), {"POSTROUTING": list(post)}), 4, "nft", flush=False)
    elif mode == "ipvs":
        links.ipset(in_ipvs.sets(services))
        rules.restore_text(in_ipvs.rules(services, (), post, "kube", pods or POD_NETWORKS[4]), 4, "legacy", flush=False)
        ipvs.put(in_ipvs.virtual_servers(services, NODE4), [s.address for s in services])
    else:
        back: Backend = "legacy" if mode == "legacy" else "nft"
        rules.restore_text(iptables.rules(services, (), post, "kube", pods), 4, back, flush=False)


def nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, capture_output=True)


def objects_of(*services: Service, local: tuple[Service, ...] = ()) -> list[Object]:
    """The API's objects for these Services. local: Services with policy Local."""
    found = [objects.node("node-1", NODE4, "10.244.0.0/24")]
    for s in services:
        policy = {"externalTrafficPolicy": "Local"} if s in local else {}
        found.append(objects.service(s.name, s.address, s.port, s.node_port, s.port_name, **policy))
        found.append(objects.endpoints(s.name, [(POD_OF[a], a, "node-1") for a, _ in s.ends], 8080, s.port_name))
    return found + [objects.pod(f"default/{pod.name}", pod.addr4, "node-1", 8080) for pod in PODS]


def _host_port(mode: str) -> list[Object]:
    """portmap writes after kube-proxy. When each has its own base chain, the chain registered last runs first."""
    return _beside_portmap(mode, portmap_last=True)


def _host_port_before(mode: str) -> list[Object]:
    """kube-proxy writes after portmap, as after its restart."""
    return _beside_portmap(mode, portmap_last=False)


def _beside_portmap(mode: str, portmap_last: bool) -> list[Object]:
    scene.bare()
    jump = next(j for j in portmap.beside(KUBE, [HOST], "kube") if j != KUBE)
    chains = {"PREROUTING": [jump], "OUTPUT": [jump], **portmap.chains([HOST])}
    if portmap_last:
        kube(mode, SHOP)
    rules.restore_text(table("nat", ("PREROUTING", "OUTPUT"), chains), 4, "nft", flush=False)
    if not portmap_last:
        kube(mode, SHOP)
    found = [o for o in objects_of(SHOP) if o["metadata"]["name"] != POD_OF[HOSTED]]
    return [*found, objects.pod("db/pg-hp", HOSTED, "node-1", 8080, HOST.port)]


def _dead(mode: str) -> list[Object]:
    """Chains of kube-proxy 1.20's iptables mode: of a Service that is gone, and of CHAT, with "no local endpoints"."""
    scene.bare()
    kube(mode, SHOP, CHAT)
    gone, chat = (digest(label + "tcp", 16) for label in ("video/old:ws", CHAT.label))
    end = f"KUBE-SEP-{gone}"
    chains = {
        f"KUBE-SVC-{gone}": [f'-m comment --comment "video/old:ws" -j {end}'],
        end: ['-p tcp -m comment --comment "video/old:ws" -m tcp -j DNAT --to-destination 10.244.0.99:9999'],
        # The target of kubelet's KUBE-MARK-DROP.
        f"KUBE-XLB-{chat}": [f'-m comment --comment "{CHAT.label} has no local endpoints" -j MARK --set-xmark 0x8000/0x8000'],
    }
    if mode in ("native", "ipvs"):
        to_chat = f'-p tcp -m comment --comment "{CHAT.label}" -m tcp --dport {CHAT.node_port} -j KUBE-XLB-{chat}'
        chains["KUBE-NODEPORTS"] = [to_chat]
    back: Backend = "legacy" if mode in ("legacy", "ipvs") else "nft"
    rules.restore_text(table("nat", (), chains), 4, back, flush=False)
    return objects_of(SHOP, CHAT, local=(CHAT,))


def _two_modes(mode: str) -> list[Object]:
    """Rules of another mode, or of the other back end, that packets still meet."""
    scene.bare()
    kube(mode, SHOP)
    if mode == "ipvs":
        empty = Service(SHOP.name, SHOP.address, SHOP.port, SHOP.node_port, (), SHOP.port_name)
        whole = iptables.rules([empty])
        # KUBE-FORWARD and the jump to it are the same in both modes.
        stale = [line for line in whole[: whole.index("*nat")].splitlines() if "KUBE-FORWARD" not in line]
        rules.restore_text("\n".join([*stale, ""]), 4, "legacy", flush=False)
    else:
        rules.restore_text(iptables.rules([SHOP]), 4, "nft" if mode == "legacy" else "legacy", flush=False)
    return objects_of(SHOP)


def _stale_behind(mode: str) -> list[Object]:
    """kube-proxy has --cluster-cidr: it marks the node's request, and its own rule masquerades before the stale rule."""
    scene.bare()
    missing_masquerade.tunnel()
    servers.start([servers.Server("node-2", "far", http=8080, udp=None)])
    net, mine, others = missing_masquerade.NETWORKS[4]
    post = (f"! -s {net} -d {others} -j RETURN", f"-s {net} -d {net} -j RETURN", f"-s {net} ! -d 224.0.0.0/4 -j MASQUERADE",
            f"! -s {net} -d {mine} -j RETURN", f"! -s {net} -d {net} -j MASQUERADE")  # fmt: skip
    kube(mode, FAR, post=post, pods=net)
    return [
        objects.node("node-1", NODE4, mine), objects.node("node-2", missing_masquerade.NODE_2[4], others),
        objects.service(FAR.name, FAR.address, FAR.port, FAR.node_port),
        objects.endpoints(FAR.name, [("far", missing_masquerade.POD, "node-2")], 8080),
    ]  # fmt: skip


CLEANED = """*nat
:KUBE-MARK-DROP - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m comment --comment "kubernetes firewall for dropping marked packets" -m mark --mark 0x8000/0x8000 -j DROP
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! \
--ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
"""
"""The rules of kube-proxy and of kubelet that remain after `kube-proxy --cleanup` (1.20.2)."""


def _cleaned(mode: str) -> list[Object]:
    scene.bare()
    kube(mode, SHOP)
    rules.restore_text(CLEANED, 4, "nft" if mode in ("legacy", "ipvs") else "legacy", flush=False)
    return objects_of(SHOP)


def _held(mode: str) -> list[Object]:
    """kube-proxy before 1.24 listens on NodePorts itself."""
    scene.bare()
    kube(mode, SHOP, CHAT)
    kube_proxy.start("--hostname-override=node-1", port=SHOP.node_port)
    return objects_of(SHOP, CHAT)


def _affinity(mode: str) -> list[Object]:
    scene.bare()
    kube(mode, Service(CHAT.name, CHAT.address, CHAT.port, CHAT.node_port, CHAT.ends, CHAT.port_name, affinity=True))
    return objects_of(CHAT)


def _limited(mode: str) -> list[Object]:
    return _policies(mode, 9090)


def _allowed(mode: str) -> list[Object]:
    return _policies(mode, 8080)


def _policies(mode: str, port: int) -> list[Object]:
    """kube-router's rules before kube-proxy's: two policies for the Service's pod, one of which allows this port."""
    scene.bare()
    back: Backend = "legacy" if mode == "legacy" else "nft"
    rules.restore_text(network_policies.rules(POD_OF[A], A, port), 4, back, flush=False)
    kube(mode, SHOP)
    return [*objects_of(SHOP), *network_policies.policies(port)]


def _not_ready(mode: str) -> list[Object]:
    """The ready pod runs on node-2; the pod of this node is not ready."""
    scene.bare()
    ready = (("10.244.3.5", 8080),)
    kube(mode, Service(SHOP.name, SHOP.address, SHOP.port, SHOP.node_port, ready, SHOP.port_name, local=True))
    found = objects_of(SHOP, local=(SHOP,))
    ends = next(o for o in found if o["kind"] == "EndpointSlice")
    ends["endpoints"][0]["conditions"]["ready"] = False
    other = objects.endpoints(SHOP.name, [("far", "10.244.3.5", "node-2")], 8080, SHOP.port_name)["endpoints"]
    ends["endpoints"] += other
    return [*found, objects.node("node-2", "192.168.57.20", "10.244.3.0/24")]
