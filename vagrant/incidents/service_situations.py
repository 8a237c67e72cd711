# SPDX-License-Identifier: Apache-2.0
"""Situations in which requests to Services fail, or arrive changed, each with its healthy twin."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from incidents import Requests, kube_proxy, objects, situations
from incidents.objects import Object
from incidents.proxy import iptables
from incidents.proxy.model import PODS as POD_NETWORKS
from incidents.proxy.model import Service
from incidents.situations import CHAT, SHOP, A, Situation
from scenes import held, nfnetlink, nfqueue, packets, rules, scene, servers
from scenes import traffic as ask
from scenes.netns import entered
from scenes.topology import CLIENT, CLIENT4, GATEWAY4, NODE4

Where = tuple[str | None, str, int]
"""Namespace of a request (None = the node), address and port that it is sent to."""

GONE = (("10.244.0.99", 8080),)
"""An address that no pod has any more."""
CLOSED = replace(SHOP, ends=((A, 8081),))
"""SHOP with an endpoint at a port at which its pod does not listen."""
NEAR = replace(SHOP, local=True, near=SHOP.ends)
QUEUE = 7
ASKED_PORT = 9120
"""Port of the client's server that the node asks."""
BEACON = Service("shop/beacon", "172.30.1.50", 8126, SHOP.node_port, ((A, servers.UDP_PORT),), "beacon", protocol="udp")
METRICS = Service("shop/metrics", "172.30.1.40", 8125, 30308, ((A, servers.UDP_PORT),), "statsd", protocol="udp")
SENT_FROM, HOSTED_UDP = 41000, 30309
"""Ports: of a client that always sends from the same one, and of a hostPort."""
FROM_CLIENT: Where = (CLIENT, NODE4, SHOP.node_port)


@dataclass(frozen=True)
class AskedSituation(Situation):
    """A situation in which one request is sent twice. watched: ports besides those of the Services. sport: of the client, for
    UDP; 0 = TCP. patience: time that a client of TCP waits, s."""

    where: Where = FROM_CLIENT
    watched: tuple[int, ...] = ()
    sport: int = 0
    patience: float = 1.2

    @property
    def ports(self) -> tuple[int, ...]:
        return (*super().ports, *self.watched)

    def traffic(self) -> Requests:
        ns, address, port = self.where
        if self.sport:
            replies = [ask.udp_ask(address, port, ns=ns, timeout=0.4, sport=self.sport) for _ in range(2)]
        else:
            replies = [ask.http_get(address, port, ns=ns, timeout=self.patience) for _ in range(2)]
        return [(f"{ns or 'node-1'} $ curl {address}:{port}", reply.body or reply.outcome) for reply in replies]


@dataclass(frozen=True)
class OutOfWindow(AskedSituation):
    """pod-a sends a segment of an open connection that is far behind its window."""

    def traffic(self) -> Requests:
        with entered(CLIENT):
            sock, wire = socket.socket(), socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        with sock, wire:
            sock.settimeout(2)
            sock.connect((NODE4, SHOP.node_port))
            number, flags = sock.getsockname()[1], packets.ACK | packets.PSH
            seq, ack = _syn_ack(wire, number)
            time.sleep(0.3)
            far = (seq + 1 + (1 << 30)) & 0xFFFFFFFF
            packets.send_tcp(CLIENT4, number, src=A, sport=8080, flags=flags, ns="pod-a", seq=far, ack=ack)
            time.sleep(0.5)
        return [(f"pod-a $ a segment outside of the window to {CLIENT4}:{number}", "sent")]


