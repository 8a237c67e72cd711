# SPDX-License-Identifier: Apache-2.0
"""Cases of settings, connections and sockets. Where only a probe could see the packet, real traffic shows whether the fault is
there, and the packet is built from what the traffic met.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from incidents import objects
from scenes import netns
from tests.kernel.audit_nodes import FAR, MINE, NODE, PODS
from tests.kernel.cures import BuiltCase, case
from tests.kernel.cures.box import Box, in_machine
from tests.kernel.cures.of_ports import SHOP
from tests.support import bpf_programs
from tests.support import syns as made
from tracer.audit.conntrack_full import check as table_full
from tracer.findings import Findings
from tracer.kernel import attached_programs, bpf_syscall
from tracer.kernel.lookup_programs import LookupPrograms
from tracer.model.bpf_program import AttachPoint, ProgramPeriod
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import Drop, DropHop, Handshake, HandshakeHop, HookHop, Hop, Nat, NatHop, Socket, SocketHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Packet
from tracer.packets.outcome import classify
from tracer.packets.program_drops import lookup_decision, place_of, program_drop

_KUBE = "*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n"


def _setting(box: Box, name: str, value: str, finding: str, expected_output: dict[str, str]) -> BuiltCase:
    box.set(name, value)
    box.put(("legacy", _KUBE))
    box.objects(objects.node("node-1", NODE, MINE))
    return BuiltCase(lambda: box.audit(finding), expected_output)


@case("bridge_nf", "bridged packets pass by the rules", "bridge")
def _bridge(box: Box) -> BuiltCase:
    name = "net/bridge/bridge-nf-call-iptables"
    return _setting(box, name, "0", "bridge_nf", {"sysctl net.bridge": "= 0"})


@case("ip_forward", "IPv4")
def _forward(box: Box) -> BuiltCase:
    expected_output = {"sysctl net.ipv4.ip_forward": "= 0", "nstat -az IpForwDatagrams": "IpForwDatagrams"}
    return _setting(box, "net/ipv4/ip_forward", "0", "ip_forward", expected_output)


@case("rp_filter", "strict on a tunnel")
def _strict(box: Box) -> BuiltCase:
    vxlan = "type vxlan id 9 dstport 4789 remote 192.0.2.7 dev eth0"
    subprocess.run(["ip", "link", "add", "tunl9", *vxlan.split()], check=True)
    box.at_end(lambda: subprocess.run(["ip", "link", "del", "tunl9"], check=False))
    return _setting(box, "net/ipv4/conf/tunl9/rp_filter", "1", "rp_filter", {"nstat -az": "TcpExtIPReversePathFilter"})


@case("conntrack_full", "the machine's own table", "machine")
def _full(box: Box) -> BuiltCase:
    limit = Path("/proc/sys/net/netfilter/nf_conntrack_max")
    tracking = ["iptables-legacy", "-t", "raw", "{}", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW"]

    def end() -> None:
        with in_machine(box):
            limit.write_text(before)
            subprocess.run([w.format("-D") for w in tracking], check=True)

    with in_machine(box):
        before = limit.read_text()
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        subprocess.run([w.format("-A") for w in tracking], check=True)
        box.at_end(end)
        for port in range(20):
            sock.sendto(b"x", ("127.0.0.1", 9000 + port))
        limit.write_text("8")
        for port in range(40):
            with suppress(PermissionError):
                sock.sendto(b"x", ("127.0.0.1", 9100 + port))

    def find() -> list[Finding]:
        with in_machine(box):
            return list(table_full(box.state))

    return BuiltCase(
        find, {"dmesg": "table full, dropping packet", "conntrack -C": r"\d+", "conntrack -L": "udp"}, namespace="machine"
    )


@case("mtu", "a pod sends full segments to another node")
def _mtu(box: Box) -> BuiltCase:
    subprocess.run(["ip", "link", "set", "tun0", "mtu", "1400"], check=True)
    box.at_end(lambda: subprocess.run(["ip", "link", "set", "tun0", "mtu", "1500"], check=False))
    server = box.listen(8090, namespace="far")

    def find() -> list[Finding]:
        """The length of the packets of a large transfer follows from the segment size that both ends agreed on."""
        with netns.entered("pod-a"):
            sock = socket.socket()
        with sock:
            sock.connect((FAR, 8090))
            other, _ = server.accept()
            with other:
                size = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) + 52
        if size <= 1400:
            return []
        hops = (DropHop(0, HOST, drop=Drop("PKT_TOO_BIG", "ip_forward")),)
        packet = Packet(1, 0, HOST, "cni0", "IPv4", "TCP", Endpoints(PODS["pod-a"], 40000, FAR, 8090), "ACK", size, hops=hops)
        verdict, outcome = classify(packet)
        packet = replace(packet, verdict=verdict, outcome=outcome)
        return box.packet_findings("mtu", [packet])

    too_long = "Frag needed|message too long|1 packets transmitted, 0 received"
    return BuiltCase(find, {"ping -c 1 -M do": too_long, "ip link": "mtu"}, namespace="pod-a")


@case("dropped_by_program", "tc ingress at a pod's interface")
def _program(box: Box) -> BuiltCase:
    iface, number = "vpod-a", 9191
    program = bpf_programs.load("cil_from_container", bpf_programs.SCHED_CLS, number, nth=1)
    box.at_end(program.close)
    bpf_programs.clsact(iface)
    box.at_end(lambda: bpf_programs.remove_clsact(iface))
    bpf_programs.attach_tc(iface, program)
    with netns.entered("pod-a"):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.at_end(sock.close)

    def find() -> list[Finding]:
        """Whether a packet was dropped is the program's own count."""
        before = program.dropped
        sock.sendto(b"x", (NODE, number))
        time.sleep(0.3)
        attached = attached_programs.read(attached_programs.ProgramCatalog())
        there = attached.get((socket.if_nametoindex(iface), AttachPoint.TC_INGRESS))
        place = place_of("TC_INGRESS", "")
        if program.dropped == before or not there or not place:
            return []
        known = program_drop(place, iface, 1, [ProgramPeriod(0, 0, there.programs)])
        hops = (DropHop(0, HOST, in_iface=iface, drop=Drop("TC_INGRESS", "__netif_receive_skb_core", program=known)),)
        packet = Packet(1, 0, HOST, iface, "IPv4", "UDP", Endpoints(PODS["pod-a"], 40000, NODE, number), "", 29, hops=hops)
        verdict, outcome = classify(packet)
        return box.packet_findings("dropped_by_program", [replace(packet, verdict=verdict, outcome=outcome)])

    return BuiltCase(
        find,
        {"tc filter show": "direct-action"},
        repair=lambda: bpf_programs.detach_tc(iface),
        skipped={"cilium-dbg": "there is no Cilium", "hubble": "there is no Cilium"},
    )


