# SPDX-License-Identifier: Apache-2.0
"""5: the password of A opens B: hostPort 3306 of pod mysql-b takes the packets for the Service of mysql-a."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from incidents import RULESETS, ipvs, links, objects, restore
from incidents.objects import Object
from incidents.proxy import nftables
from incidents.proxy.model import HostPort, Service
from scenes import scene, servers
from scenes import traffic as ask
from scenes.rules import Backend
from scenes.topology import BRIDGE, CLIENT, NODE4

NUMBER, TITLE = 5, "The password of A opens B"
SYMPTOM = (
    "A Service leads to the database mysql-a. On this node, its clients reach another database, mysql-b, and mysql-b's "
    "password is the one that works."
)
PORTS = (3306,)
OPTIONS = ("--follow",)
STATES = {"ipvs": 1, "anywhere": 1, "node-port": 1, "nftables": 1, "nftables-restarted": 0, "healthy": 0, "healthy-ipvs": 0}
ONLY: dict[str, Backend] = {"nftables": "nft", "nftables-restarted": "nft"}
RULES = {
    "ipvs": "ipvs-portmap-first", "healthy-ipvs": "ipvs-portmap", "anywhere": "portmap-anywhere", "node-port": "portmap-first",
    "healthy": "portmap",
}  # fmt: skip
CLUSTER_IP, MYSQL_A, MYSQL_B = "172.30.33.7", "10.244.0.11", "10.224.0.222"
CACHE = Path("/var/lib/cni/results")
CONTAINER = "c0" * 32
SETS = """create KUBE-CLUSTER-IP hash:ip,port
add KUBE-CLUSTER-IP 172.30.0.1,tcp:443
add KUBE-CLUSTER-IP 172.30.33.7,tcp:3306
"""


def up(state: str, backend: Backend) -> list[Object]:
    """ipvs: kube-proxy in ipvs mode; anywhere, node-port: in iptables mode; nftables: in that mode, and portmap's chains were
    added last. healthy: clients use only the pod's own port; nftables-restarted: kube-proxy's chains were added last.
    """
    scene.bare()
    by_ipvs = state.endswith("ipvs")
    links.ip(
        f"addr add 10.224.0.1/24 dev {BRIDGE}",
        f"-n pod-b addr add {MYSQL_B}/24 dev eth0",
    )
    if by_ipvs:
        links.ipset(SETS)
        at = f"-t {CLUSTER_IP}:3306"
        ipvs.put(f"-A {at} -s rr\n-a {at} -r {MYSQL_A}:3306 -m -w 1\n", [CLUSTER_IP])
    if state in RULES:
        restore(RULES[state], backend)
        _cache(*re.findall(r'id: \\"(\w+)', (RULESETS / f"{RULES[state]}.rules").read_text()))
    else:
        _in_nftables(restarted=state == "nftables-restarted")
        _cache(CONTAINER)
    servers.start([servers.Server(f"pod-{x}", f"mysql-{x}", http=3306, udp=None) for x in "ab"])
    name = "default/mysql-np"
    found = [objects.node("node-1", NODE4, "10.244.0.0/24"), objects.pod("default/mysql-b", MYSQL_B, "node-1", 3306, 3306)]
    if state != "healthy":
        found += [
            objects.service(name, CLUSTER_IP, 3306, 0 if by_ipvs else 3306, "mysql"),
            objects.endpoints(name, [("mysql-a", MYSQL_A, "node-1")], 3306, "mysql"),
            objects.pod("default/mysql-a", MYSQL_A, "node-1", 3306),
        ]
    return found


def traffic(state: str) -> list[tuple[str, str]]:
    requests: dict[str, list[tuple[str | None, str]]] = {
        "ipvs": [(CLIENT, CLUSTER_IP), (None, CLUSTER_IP)],
        "anywhere": [(CLIENT, CLUSTER_IP), (None, CLUSTER_IP)],
        "healthy-ipvs": [(CLIENT, CLUSTER_IP), (CLIENT, NODE4)],
    }
    results = []
    for ns, address in requests.get(state, [(CLIENT, NODE4), (CLIENT, NODE4)]):
        reply = ask.http_get(address, 3306, ns=ns, timeout=1.5)
        results.append((f"{ns or 'node-1'} $ mysql -h {address}", reply.body or reply.outcome))
    return results


def _in_nftables(restarted: bool) -> None:
    """Loads both tables; the kernel asks the table that was loaded last first."""
    service = Service("default/mysql-np", CLUSTER_IP, 3306, 3306, ((MYSQL_A, 3306),), "mysql")
    tables = [nftables.rules([service], NODE4), nftables.host_ports([HostPort(3306, MYSQL_B, 3306, CONTAINER)])]
    for text in reversed(tables) if restarted else tables:
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, capture_output=True)


def _cache(container: str) -> None:
    """Writes libcni's cache of mysql-b's sandbox: the only place that joins the id in portmap's rules with a pod's name."""
    body = {
        "kind": "cniCacheV1",
        "containerId": container,
        "networkName": "azure",
        "ifName": "eth0",
        "cniArgs": [["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "mysql-b"]],
        "capabilityArgs": {"portMappings": [{"hostPort": 3306, "containerPort": 3306, "protocol": "tcp"}]},
        "result": {"ips": [{"address": f"{MYSQL_B}/24"}]},
    }
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / f"azure-{container}-eth0").write_text(json.dumps(body))


def down() -> None:
    for path in CACHE.glob("azure-*-eth0"):
        path.unlink()
    ipvs.remove()
    links.remove_sets()
