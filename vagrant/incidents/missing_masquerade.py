# SPDX-License-Identifier: Apache-2.0
"""3: a stale RETURN of flannel precedes MASQUERADE, so the node's own requests to pods of node-2 get no answer.

node-1 192.168.64.0 flannel.1 ---- flannel.1 192.168.66.0 node-2, with the pod 192.168.66.5
                                             net0: the network between the nodes, which drops packets from pods
"""

from __future__ import annotations

from incidents import links, objects, restore
from incidents.objects import Object
from scenes import scene, servers
from scenes import traffic as ask
from scenes.rules import Backend
from scenes.topology import NODE4

NUMBER, TITLE = 3, "From the node itself a Service times out (canal)"
SYMPTOM = (
    "A Service has its pod on node-2, which is reached through flannel's tunnel. Pods get answers from it; node-1 itself gets "
    "none."
)
PORTS = (8080,)
OPTIONS = ("--follow",)
STATES = {"stale": 1, "healthy": 0}
CLUSTER_IP, POD = "172.30.253.123", "192.168.66.5"
SETS = """create cali40masq-ipam-pools hash:net
create cali40all-ipam-pools hash:net
add cali40masq-ipam-pools 192.168.64.0/20
add cali40all-ipam-pools 192.168.64.0/20
"""
NETWORKS = {
    4: ("192.168.64.0/20", "192.168.64.0/24", "192.168.66.0/24"),
    6: ("fd00:42::/48", "fd00:42:0:64::/64", "fd00:42:0:66::/64"),
}
"""By family: networks of all pods, of node-1's pods, of node-2's pods."""
PODS = {4: POD, 6: "fd00:42:0:66::5"}
NODE_2 = {4: "192.168.57.20", 6: "fd00:57::20"}
_LINKS = (
    "netns add node-2",
    "link add flannel.1 type veth peer name flannel.1 netns node-2",
    "link set flannel.1 up",
    "-n node-2 link set lo up",
    "-n node-2 link set flannel.1 up",
    "-n node-2 link add net0 type dummy",
    "-n node-2 link set net0 up",
)
_OF = {
    4: (
        "addr add 192.168.64.0/32 dev flannel.1",
        "route add 192.168.66.0/24 via 192.168.66.0 dev flannel.1 onlink",
        "-n node-2 addr add 192.168.66.0/32 dev flannel.1",
        f"-n node-2 addr add {POD}/32 dev lo",
        "-n node-2 route add 192.168.64.0/24 via 192.168.64.0 dev flannel.1 onlink",
        f"-n node-2 addr add {NODE_2[4]}/24 dev net0",
        "-n node-2 route add default dev net0",
    ),
    # Neighbour solicitations need a link-local address, which a link gets only after duplicate address detection: set by hand.
    6: (
        "addr add fe80::64/64 dev flannel.1 nodad",
        "addr add fd00:42:0:64::/128 dev flannel.1 nodad",
        "route add fd00:42:0:66::/64 via fd00:42:0:66:: dev flannel.1 onlink",
        "-n node-2 addr add fe80::66/64 dev flannel.1 nodad",
        "-n node-2 addr add fd00:42:0:66::/128 dev flannel.1 nodad",
        f"-n node-2 addr add {PODS[6]}/128 dev lo nodad",
        "-n node-2 route add fd00:42:0:64::/64 via fd00:42:0:64:: dev flannel.1 onlink",
        f"-n node-2 addr add {NODE_2[6]}/64 dev net0 nodad",
        "-n node-2 route add ::/0 dev net0",
    ),
}


def tunnel(family: int = 4) -> None:
    """Makes node-2 with its pod, and the tunnel to it."""
    links.ip(*_LINKS, *_OF[family])


def up(state: str, backend: Backend) -> list[Object]:
    scene.bare()
    tunnel()
    links.ipset(SETS)
    restore("canal" if state == "healthy" else "canal-stale", backend)
    servers.start([servers.Server("node-2", "http-proxy-b", http=8080, udp=None)])
    return [
        objects.node("node-1", NODE4, "192.168.64.0/24"),
        objects.node("node-2", NODE_2[4], "192.168.66.0/24"),
        objects.service("default/http-proxy", CLUSTER_IP, 8080, ask.NODEPORT_HTTP),
        objects.endpoints("default/http-proxy", [("http-proxy-b", POD, "node-2")], 8080),
    ]


def traffic(state: str) -> list[tuple[str, str]]:
    replies = [ask.http_get(CLUSTER_IP, 8080, ns=None, timeout=1.5) for _ in range(2)]
    return [(f"node-1 $ curl -m 1.5 http://{CLUSTER_IP}:8080/", reply.body or reply.outcome) for reply in replies]


def down() -> None:
    links.remove_link("flannel.1")
    links.remove_namespace("node-2")
    links.remove_sets()