@case("dropped_by_program", "sk_lookup of a pod's namespace")
def _refusal(box: Box) -> BuiltCase:
    address, number, path = PODS["pod-a"], 9393, netns.RUN_DIR / "pod-a"
    with netns.entered("pod-a"):
        listener = socket.create_server((address, number))
    box.at_end(listener.close)
    program = bpf_programs.load_refusing_port("cil_lookup", number)
    box.at_end(lambda: os.close(program))
    links = [bpf_programs.attach_at(path, program, bpf_syscall.SK_LOOKUP)]

    def detach() -> None:
        while links:
            os.close(links.pop())

    box.at_end(detach)

    def find() -> list[Finding]:
        """Whether the program refused the connection is what connect() says: a socket listens."""
        with socket.socket() as client, suppress(ConnectionRefusedError):
            client.connect((address, number))
            return []
        periods = LookupPrograms(attached_programs.ProgramCatalog()).periods(path.stat().st_ino, time.monotonic_ns())
        drop = Drop("NO_SOCKET", "tcp_v4_rcv", program=lookup_decision(time.monotonic_ns(), periods))
        hops = (DropHop(0, Netns("pod-a"), drop=drop),)
        packet = Packet(1, 0, Netns("pod-a"), "", "IPv4", "TCP", Endpoints(NODE, 40000, address, number), "SYN", 60, hops=hops)
        verdict, outcome = classify(packet)
        return box.packet_findings("dropped_by_program", [replace(packet, verdict=verdict, outcome=outcome)])

    listening = {"ss -lntu": rf"{re.escape(address)}:{number}"}
    return BuiltCase(find, listening, repair=detach, skipped={"bpftool": "it is not installed"}, namespace="pod-a")