@dataclass(frozen=True)
class OwnConnection(AskedSituation):
    """The node asks a server of the client; the kernel chooses the port of the connection.

    protocol: "tcp" or "udp". is_idle: after the first answer conntrack's entry ends, and the server sends again. given: value
    of ip_local_port_range. reserved: of ip_local_reserved_ports.
    """

    protocol: str = "tcp"
    is_idle: bool = False
    given: str = f"{SHOP.node_port} {SHOP.node_port}"
    reserved: str = ""

    def up(self) -> list[Object]:
        found = super().up()
        scene.set_for_scene("net/ipv4/ip_local_port_range", self.given)
        scene.set_for_scene("net/ipv4/ip_local_reserved_ports", self.reserved)
        return found

    def traffic(self) -> Requests:
        kind = socket.SOCK_STREAM if self.protocol == "tcp" else socket.SOCK_DGRAM
        mine = socket.socket(socket.AF_INET, kind)
        with entered(CLIENT):
            server = socket.socket(socket.AF_INET, kind)
        with mine, server:
            for sock in (mine, server):
                sock.settimeout(1.2)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((CLIENT4, ASKED_PORT))
            if self.protocol == "tcp":
                server.listen(4)
            answers = self._talk(mine, server)
            port = mine.getsockname()[1]
            # Without its listener the server would refuse the SYN when it is repeated.
            held.keep([mine, server], ns=None)
        return [(f"node-1 $ from port {port} to {CLIENT4}:{ASKED_PORT}, {self.protocol}", answers)]

    def _talk(self, mine: socket.socket, server: socket.socket) -> str:
        """What the node's process got."""
        try:
            mine.connect((CLIENT4, ASKED_PORT))
            mine.send(b"question")
            if self.protocol == "tcp":
                peer = server.accept()[0]
            else:
                # Closing it does not close the server, which the scene keeps.
                peer = server.dup()
                peer.connect(server.recvfrom(64)[1])
            with peer:
                return " ".join(self._answer(mine, peer, n) for n in range(1 + self.is_idle))
        except OSError as e:
            return str(e)

    def _answer(self, mine: socket.socket, peer: socket.socket, number: int) -> str:
        if number:
            nfnetlink.conntrack_flush()
        peer.send(f"answer-{number}".encode())
        try:
            return mine.recv(64).decode()
        except TimeoutError:
            return "timeout"


def _syn_ack(wire: socket.socket, number: int) -> tuple[int, int]:
    """Sequence and acknowledgement number of the SYN ACK to a port. wire: a packet socket without link headers."""
    wire.settimeout(2)
    while True:
        packet = wire.recv(2048)
        tcp = packet[(packet[0] & 15) * 4 :]
        if (
            packet[9] == socket.IPPROTO_TCP
            and int.from_bytes(tcp[2:4], "big") == number
            and tcp[13] == packets.SYN | packets.ACK
        ):
            return int.from_bytes(tcp[4:8], "big"), int.from_bytes(tcp[8:12], "big")


