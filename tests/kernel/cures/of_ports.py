# SPDX-License-Identifier: Apache-2.0
"""Cases of ports with two claimants: hostPorts and NodePorts, a process and a NodePort."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace
from pathlib import Path

from incidents import ipvs as virtual
from incidents import objects
from incidents.objects import Object
from incidents.proxy import iptables, nftables
from incidents.proxy import ipvs as in_ipvs
from incidents.proxy.model import HostPort, Service
from tests.kernel.audit_nodes import CLIENT, HOSTED, NODE, PODS, PORT
from tests.kernel.cures import BuiltCase, case
from tests.kernel.cures.box import Box, Step
from tracer.model.finding import Finding
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
    """Makes the pod again without its hostPort: the runtime lets portmap remove its rules."""
    box.objects(*cluster(service))
    box.rewrite(*steps)


_NONE = r"\A[^\n]*\n?\Z"
"""Output of ss for a port without a listener: the heading only."""
_HAS = {"kubectl describe pod -n db pg-hp": rf"Host Port: +{HOST.port}/TCP"}


@case("hostport_takes_service", "legacy, portmap's jump first, kube-proxy holds the NodePort")
def _order(box: Box) -> BuiltCase:
    box.put(("legacy", iptables.rules([SHOP], [HOST], first="portmap")))
    box.objects(*cluster(SHOP, HOST.port))
    box.kube_proxy("--hostname-override=node-1", port=HOST.port)
    return BuiltCase(
        lambda: box.audit("hostport_takes_service"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT.*--dports 30306", f"sport = :{HOST.port}": "kube-proxy", **_HAS},
        repair=lambda: _without_host_port(box, SHOP, ("legacy", iptables.rules([SHOP]))),
    )


@case("hostport_takes_service", "a packet, iptables-nft, portmap's jump first, nothing listens")
def _packet(box: Box) -> BuiltCase:
    box.put(("nft", iptables.rules([SHOP], [HOST], first="portmap")))
    box.objects(*cluster(SHOP, HOST.port))
    return BuiltCase(
        lambda: box.predicted_findings("hostport_takes_service", PathQuery(CLIENT, 40000, NODE, HOST.port)),
        {"iptables-nft-save -t nat": "CNI-HOSTPORT-DNAT.*--dports 30306", f"sport = :{HOST.port}": _NONE, **_HAS},
        repair=lambda: _without_host_port(box, SHOP, ("nft", iptables.rules([SHOP]))),
    )


@case("hostport_takes_service", "legacy, for every address")
def _anywhere(box: Box) -> BuiltCase:
    host = HostPort(SHOP.port, HOST.address, HOSTED, HOST.container)
    box.put(("legacy", iptables.rules([SHOP], [host], first="anywhere")))
    box.objects(*cluster(SHOP, SHOP.port))
    return BuiltCase(
        lambda: box.audit("hostport_takes_service", SHOP.port, "tcp", "db/pg-hp", "elsewhere"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT", "ss -lntp": _NONE,
         "kubectl describe": rf"Host Port: +{SHOP.port}/TCP"},
        repair=lambda: _without_host_port(box, SHOP, ("legacy", iptables.rules([SHOP]))),
    )  # fmt: skip


@case("hostport_takes_service", "nftables, of a container that no pod is known for")
def _native(box: Box) -> BuiltCase:
    both = (("native", nftables.rules([SHOP], NODE)), ("native", nftables.host_ports([HOST])))
    box.put(*both)
    other = objects.pod("db/other", "10.244.0.77", "node-1", 1, HOST.port)
    box.objects(*(o for o in cluster(SHOP) if o["kind"] != "Pod"), other)
    return BuiltCase(
        lambda: box.audit("hostport_takes_service"),
        {"nft -a list table ip cni_hostport": "30306", "ss -lntp": "", "kubectl get pods -A": rf"db +other +{HOST.port}"},
        repair=lambda: _without_host_port(box, SHOP, both[0]),
    )


def _ipvs(box: Box, host: HostPort, first: str) -> None:
    box.put(("ipset", in_ipvs.sets([SHOP])), ("legacy", in_ipvs.rules([SHOP], [host], first=first)))
    box.at_end(virtual.remove)
    virtual.put(in_ipvs.virtual_servers([SHOP], NODE), [SHOP.address])
    box.objects(*cluster(SHOP, host.port))


@case("hostport_takes_service", "ipvs, the port of a cluster IP", "ipvs")
def _cluster_ip(box: Box) -> BuiltCase:
    _ipvs(box, HostPort(SHOP.port, HOST.address, HOSTED, HOST.container), "portmap")
    return BuiltCase(
        lambda: box.audit("hostport_takes_service"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT", "ss -lntp": _NONE, "ipvsadm -Ln": SHOP.address,
         "kubectl describe": rf"Host Port: +{SHOP.port}/TCP"},
        repair=lambda: _without_host_port(box, SHOP, ("legacy", in_ipvs.rules([SHOP]))),
    )  # fmt: skip


@case("hostport_takes_service", "ipvs, a NodePort", "ipvs")
def _node_port_of_ipvs(box: Box) -> BuiltCase:
    _ipvs(box, HOST, "kube")
    return BuiltCase(
        lambda: box.audit("hostport_takes_service"),
        {"iptables-legacy-save -t nat": "CNI-HOSTPORT-DNAT", "ss -lntp": _NONE,
         "ipvsadm -Ln |": f"{NODE}:{HOST.port}", "ipvsadm -Ln --stats": f"{NODE}:{HOST.port} +0 ", **_HAS},
        repair=lambda: _without_host_port(box, SHOP, ("legacy", in_ipvs.rules([SHOP]))),
    )  # fmt: skip


def _process(box: Box, service: Service, steps: Step, by_packet: bool) -> BuiltCase:
    box.put(steps)
    box.objects(*cluster(service))
    box.listen(service.node_port)
    name = service.name.partition("/")[2]

    def other_port() -> None:
        stored = box.api.stored["Service", "shop", name]
        number = stored["spec"]["ports"][0]["nodePort"]
        if number == service.node_port:
            # Where kubectl is not installed, the object is changed as kubectl would.
            number = stored["spec"]["ports"][0]["nodePort"] = service.node_port + 1
        now = Service(service.name, service.address, service.port, number, service.ends, service.port_name)
        box.rewrite((steps[0], iptables.rules([now])))

    query = PathQuery(CLIENT, 40000, NODE, service.node_port)
    return BuiltCase(
        lambda: box.predicted_findings("nodeport_host_process", query) if by_packet else box.audit("nodeport_host_process"),
        {"ss -lntp": f":{service.node_port}.*pid=", "kubectl get service": f"nodePort: {service.node_port}"},
        repair=other_port, editor=f"s/nodePort: {service.node_port}/nodePort: {service.node_port + 1}/",
    )  # fmt: skip


@case("nodeport_host_process", "legacy, no endpoints")
def _refused(box: Box) -> BuiltCase:
    return _process(box, NONE, ("legacy", iptables.rules([NONE])), by_packet=False)


@case("nodeport_host_process", "a packet, iptables-nft, with endpoints")
def _silent(box: Box) -> BuiltCase:
    return _process(box, SHOP, ("nft", iptables.rules([SHOP])), by_packet=True)


RANGE, RESERVED = "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports"
_SHOWN = r"ip_local_port_range = 30306\s30307\n.*ip_local_reserved_ports = *\n"


def _given(box: Box) -> None:
    """The kernel gives ports from 30306 to 30307; the first one is SHOP's NodePort."""
    box.set(RESERVED, Path("/proc/sys", RESERVED).read_text())
    box.set(RANGE, f"{SHOP.node_port} {SHOP.node_port + 1}")


