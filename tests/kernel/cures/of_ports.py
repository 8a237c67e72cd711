# SPDX-License-Identifier: Apache-2.0
"""Ports that two want: hostPorts and NodePorts, a process and a NodePort."""

from __future__ import annotations

from pathlib import Path

from incidents import ipvs as virtual
from incidents import objects
from incidents.objects import Object
from incidents.proxy import iptables, nftables
from incidents.proxy import ipvs as in_ipvs
from incidents.proxy.model import HostPort, Service
from tests.kernel.audit_nodes import CLIENT, HOSTED, NODE, PODS, PORT
from tests.kernel.cures import Look, case
from tests.kernel.cures.box import Box, Step
from tracer.predict.query import PathQuery

HOST = HostPort(30306, PODS["pod-d"], HOSTED, "c0" * 32)
SHOP = Service("shop/orders", "172.30.0.10", 5432, 30306, ((PODS["pod-a"], PORT),), "pg")
NONE = Service("shop/ledger", "172.30.0.11", 80, 31443, (), "grpc")


def cluster(service: Service, host_port: int = 0) -> list[Object]:
    found = [
        objects.node("node-1", NODE, "10.244.0.0/24"),
        objects.service(service.name, service.address, service.port, service.node_port, service.port_name),
        objects.pod("db/pg-hp", PODS["pod-d"], "node-1", HOSTED, host_port),
    ]
    ends = [("pod-a", a, "node-1") for a, _ in service.ends]
    return [*found, objects.endpoints(service.name, ends, PORT, service.port_name)] if ends else found


def _without_host_port(box: Box, service: Service, *steps: Step) -> None:
    """The pod is made again without its hostPort: the runtime has portmap remove its rules."""
    box.objects(*cluster(service))
    box.again(*steps)


_NONE = r"\A[^\n]*\n?\Z"
"""What ss prints of a port that nobody waits on: its heading."""
_HAS = {"kubectl describe pod -n db pg-hp": rf"Host Port: +{HOST.port}/TCP"}