def every() -> list[AskedSituation]:
    """All of these situations, each fault before its healthy twins."""
    found = []
    for name, where in (("another address", (CLIENT, GATEWAY4, 30306)), ("a loopback address", (None, "127.0.0.1", 30306))):
        found += [
            AskedSituation(f"NodePort at {name} of the node", "native", plain, packets="nodeport_address", where=where),
            AskedSituation(f"NodePort at {name}, iptables mode", "legacy", plain, where=where),
        ]
    found.append(AskedSituation("NodePort at the node's primary address", "native", plain))
    for mode in ("legacy", "nft"):
        found += [
            AskedSituation(f"policy Local, masqueraded by {name}", mode, build, packets=finding)
            for name, build, finding in (
                ("an administrator's rule", _masqueraded, "client_address_hidden"),
                ("ip-masq-agent", _masqueraded_by_agent, "client_address_hidden"),
                ("no rule", _near, ""),
                ("a rule for what pods send", _masqueraded_from_pods, ""),
            )
        ]
        found += [
            AskedSituation("mesh without its proxy", mode, _mesh(), packets="mesh_redirect", watched=(15006,)),
            AskedSituation("mesh, a pod's own request", mode, _mesh(), packets="mesh_redirect", watched=(15001, 8080),
                           where=("pod-a", situations.B, 8080)),
            AskedSituation("mesh with its proxy", mode, _mesh(15006), watched=(15006,)),
        ]  # fmt: skip
    ending = {"ready": False, "serving": True, "terminating": True}
    found += [
        AskedSituation("terminating endpoint that refuses", "legacy", _ends_as(CLOSED, ending), packets="terminating_endpoint"),
        AskedSituation("terminating endpoint that answers", "legacy", _ends_as(SHOP, ending)),
        AskedSituation("ready endpoint that refuses", "legacy", _ends_as(CLOSED, {"ready": True})),
    ]
    for mode in ("legacy", "nft", "native"):
        found += [
            AskedSituation(
                f"queue {name}",
                mode,
                queued(option, passes, options),
                packets=finding,
                audit=audit,
            )
            for name, option, passes, options, finding, audit in (
                ("without a process", "", None, nfqueue.PLAIN, "nfqueue_unattended", "nfqueue_unattended"),
                ("without a process, bypass", "bypass", None, nfqueue.PLAIN, "", ""),
                ("with a process that drops", "", False, nfqueue.PLAIN, "dropped_by_queue", ""),
                ("with a process", "", True, nfqueue.PLAIN, "", ""),
                ("that is full", "", True, nfqueue.Options(silent=True, maximum=1), "queue_full", ""),
                ("with a slow process, and room", "", True, nfqueue.Options(delay_seconds=0.05), "", ""),
            )
        ]
    for mode in ("legacy", "nft"):
        found += [
            AskedSituation("ports of a masquerade are used up", mode, _masqueraded_to("40000-40001"),
                           packets="snat_ports_exhausted", patience=4.5),
            AskedSituation("ports of a masquerade suffice", mode, _masqueraded_to("40000-40010")),
        ]  # fmt: skip
    found += [
        OutOfWindow("segments outside of the window", "legacy", _near, packets="invalid_then_reset", watched=(8080,)),
        OutOfWindow("segments outside of the window, dropped by kube-proxy", "legacy", _near_strict, watched=(8080,)),
    ]
    names, hosted = (METRICS,), (CLIENT, NODE4, HOSTED_UDP)
    found += [
        AskedSituation("UDP entry of a Service without endpoints", "legacy", _lost_last_endpoint, names,
                       packets="stale_conntrack", sport=SENT_FROM, where=(CLIENT, NODE4, METRICS.node_port)),
        AskedSituation("UDP without an entry, no endpoints", "legacy", _lost_last_endpoint, names, sport=SENT_FROM - 1,
                       where=(CLIENT, NODE4, METRICS.node_port)),
        AskedSituation("UDP entry of a pod that had the hostPort", "legacy", _moved_host_port(True), (),
                       packets="stale_conntrack", where=hosted, watched=(HOSTED_UDP,), sport=SENT_FROM),
        AskedSituation("UDP entry of a pod with the hostPort", "legacy", _moved_host_port(False), (),
                       where=hosted, watched=(HOSTED_UDP,), sport=SENT_FROM),
    ]  # fmt: skip
    return [*found, *_own_connections(), *_behind()]


def _behind() -> list[AskedSituation]:
    """Rules that kube-proxy has not written for minutes, and rules that it has written."""
    name = "rules_behind_objects"
    moved, new, back = _served_by(GONE), _served_by((), CHAT), _served_by(())
    found = []
    for mode in ("legacy", "nft", "native", "ipvs"):
        found += [
            AskedSituation("kube-proxy is gone, an endpoint has moved", mode, moved, packets=name, audit=name),
            AskedSituation("kube-proxy is gone, a Service has got endpoints", mode, back, packets=name, audit=name),
            AskedSituation("an endpoint has moved a moment ago", mode, _served_by(GONE, ago=5)),
            AskedSituation("kube-proxy is gone, nothing has changed", mode, _served_by(SHOP.ends)),
            AskedSituation("an endpoint has moved, and the rules have it", mode, _served_by(SHOP.ends, process=True)),
        ]
        if mode != "ipvs":
            found.append(AskedSituation("kube-proxy is gone, a Service is new", mode, new, packets=name, audit=name))
    stopped = _served_by(GONE, process=True, is_stopped=True)
    calm = _served_by(SHOP.ends, process=True, is_stopped=True)
    return [
        *found,
        AskedSituation("kube-proxy is stopped by a signal", "legacy", stopped, packets=name, audit=name),
        AskedSituation("kube-proxy is stopped by a signal, nothing has changed", "legacy", calm),
    ]