@case("ephemeral_port_taken", "legacy")
def _in_range(box: Box) -> BuiltCase:
    box.put(("legacy", iptables.rules([SHOP])))
    box.objects(*cluster(SHOP))
    _given(box)
    return BuiltCase(lambda: box.audit("ephemeral_port_taken"), {"sysctl net": _SHOWN})


@case("ephemeral_port_taken", "ipvs", "ipvs")
def _in_range_of_ipvs(box: Box) -> BuiltCase:
    _ipvs(box, HostPort(HOSTED, HOST.address, HOSTED, HOST.container), "kube")
    _given(box)
    return BuiltCase(lambda: box.audit("ephemeral_port_taken"), {"sysctl net": _SHOWN})


@case("ephemeral_port_taken", "a packet, iptables-nft, its connection has no entry")
def _connection(box: Box) -> BuiltCase:
    box.put(("nft", iptables.rules([SHOP])))
    box.objects(*cluster(SHOP))
    _given(box)
    box.listen(PORT, "client")
    socks = []  # type: ignore[var-annotated]

    def connect() -> None:
        for old in socks:
            old.close()
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.connect((CLIENT, PORT))
        socks[:] = [made]

    # The kernel gives even numbers of the range to connections first.
    connect()
    box.at_end(lambda: socks[0].close())

    def find() -> list[Finding]:
        number = socks[0].getsockname()[1]
        late = [replace(packet, tcp_flags="PSH ACK") for packet in box.packets(PathQuery(CLIENT, PORT, NODE, number))]
        return box.packet_findings("ephemeral_port_taken", late)

    def restart() -> None:
        """Now all ports of the small range are reserved; a real one has others."""
        Path("/proc/sys", RANGE).write_text(f"{SHOP.node_port} 32769")
        connect()

    return BuiltCase(find, {"sysctl net": _SHOWN, "ss -antp": rf"{NODE}:{SHOP.node_port} +{CLIENT}:{PORT} "}, repair=restart)


RULESETS = Path(__file__).resolve().parents[3] / "vagrant/incidents/rulesets"
GAME = ("2048-game/service-2048", 30420)


def _local(box: Box, by_file: bool, by_packet: bool) -> BuiltCase:
    """kube-proxy has a node name that no endpoint has; with the right name it writes rules for local endpoints."""
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

    def repair() -> None:
        start("node-1")
        box.rewrite(("legacy", (RULESETS / "local-1.20.rules").read_text()))

    query = PathQuery(CLIENT, 40000, NODE, GAME[1])
    return BuiltCase(
        lambda: box.predicted_findings("no_local_endpoints", query) if by_packet else box.audit("no_local_endpoints"),
        {"kubectl get endpoints": "nodeName: node-1"}, repair=repair,
    )  # fmt: skip


@case("no_local_endpoints", "the name is kube-proxy's flag")
def _by_flag(box: Box) -> BuiltCase:
    return _local(box, by_file=False, by_packet=False)


@case("no_local_endpoints", "a packet, the name is in kube-proxy's file")
def _by_file(box: Box) -> BuiltCase:
    return _local(box, by_file=True, by_packet=True)