@case("stale_conntrack", "UDP to a pod that is gone", "conntrack")
def _stale(box: Box) -> BuiltCase:
    gone, number = "10.244.0.99", 5353

    def rules(target: str) -> tuple[str, str]:
        where = f"-d {SHOP.address}/32 -p udp -m udp --dport {number}"
        return "legacy", f"*nat\n-A OUTPUT {where} -j DNAT --to-destination {target}:{number}\nCOMMIT\n"

    box.put(rules(gone))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.at_end(sock.close)
    sock.bind((NODE, 41000))
    service = objects.service(SHOP.name, SHOP.address, number, 0, "dns")
    service["spec"]["ports"][0]["protocol"] = "UDP"
    ends = objects.endpoints(SHOP.name, [("pod-a", PODS["pod-a"], "node-1")], number, "dns")
    ends["ports"][0]["protocol"] = "UDP"
    box.objects(objects.node("node-1", NODE, MINE), service, ends)

    def find() -> list[Finding]:
        sock.sendto(b"x", (SHOP.address, number))
        listed = subprocess.run(["conntrack", "-L", "-p", "udp"], capture_output=True, text=True, check=True).stdout
        entry = re.search(rf"dst={SHOP.address} sport=41000 dport={number} .*?src=(\S+) ", listed)
        assert entry, listed
        before = Endpoints(NODE, 41000, SHOP.address, number)
        nat = Nat("DNAT", before, Endpoints(NODE, 41000, entry[1], number))
        hop = NatHop(0, HOST, Hook.OUTPUT, nat=nat, from_conntrack=True)
        flow = Flow(before, before.reversed, "ESTABLISHED", False, 0)
        packet = Packet(1, 0, HOST, "", "IPv4", "UDP", before, "", 29, hops=(hop,), flow=flow)
        verdict, outcome = classify(packet)
        packet = replace(packet, verdict=verdict, outcome=outcome)
        return box.packet_findings("stale_conntrack", [packet])

    find()
    subprocess.run(["iptables-legacy", "-t", "nat", "-F", "OUTPUT"], check=True)
    box.put(rules(PODS["pod-a"]))
    return BuiltCase(find, {"conntrack -L -p udp": f"src={gone}"})


@case("udp_insert_race", "two datagrams at once", "conntrack")
def _race(box: Box) -> BuiltCase:
    """A race is lost by chance, so the packet is made. The cure is that queries are sent by TCP: no datagram is left."""
    protocol = ["UDP"]

    def find() -> list[Finding]:
        ends = Endpoints(PODS["pod-c"], 40000, SHOP.address, 53)
        nat = Nat("DNAT", ends, Endpoints(PODS["pod-c"], 40000, PODS["pod-a"], 53))
        hops = (NatHop(0, HOST, Hook.PREROUTING, nat=nat), HookHop(1, HOST, Hook.POSTROUTING, verdict=Verdict.DROP))
        packet = Packet(1, 0, HOST, "cni0", "IPv4", protocol[0], ends, "", 29, hops=hops)
        verdict, outcome = classify(packet)
        packet = replace(packet, verdict=verdict, outcome=outcome)
        return box.packet_findings("udp_insert_race", [packet])

    return BuiltCase(find, {"conntrack -S": "insert_failed="}, repair=lambda: protocol.__setitem__(0, "TCP"))


_READER = """
import signal, socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
sock.bind((sys.argv[1], int(sys.argv[2])))
def read(*_):
    while True: sock.recv(2000)
signal.signal(signal.SIGUSR1, read)
print("ready", flush=True)
while True: time.sleep(0.1)
"""