def _served_by(
    ends: tuple[tuple[str, int], ...], *others: Service, ago: int = 600, process: bool = False, is_stopped: bool = False
) -> Callable[[str], list[Object]]:
    """The API has pod-a as the endpoint of SHOP.

    ends: those that the rules have. others: the rules are for these Services instead. ago: age of the API's objects, s.
    process: kube-proxy runs. is_stopped: a signal has stopped it.
    """

    def build(mode: str) -> list[Object]:
        scene.bare()
        situations.kube(mode, *(others or (replace(SHOP, ends=ends),)))
        if process:
            kube_proxy.start("--hostname-override=node-1", is_stopped=is_stopped)
        return [objects.changed(each, int(time.time()) - ago) for each in situations.objects_of(SHOP, *others)]

    return build


def _own_connections() -> list[AskedSituation]:
    """The node's own connections with the number of a NodePort, and such with another one."""
    taken, both = "ephemeral_port_taken", f"{SHOP.node_port} {SHOP.node_port + 1}"

    def reserved(one: OwnConnection, name: str) -> OwnConnection:
        """The same with the NodePort reserved: the kernel chooses the next port."""
        port = SHOP.node_port
        return replace(one, name=name, packets="", audit="", watched=(port + 1,), given=both, reserved=str(port))

    made = OwnConnection("a NodePort as the port of a connection", "ipvs", plain, packets=taken, audit=taken)
    found = [made, reserved(made, "a NodePort as the port of a connection, reserved")]
    for mode, build, names, protocol in (
        ("legacy", plain, (SHOP,), "tcp"),
        ("nft", plain, (SHOP,), "tcp"),
        ("native", plain, (SHOP,), "tcp"),
        ("legacy", _beacon, (BEACON,), "udp"),
    ):
        name = f"an idle {protocol} connection with a NodePort as its port"
        idle = OwnConnection(name, mode, build, names, packets=taken, perhaps=(taken,), protocol=protocol, is_idle=True)
        busy = replace(idle, name=f"a {protocol} connection with a NodePort as its port", packets="", is_idle=False)
        found += [idle, busy, reserved(idle, f"an idle {protocol} connection, the NodePort reserved")]
    masqueraded = [
        AskedSituation("a NodePort as the port of a masqueraded connection", mode, _masqueraded_to_node_port,
                       where=("pod-a", CLIENT4, ASKED_PORT), watched=(ASKED_PORT,))
        for mode in ("ipvs", "legacy", "nft")
    ]  # fmt: skip
    return [*found, *masqueraded]


def _masqueraded_to_node_port(mode: str) -> list[Object]:
    """What pods send to the client's server gets the NodePort of SHOP as its port, or the next one."""
    found = plain(mode)
    # The second connection gets the first one's port. Its timestamp would be older in half of the cases (docs/kernel-facts.md).
    scene.set_in_namespace("net/ipv4/tcp_timestamps", "2", "pod-a")
    servers.start([servers.Server(CLIENT, "outside", http=ASKED_PORT, udp=None)])
    ports = f"{SHOP.node_port}-{SHOP.node_port + 1}"
    text = f"*nat\n-I POSTROUTING 1 -d {CLIENT4}/32 -p tcp --dport {ASKED_PORT} -j MASQUERADE --to-ports {ports}\nCOMMIT\n"
    rules.restore_text(text, 4, "nft" if mode == "nft" else "legacy", flush=False)
    return found


