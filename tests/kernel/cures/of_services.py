# SPDX-License-Identifier: Apache-2.0
"""Cases of requests to Services that fail, or arrive changed. Where only a probe could see what ended the packet, a real
request shows whether the fault is there, and the end is added to the predicted packet.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from incidents import objects
from incidents.objects import Object
from incidents.proxy import iptables, nftables
from incidents.proxy.model import Service
from incidents.service_situations import ISTIO, MASQ_AGENT
from scenes import netns
from tests.kernel.audit_nodes import CLIENT, NETWORK, NODE, PODS, PORT
from tests.kernel.cures import BuiltCase, case
from tests.kernel.cures.box import Box
from tests.kernel.cures.of_ports import SHOP, cluster
from tracer.findings import Findings
from tracer.kube.attribution import attribute
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import Drop, DropHop, HookHop, Nat, NatHop, Socket, SocketHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import RuleHit, RuleLocation, RuleTrace
from tracer.node import proxy_state
from tracer.packets.outcome import classify
from tracer.predict.query import PathQuery
from tracer.rules import save_parser

OTHER_ADDRESS, POD_A = "10.244.0.1", Netns("pod-a")


def is_refused(address: str, port: int, namespace: str = "client") -> bool:
    """Whether a real connection is refused."""
    with netns.entered(namespace):
        sock = socket.socket()
    with sock:
        sock.settimeout(2)
        try:
            sock.connect((address, port))
        except ConnectionRefusedError:
            return True
    return False


def refused_in(packet: Packet, where: Netns) -> Packet:
    """The packet, refused for want of a listener in a namespace."""
    made = replace(packet, hops=(*packet.hops, DropHop(9, where, drop=Drop("NO_SOCKET", "tcp_v4_rcv"))))
    verdict, outcome = classify(made)
    return replace(made, verdict=verdict, outcome=outcome)


@case("nodeport_address", "an address that is not in nodePortAddresses")
def _other_address(box: Box) -> BuiltCase:
    box.put(("native", nftables.rules([SHOP], NODE)))
    box.objects(*cluster(SHOP))
    box.listen(PORT, "pod-a")

    def find() -> list[Finding]:
        if not is_refused(OTHER_ADDRESS, SHOP.node_port):
            return []
        predicted = box.packets(PathQuery(CLIENT, 40000, OTHER_ADDRESS, SHOP.node_port))
        return box.packet_findings("nodeport_address", [refused_in(packet, HOST) for packet in predicted])

    both = f"{NODE}, {OTHER_ADDRESS}"
    return BuiltCase(
        find, {"nft list set ip kube-proxy nodeport-ips": rf"elements = {{ {NODE} }}"},
        repair=lambda: box.rewrite(("native", nftables.rules([SHOP], both))),
    )  # fmt: skip


def _hidden(box: Box, back: str, post: str, expected: str, text: str = "") -> BuiltCase:
    """post: a rule of POSTROUTING. text: rules written after kube-proxy's."""
    near = replace(SHOP, local=True, near=SHOP.ends)
    own = (back, iptables.rules([near]))
    box.put((back, iptables.rules([near], post=[post] if post else [])), *([(back, text)] if text else []))
    found = cluster(SHOP)
    found[1]["spec"]["externalTrafficPolicy"] = "Local"
    box.objects(*found)
    return BuiltCase(
        lambda: box.predicted_findings("client_address_hidden", PathQuery(CLIENT, 40000, NODE, SHOP.node_port)),
        {f"iptables-{back} -t nat -L": expected}, repair=lambda: box.rewrite(own),
    )  # fmt: skip


@case("client_address_hidden", "an administrator's rule, legacy")
def _hidden_legacy(box: Box) -> BuiltCase:
    return _hidden(box, "legacy", f"-d {NETWORK} -j MASQUERADE", f"MASQUERADE .*{NETWORK}")


@case("client_address_hidden", "ip-masq-agent, iptables-nft")
def _hidden_nft(box: Box) -> BuiltCase:
    return _hidden(box, "nft", "", "outbound traffic is subject to MASQUERADE", MASQ_AGENT)