@case("rcvbuf_full", "a process does not read")
def _slow_reader(box: Box) -> BuiltCase:
    """The socket's own counter shows whether a datagram was dropped."""
    port = 8097
    with netns.entered("pod-a"):
        server = box.run("python3", "-c", _READER, PODS["pod-a"], str(port))
    assert server.stdout and server.stdout.readline() == "ready\n"
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.at_end(client.close)

    def counted() -> tuple[int, int]:
        """The inode of the socket, and its number of dropped datagrams."""
        lines = Path(f"/proc/{server.pid}/net/udp").read_text().splitlines()
        words = next(line.split() for line in lines if f":{port:04X} " in line)
        return int(words[9]), int(words[12])

    def find() -> list[Finding]:
        inode, before = counted()
        for _ in range(12):
            client.sendto(bytes(1000), (PODS["pod-a"], port))
            time.sleep(0.02)
        if counted()[1] == before:
            return []
        ends, pod = Endpoints(NODE, client.getsockname()[1], PODS["pod-a"], port), Netns("pod-a")
        owner = Socket(inode, "UNCONNECTED", server.pid, "python3")
        hops = (SocketHop(0, pod, socket=owner), DropHop(1, pod, drop=Drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb")))
        packet = Packet(1, 0, HOST, "", "IPv4", "UDP", ends, "", 1028, hops=hops)
        verdict, outcome = classify(packet)
        return box.packet_findings("rcvbuf_full", [replace(packet, verdict=verdict, outcome=outcome)])

    def repair() -> None:
        server.send_signal(signal.SIGUSR1)
        time.sleep(0.5)

    whole_machine = {"net.core.rmem_max": "it is a setting of the whole machine"}
    shown = {"ss -uamn": r"skmem:\(r[1-9]\d*,.*,d[1-9]", "nstat -az": "UdpRcvbufErrors +[1-9]"}
    return BuiltCase(find, shown, repair=repair, skipped=whole_machine)


_SERVER = """
import socket, sys, time
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("0.0.0.0", 8095))
sock.listen(int(sys.argv[1]))
import signal
def accept(*_):
    sock.listen(64)
    sock.settimeout(0.2)
    try:
        while True: sock.accept()
    except OSError: pass
signal.signal(signal.SIGUSR1, accept)
print("ready", flush=True)
while True: time.sleep(0.1)
"""


@case("syn_dropped", "the accept queue is full")
def _queue(box: Box) -> BuiltCase:
    with netns.entered("pod-a"):
        server = box.run("python3", "-c", _SERVER, "1")
    assert server.stdout and server.stdout.readline() == "ready\n"

    def connect() -> socket.socket | None:
        with netns.entered("pod-c"):
            sock = socket.socket()
        sock.settimeout(0.5)
        try:
            sock.connect((PODS["pod-a"], 8095))
        except OSError:
            sock.close()
            return None
        box.at_end(sock.close)
        return sock

    for _ in range(4):
        connect()

    def find() -> list[Finding]:
        if connect():
            return []
        return _syn(box, server.pid, 8095, "accept queue full", Handshake("SYN", False, 2, 1, 0, False))

    def repair() -> None:
        server.send_signal(signal.SIGUSR1)
        time.sleep(0.6)

    return BuiltCase(find, {"ss -ltn": r"LISTEN +2 +1 ", "nstat -az": "TcpExtListenOverflows +[1-9]"}, repair=repair)


@case("syn_dropped", "the SYN queue is full, without cookies")
def _cookies(box: Box) -> BuiltCase:
    """The setting of SYN cookies is read from the kernel; a queue full of half-open connections is assumed."""
    with netns.entered("pod-a"):
        server = box.run("python3", "-c", _SERVER, "1")
    name = "net/ipv4/tcp_syncookies"
    assert server.stdout and server.stdout.readline() == "ready\n"
    with netns.entered("pod-a"):
        Path("/proc/sys", name).write_text("0")

    def find() -> list[Finding]:
        if box.context.node.setting(name, server.pid) != "0":
            return []
        return _syn(box, server.pid, 8095, "SYN queue full", Handshake("SYN", False, 0, 1, 3, False))

    return BuiltCase(find, {"ss -ltn": "8095", "nstat -az": "TcpExtListenOverflows"})


def _syn(box: Box, pid: int, port: int, cause: str, handshake: Handshake) -> list[Finding]:
    """The findings of a SYN that met this listener."""
    ends = Endpoints(PODS["pod-c"], 40000, PODS["pod-a"], port)
    hops: list[Hop] = [SocketHop(0, Netns("pod-a"), socket=Socket(1, "LISTEN", pid, "server")),
            HandshakeHop(1, Netns("pod-a"), handshake=handshake)]  # fmt: skip
    packet = made.packet(ends, "SYN", hops)
    findings = Findings(box.context)
    syn_cause = Cause(cause, "dropped", Evidence.OBSERVED)
    findings.look_syn(HandshakeVerdict(1, 0, ends, ends, Netns("pod-a"), syn_cause, attempt=ConnectionAttempt(packet, 0)))
    return [f for f in findings.all if f.name == "syn_dropped"]