def _beacon(mode: str) -> list[Object]:
    """A Service with a NodePort of UDP."""
    scene.bare()
    situations.kube(mode, BEACON)
    service = objects.service(BEACON.name, BEACON.address, BEACON.port, BEACON.node_port, BEACON.port_name)
    service["spec"]["ports"][0]["protocol"] = "UDP"
    ends = objects.endpoints(BEACON.name, [("pod-a", A, "node-1")], servers.UDP_PORT, BEACON.port_name)
    ends["ports"][0]["protocol"] = "UDP"
    return [objects.node("node-1", NODE4, "10.244.0.0/24"), service, ends, objects.pod("default/pod-a", A, "node-1", 8080)]


def plain(mode: str) -> list[Object]:
    scene.bare()
    situations.kube(mode, SHOP)
    return situations.objects_of(SHOP)


def _near(mode: str, *post: str) -> list[Object]:
    """SHOP with policy Local and its pod here. post: rules of POSTROUTING after kube-proxy's."""
    scene.bare()
    situations.kube(mode, NEAR, post=post)
    return situations.objects_of(SHOP, local=(SHOP,))


def _near_strict(mode: str) -> list[Object]:
    """As _near, with the rule of kube-proxy that drops INVALID packets."""
    found = _near(mode)
    rules.restore_text("*filter\n-I KUBE-FORWARD 1 -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n", 4, "legacy", flush=False)
    return found


def _masqueraded(mode: str) -> list[Object]:
    return _near(mode, f"-d {POD_NETWORKS[4]} -j MASQUERADE")


def _masqueraded_from_pods(mode: str) -> list[Object]:
    return _near(mode, f"-s {POD_NETWORKS[4]} ! -d {POD_NETWORKS[4]} -j MASQUERADE")


MASQ_AGENT = """*nat
:IP-MASQ-AGENT - [0:0]
-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our \
custom IP-MASQ-AGENT chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
-A IP-MASQ-AGENT -d 172.16.0.0/12 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN
-A IP-MASQ-AGENT -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" \
-j MASQUERADE
COMMIT
"""
"""ip-masq-agent's rules with nonMasqueradeCIDRs that lack the pods' network."""


def _masqueraded_by_agent(mode: str) -> list[Object]:
    found = _near(mode)
    rules.restore_text(MASQ_AGENT, 4, "legacy" if mode == "legacy" else "nft", flush=False)
    return found


ISTIO = """*nat
:ISTIO_INBOUND - [0:0]
:ISTIO_IN_REDIRECT - [0:0]
:ISTIO_OUTPUT - [0:0]
:ISTIO_REDIRECT - [0:0]
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A ISTIO_INBOUND -p tcp -m tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
COMMIT
"""
"""Istio's rules in the network namespace of a pod, those that a request meets."""


def _mesh(*proxy: int) -> Callable[[str], list[Object]]:
    """proxy: ports on which the mesh's proxy listens in pod-a."""

    def build(mode: str) -> list[Object]:
        found = plain(mode)
        servers.start([servers.Server("pod-a", "proxy", http=port, udp=None) for port in proxy])
        with entered("pod-a"):
            rules.restore_text(ISTIO, 4, "legacy" if mode == "legacy" else "nft")
        return found

    return build


def _ends_as(service: Service, conditions: dict[str, bool]) -> Callable[[str], list[Object]]:
    """service: with one endpoint, of pod-a. conditions: those of the endpoint."""

    def build(mode: str) -> list[Object]:
        scene.bare()
        situations.kube(mode, service)
        found = situations.objects_of(service)
        ends = next(o for o in found if o["kind"] == "EndpointSlice")
        ends["endpoints"][0]["conditions"] = conditions
        ends["ports"][0]["port"] = service.ends[0][1]
        return found

    return build