@case("hostport_takes_service", "legacy, portmap's jump first, kube-proxy holds the NodePort")
def _order(box: Box) -> Look:
    box.put(("legacy", iptables.rules([SHOP], [HOST], first="portmap")))
    box.objects(*cluster(SHOP, HOST.port))
    box.kube_proxy("--hostname-override=node-1", port=HOST.port)
    return Look(
        lambda: box.audit("hostport_takes_service"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT.*--dports 30306", f"sport = :{HOST.port}": "kube-proxy", **_HAS},
        mend=lambda: _without_host_port(box, SHOP, ("legacy", iptables.rules([SHOP]))),
    )


@case("hostport_takes_service", "a packet, iptables-nft, portmap's jump first, nothing listens")
def _packet(box: Box) -> Look:
    box.put(("nft", iptables.rules([SHOP], [HOST], first="portmap")))
    box.objects(*cluster(SHOP, HOST.port))
    return Look(
        lambda: box.shown("hostport_takes_service", PathQuery(CLIENT, 40000, NODE, HOST.port)),
        {"iptables-nft-save -t nat": "CNI-HOSTPORT-DNAT.*--dports 30306", f"sport = :{HOST.port}": _NONE, **_HAS},
        mend=lambda: _without_host_port(box, SHOP, ("nft", iptables.rules([SHOP]))),
    )


@case("hostport_takes_service", "legacy, for every address")
def _anywhere(box: Box) -> Look:
    host = HostPort(SHOP.port, HOST.address, HOSTED, HOST.container)
    box.put(("legacy", iptables.rules([SHOP], [host], first="anywhere")))
    box.objects(*cluster(SHOP, SHOP.port))
    return Look(
        lambda: box.audit("hostport_takes_service", SHOP.port, "tcp", "db/pg-hp", "elsewhere"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT", "ss -lntp": _NONE,
         "kubectl describe": rf"Host Port: +{SHOP.port}/TCP"},
        mend=lambda: _without_host_port(box, SHOP, ("legacy", iptables.rules([SHOP]))),
    )  # fmt: skip


@case("hostport_takes_service", "nftables, of a container that no pod is known for")
def _native(box: Box) -> Look:
    both = (("native", nftables.rules([SHOP], NODE)), ("native", nftables.host_ports([HOST])))
    box.put(*both)
    other = objects.pod("db/other", "10.244.0.77", "node-1", 1, HOST.port)
    box.objects(*(o for o in cluster(SHOP) if o["kind"] != "Pod"), other)
    return Look(
        lambda: box.audit("hostport_takes_service"),
        {"nft -a list table ip cni_hostport": "30306", "ss -lntp": "", "kubectl get pods -A": rf"db +other +{HOST.port}"},
        mend=lambda: _without_host_port(box, SHOP, both[0]),
    )


def _ipvs(box: Box, host: HostPort, first: str) -> None:
    box.put(("ipset", in_ipvs.sets([SHOP])), ("legacy", in_ipvs.rules([SHOP], [host], first=first)))
    box.at_end(virtual.remove)
    virtual.put(in_ipvs.virtual_servers([SHOP], NODE), [SHOP.address])
    box.objects(*cluster(SHOP, host.port))


@case("hostport_takes_service", "ipvs, the port of a cluster IP", "ipvs")
def _cluster_ip(box: Box) -> Look:
    _ipvs(box, HostPort(SHOP.port, HOST.address, HOSTED, HOST.container), "portmap")
    return Look(
        lambda: box.audit("hostport_takes_service"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT", "ss -lntp": _NONE, "ipvsadm -Ln": SHOP.address,
         "kubectl describe": rf"Host Port: +{SHOP.port}/TCP"},
        mend=lambda: _without_host_port(box, SHOP, ("legacy", in_ipvs.rules([SHOP]))),
    )  # fmt: skip


@case("hostport_takes_service", "ipvs, a NodePort", "ipvs")
def _node_port_of_ipvs(box: Box) -> Look:
    _ipvs(box, HOST, "kube")
    return Look(
        lambda: box.audit("hostport_takes_service"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT", "ss -lntp": _NONE,
         "ipvsadm -Ln |": f"{NODE}:{HOST.port}", "ipvsadm -Ln --stats": f"{NODE}:{HOST.port} +0 ", **_HAS},
        mend=lambda: _without_host_port(box, SHOP, ("legacy", in_ipvs.rules([SHOP]))),
    )  # fmt: skip


def _process(box: Box, service: Service, steps: Step, by_packet: bool) -> Look:
    box.put(steps)
    box.objects(*cluster(service))
    box.listen(service.node_port)
    name = service.name.partition("/")[2]

    def other_port() -> None:
        told = box.api.stored["Service", "shop", name]
        number = told["spec"]["ports"][0]["nodePort"]
        if number == service.node_port:
            # Without kubectl the object is changed as it would.
            number = told["spec"]["ports"][0]["nodePort"] = service.node_port + 1
        now = Service(service.name, service.address, service.port, number, service.ends, service.port_name)
        box.again((steps[0], iptables.rules([now])))

    asked = PathQuery(CLIENT, 40000, NODE, service.node_port)
    return Look(
        lambda: box.shown("nodeport_host_process", asked) if by_packet else box.audit("nodeport_host_process"),
        {"ss -lntp": f":{service.node_port}.*pid=", "kubectl get service": f"nodePort: {service.node_port}"},
        mend=other_port, editor=f"s/nodePort: {service.node_port}/nodePort: {service.node_port + 1}/",
    )  # fmt: skip


@case("nodeport_host_process", "legacy, no endpoints")
def _refused(box: Box) -> Look:
    return _process(box, NONE, ("legacy", iptables.rules([NONE])), by_packet=False)


@case("nodeport_host_process", "a packet, iptables-nft, with endpoints")
def _silent(box: Box) -> Look:
    return _process(box, SHOP, ("nft", iptables.rules([SHOP])), by_packet=True)


RULESETS = Path(__file__).resolve().parents[3] / "vagrant/incidents/rulesets"
GAME = ("2048-game/service-2048", 30420)


def _local(box: Box, by_file: bool, by_packet: bool) -> Look:
    """kube-proxy goes by a name that no endpoint carries; with the right one it writes rules for local endpoints."""
    wrong = "ip-10-188-166-140"

    def start(name: str) -> None:
        conf = Path("/run/kube-proxy.conf")
        conf.write_text(f'kind: KubeProxyConfiguration\nhostnameOverride: "{name}"\n')
        for old in running:
            old.kill()
            old.wait()
        running[:] = [box.kube_proxy(f"--config={conf}" if by_file else f"--hostname-override={name}")]

    running = []  # type: ignore[var-annotated]
    start(wrong)
    box.put(("legacy", (RULESETS / "local-none-1.20.rules").read_text()))
    box.objects(
        objects.node("node-1", NODE, "10.244.0.0/24"),
        objects.service(GAME[0], "172.30.20.48", 80, GAME[1], externalTrafficPolicy="Local"),
        objects.endpoints(GAME[0], [("app-a", PODS["pod-a"], "node-1"), ("app-b", PODS["pod-b"], "node-1")], 80),
    )

    def mend() -> None:
        start("node-1")
        box.again(("legacy", (RULESETS / "local-1.20.rules").read_text()))

    asked = PathQuery(CLIENT, 40000, NODE, GAME[1])
    return Look(
        lambda: box.shown("no_local_endpoints", asked) if by_packet else box.audit("no_local_endpoints"),
        {"kubectl get endpoints": "nodeName: node-1"}, mend=mend,
    )  # fmt: skip


@case("no_local_endpoints", "the name is kube-proxy's flag")
def _by_flag(box: Box) -> Look:
    return _local(box, by_file=False, by_packet=False)


@case("no_local_endpoints", "a packet, the name is in kube-proxy's file")
def _by_file(box: Box) -> Look:
    return _local(box, by_file=True, by_packet=True)