@case("mesh_redirect", "Istio's rules, nothing listens")
def _mesh(box: Box) -> BuiltCase:
    in_pod = ["ip", "netns", "exec", POD_A]
    subprocess.run([*in_pod, "iptables-legacy-restore"], input=ISTIO, text=True, check=True)
    box.at_end(lambda: subprocess.run([*in_pod, "iptables-legacy-restore"], input="*nat\nCOMMIT\n", text=True, check=True))
    box.objects(*cluster(SHOP))
    saved = subprocess.run([*in_pod, "iptables-legacy-save"], capture_output=True, text=True, check=True).stdout

    def find() -> list[Finding]:
        if not is_refused(PODS["pod-a"], PORT):
            return []
        rules = save_parser.parse(saved)
        (rule,) = rules.chain("ip", "nat", "ISTIO_IN_REDIRECT")
        ends = Endpoints(CLIENT, 40000, PODS["pod-a"], PORT)
        hit = RuleHit((RuleLocation(rule.chain, 1),), rule, "REDIRECT", Evidence.OBSERVED)
        nat = Nat("DNAT", ends, replace(ends, dport=15006))
        hop = NatHop(0, POD_A, Hook.PREROUTING, nat=nat, rule_trace=RuleTrace((hit,), ruleset=rules))
        packet = Packet(1, 0, HOST, "eth0", "IPv4", "TCP", ends, "SYN", 60, hops=(hop,))
        return box.packet_findings("mesh_redirect", [refused_in(packet, POD_A)])

    return BuiltCase(
        find, {"ss -lntp": r"\A[^\n]*\n?\Z", "iptables-legacy -t nat -L ISTIO_IN_REDIRECT": "redir ports 15006"},
        repair=lambda: box.listen(15006, POD_A), namespace=POD_A,
    )  # fmt: skip


@case("terminating_endpoint", "its process has closed the listener")
def _terminating(box: Box) -> BuiltCase:
    box.put(("legacy", iptables.rules([SHOP])))
    found = cluster(SHOP)
    found[-1]["endpoints"][0]["conditions"] = {"ready": False, "serving": True, "terminating": True}
    found[-1]["endpoints"][0]["targetRef"] = {"kind": "Pod", "namespace": "db", "name": "pg-hp"}
    found[-2]["metadata"]["deletionTimestamp"] = "2026-11-27T07:00:00Z"
    box.objects(*found)

    def find() -> list[Finding]:
        if not is_refused(NODE, SHOP.node_port):
            return []
        query = PathQuery(CLIENT, 40000, NODE, SHOP.node_port)
        findings = Findings(box.context)
        for packet in box.packets(query):
            syn = attribute(refused_in(packet, POD_A), box.context.cluster)
            cause = Cause("no listener", "no listener in pod-a", Evidence.OBSERVED)
            attempt = ConnectionAttempt(syn, 0)
            findings.look_syn(HandshakeVerdict(1, 0, attempt.asked, attempt.reached, HOST, cause, attempt=attempt))
        return [f for f in findings.all if f.name == "terminating_endpoint"]

    return BuiltCase(
        find, {"kubectl get pods -n db pg-hp": "deletionTimestamp: .?2026-11-27"}, repair=lambda: box.listen(PORT, POD_A)
    )


@case("nfqueue_unattended", "legacy")
def _queue(box: Box) -> BuiltCase:
    box.put(("legacy", f"*filter\n-A FORWARD -d {PODS['pod-a']}/32 -p tcp -j NFQUEUE --queue-num 7\nCOMMIT\n"))
    box.objects(*cluster(SHOP))
    shown = {"cat /proc/net/netfilter/nfnetlink_queue": r"\A\Z", "iptables-legacy -t filter -L FORWARD": "NFQUEUE num 7"}
    return BuiltCase(lambda: box.audit("nfqueue_unattended"), shown)


@case("nfqueue_unattended", "a table of nftables")
def _native_queue(box: Box) -> BuiltCase:
    head = "table ip inspector {\nchain inspect {\ntype filter hook forward priority -5; policy accept;\n"
    box.put(("native", f"{head}ip daddr {PODS['pod-a']} queue to 7\n}}\n}}\n"))
    box.objects(*cluster(SHOP))
    shown = {"cat /proc/net/netfilter/nfnetlink_queue": r"\A\Z", "nft -a list chain ip inspector inspect": "queue (to|num) 7"}
    return BuiltCase(lambda: box.audit("nfqueue_unattended"), shown)


@case("snat_ports_exhausted", "a range of two ports", "conntrack")
def _ports(box: Box) -> BuiltCase:
    """The client itself repeats its SYN: a connection that is not made in time was dropped at least three times."""
    server = box.listen(PORT, "pod-a")

    def masquerade(ports: str) -> tuple[str, str]:
        return "legacy", f"*nat\n-A POSTROUTING -d {PODS['pod-a']}/32 -p tcp -j MASQUERADE --to-ports {ports}\nCOMMIT\n"

    def connects() -> bool:
        with netns.entered("client"):
            sock = socket.socket()
        box.at_end(sock.close)
        sock.settimeout(4)
        try:
            sock.connect((PODS["pod-a"], PORT))
        except TimeoutError:
            return False
        return True

    def find() -> list[Finding]:
        if connects():
            return []
        findings = Findings(box.context)
        for packet in box.packets(PathQuery(CLIENT, 40000, PODS["pod-a"], PORT)):
            cause = Cause("conntrack race lost", "dropped: another connection is there already", Evidence.OBSERVED)
            attempt = ConnectionAttempt(attribute(packet, box.context.cluster), 0)
            findings.look_syn(HandshakeVerdict(1, 0, attempt.asked, attempt.reached, HOST, cause, 2, attempt=attempt))
        return [f for f in findings.all if f.name == "snat_ports_exhausted"]

    assert server.fileno() >= 0
    box.put(masquerade("40000-40001"))
    assert connects() and connects()
    shown = {"conntrack -L -p tcp": rf"src={PODS['pod-a']} dst={OTHER_ADDRESS} .*dport=4000[01]"}
    return BuiltCase(find, shown, repair=lambda: box.rewrite(masquerade("40000-40010")))