def queued(option: str, passes: bool | None, options: nfqueue.Options = nfqueue.PLAIN) -> Callable[[str], list[Object]]:
    """Requests pass a rule that hands them to a queue.

    Args:
        option: "bypass" or "".
        passes: Whether the process behind the queue accepts them; None = there is no process.
        options: How the queue and its process are set up.
    """

    def build(mode: str) -> list[Object]:
        found = plain(mode)
        if mode == "native":
            flags = f" flags {option}" if option else ""
            rule = f"ip daddr {A} tcp dport 8080 queue{flags} to {QUEUE}"
            head = "type filter hook forward priority -5; policy accept;"
            situations.nft(f"table ip inspector {{\nchain inspect {{\n{head}\n{rule}\n}}\n}}\n")
        else:
            bypass = f" --queue-{option}" if option else ""
            # Before kube-proxy's rule, which accepts what it has marked.
            rule = f"-I FORWARD 1 -d {A}/32 -p tcp -m tcp --dport 8080 -j NFQUEUE --queue-num {QUEUE}{bypass}"
            rules.restore_text(f"*filter\n{rule}\nCOMMIT\n", 4, "legacy" if mode == "legacy" else "nft", flush=False)
        if passes is not None:
            nfqueue.start(QUEUE, decide=None if passes else lambda packet: nfqueue.DROP, options=options)
        return found

    return build


def _lost_last_endpoint(mode: str) -> list[Object]:
    """A client has sent to METRICS. Then its only pod ends, and kube-proxy leaves the entry."""
    scene.bare()
    situations.kube(mode, METRICS)
    ask.udp_ask(NODE4, METRICS.node_port, ns=CLIENT, timeout=1.0, sport=SENT_FROM)
    empty = replace(METRICS, ends=())
    rules.restore_text(iptables.rules([empty]), 4, "legacy")
    service = objects.service(METRICS.name, METRICS.address, METRICS.port, METRICS.node_port, METRICS.port_name)
    service["spec"]["ports"][0]["protocol"] = "UDP"
    return [objects.node("node-1", NODE4, "10.244.0.0/24"), service]


def _moved_host_port(is_gone: bool) -> Callable[[str], list[Object]]:
    """A client has sent to a hostPort of pod-a. is_gone: pod-a ends, and pod-b has the hostPort."""

    def build(mode: str) -> list[Object]:
        scene.bare()
        _host_port_rule(A)
        ask.udp_ask(NODE4, HOSTED_UDP, ns=CLIENT, timeout=1.0, sport=SENT_FROM)
        name, address = ("pod-b", situations.B) if is_gone else ("pod-a", A)
        _host_port_rule(address)
        pod = objects.pod(f"shop/{name}", address, "node-1", servers.UDP_PORT, HOSTED_UDP)
        pod["spec"]["containers"][0]["ports"][0]["protocol"] = "UDP"
        return [objects.node("node-1", NODE4, "10.244.0.0/24"), pod]

    return build


def _host_port_rule(address: str) -> None:
    """The rules of portmap for a hostPort, as one."""
    at = f"-d {NODE4}/32 -p udp -m udp --dport {HOSTED_UDP}"
    text = f"*nat\n-A PREROUTING {at} -j DNAT --to-destination {address}:{servers.UDP_PORT}\nCOMMIT\n"
    rules.restore_text(text, 4, "legacy")


def _masqueraded_to(ports: str) -> Callable[[str], list[Object]]:
    """Two clients hold connections that are masqueraded to these ports."""

    def build(mode: str) -> list[Object]:
        found = plain(mode)
        text = f"*nat\n-I POSTROUTING 1 -d {A}/32 -p tcp -j MASQUERADE --to-ports {ports}\nCOMMIT\n"
        rules.restore_text(text, 4, "legacy" if mode == "legacy" else "nft", flush=False)
        held.hold(NODE4, SHOP.node_port, 2, ns=CLIENT)
        return found

    return build