@case("invalid_then_reset", "strict tracking", "conntrack")
def _out_of_window(box: Box) -> BuiltCase:
    """The setting of this namespace decides whether a segment outside of the window is INVALID; the packets are made."""
    box.objects(*cluster(SHOP))
    name = "net/netfilter/nf_conntrack_tcp_be_liberal"
    box.set(name, "0")
    ends = Endpoints(PODS["pod-a"], PORT, CLIENT, 41000)
    left = HookHop(0, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, in_iface="cni0", out_iface="eth0")
    segment = Packet(1, 0, HOST, "cni0", "IPv4", "TCP", ends, "PSH ACK", 40, hops=(left,), outcome=Outcome.FORWARDED,
                     untracked="INVALID")  # fmt: skip
    reached = SocketHop(1, POD_A, socket=Socket(1, "ESTABLISHED", 1, "server"))
    reset = replace(segment, endpoints=ends.reversed, tcp_flags="RST", hops=(reached,), outcome=Outcome.DELIVERED)

    def find() -> list[Finding]:
        if box.context.node.setting(name) != "0":
            return []
        return box.packet_findings("invalid_then_reset", [segment, reset])

    return BuiltCase(find, {"conntrack -S": "invalid=", "sysctl net.netfilter": "tcp_be_liberal = 0"})


_SYNCED = """
import http.server
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"lastUpdated": "2026-11-28 10:00:00 +0000 UTC", "currentTime": "2026-11-28 11:00:00 +0000 UTC"}'
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(("127.0.0.1", 10256), Health)
print("ready", flush=True)
server.serve_forever()
"""
"""kube-proxy's health check when it cannot write its rules."""
_SLICES = {"kubectl get endpointslices": rf"- {PODS['pod-a']}\n"}


def _all_processes(box: Box) -> None:
    """The processes in the namespace of these tests are all that the box's machine has."""
    before = proxy_state.FIRST_PID_NAMESPACE
    box.at_end(lambda: setattr(proxy_state, "FIRST_PID_NAMESPACE", before))
    proxy_state.FIRST_PID_NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino


def _changed(*services: Service) -> list[Object]:
    """Objects that were changed ten minutes ago."""
    found = {str(each["metadata"]): each for service in services for each in cluster(service)}
    return [objects.changed(each, int(time.time()) - 600) for each in found.values()]


@case("rules_behind_objects", "legacy, an endpoint is gone, kube-proxy cannot write")
def _gone(box: Box) -> BuiltCase:
    box.put(("legacy", iptables.rules([replace(SHOP, ends=(("10.244.0.99", PORT),))])))
    box.objects(*_changed(SHOP))
    process = box.run(sys.executable, "-c", _SYNCED)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return BuiltCase(
        lambda: box.audit("rules_behind_objects"), {"curl": "lastUpdated", **_SLICES},
        repair=lambda: box.rewrite(("legacy", iptables.rules([SHOP]))),
    )  # fmt: skip


@case("rules_behind_objects", "iptables-nft, a stopped process")
def _stopped(box: Box) -> BuiltCase:
    _all_processes(box)
    box.put(("nft", iptables.rules([replace(SHOP, ends=())])))
    box.objects(*_changed(SHOP))
    process = box.kube_proxy("--hostname-override=node-1")
    process.send_signal(signal.SIGSTOP)

    def write() -> None:
        """It writes its rules again, if it goes on."""
        assert Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "T"
        box.rewrite(("nft", iptables.rules([SHOP])))

    return BuiltCase(lambda: box.audit("rules_behind_objects"), {"curl": "onnect", **_SLICES}, repair=write)


@case("rules_behind_objects", "a packet, nftables, a Service is new")
def _new(box: Box) -> BuiltCase:
    _all_processes(box)
    other = Service("shop/other", "172.30.0.12", 80, 0, ((PODS["pod-b"], PORT),))
    box.put(("native", nftables.rules([other], NODE)))
    box.objects(*_changed(other, SHOP))

    def find() -> list[Finding]:
        predicted = box.packets(PathQuery(CLIENT, 40000, NODE, SHOP.node_port))
        return box.packet_findings("rules_behind_objects", [replace(each, time=time.time_ns()) for each in predicted])

    return BuiltCase(find, {"curl": "onnect", **_SLICES},
                     repair=lambda: box.rewrite(("native", nftables.rules([other, SHOP], NODE))))  # fmt: skip
