# SPDX-License-Identifier: Apache-2.0
"""Filters take effect in the kernel: packets that do not match are never written, matching ones are followed to their end."""

from __future__ import annotations

import os
import subprocess

from scenes import topology, traffic
from tests.kernel.watching import Watch
from tracer.model.filter import Filter, parse_host
from tracer.model.hop import RewriteHop, SocketHop, verdict_of
from tracer.model.port_list import parse_ports
from tracer.model.tcp_flags import parse_tcp_flags
from tracer.node.namespaces import Namespaces, interface_index
from tracer.packets.outcome import BAD
from tracer.selection.display_filter import DisplayFilter

NODE, POD = topology.NODE4, topology.PODS[0].addr4


def ask_everything() -> None:
    assert traffic.http_get().outcome == "answered"
    assert traffic.udp_ask().outcome == "answered"
    assert traffic.udp_ask(topology.NODE6).outcome == "answered"
    assert traffic.tcp_connect(NODE, traffic.NODEPORT_LONELY).outcome == "refused"


def test_protocol(watch: Watch) -> None:
    with watch(Filter(protocol=17)) as seen:
        ask_everything()
    assert {p.protocol for p in seen.packets} == {"UDP"} and len(seen.packets) == 4


def test_family(watch: Watch) -> None:
    with watch(Filter(family=6, ports=(traffic.NODEPORT_UDP, traffic.NODEPORT_HTTP))) as seen:
        ask_everything()
    assert {p.family for p in seen.packets} == {"IPv6"} and len(seen.packets) == 2


def test_host_matches_before_and_after_translation(watch: Watch) -> None:
    with watch(Filter(hosts=(parse_host("10.244.0.8/29"),), protocol=17)) as seen:  # the pods, .11 to .13
        assert traffic.udp_ask().outcome == "answered"
    request, answer = seen.packets
    assert (request.endpoints.dst, request.endpoints.dport) == (NODE, traffic.NODEPORT_UDP)
    assert [h.nat.kind for h in request.hops if isinstance(h, RewriteHop)] == ["DNAT", "MASQUERADE"]
    assert [h.nat.kind for h in answer.hops if isinstance(h, RewriteHop)] == ["reverse MASQUERADE", "reverse DNAT"]
    with watch(Filter(hosts=(parse_host("198.51.100.0/24"),))) as seen:
        ask_everything()
    assert seen.packets == []


def test_ipv6_host(watch: Watch) -> None:
    with watch(Filter(hosts=(parse_host(topology.CLIENT6),), protocol=17)) as seen:
        ask_everything()
    assert len(seen.packets) == 2 and {p.family for p in seen.packets} == {"IPv6"}


def test_port_of_the_pod_finds_the_node_port(watch: Watch) -> None:
    with watch(Filter(ports=(5353,))) as seen:
        assert traffic.udp_ask().outcome == "answered"
    assert next(p.endpoints.dport for p in seen.packets) == traffic.NODEPORT_UDP


def test_interface(watch: Watch) -> None:
    here = os.stat("/proc/self/ns/net").st_ino
    with watch(Filter(ifindex=interface_index("lo"), if_netns=here, protocol=17)) as seen:
        ask_everything()
        assert traffic.udp_ask("127.0.0.1", 9125, ns=None).outcome == "refused"
    assert {p.endpoints.dst for p in seen.packets} == {"127.0.0.1"}


def test_namespace(watch: Watch) -> None:
    with watch(Filter(netns=Namespaces().find("client"), protocol=17)) as seen:
        ask_everything()
        assert traffic.udp_ask(POD, 5353, ns=None).outcome == "answered"
    sent = [p for p in seen.packets if p.netns == "client" and p.endpoints.dport == traffic.NODEPORT_UDP]
    assert len(seen.packets) == 4 and len(sent) == 2
    assert all({"client", "node"} <= {h.netns for h in p.hops} for p in sent), "packets must be followed out of the namespace"
    assert all({"client"} == {h.netns for h in p.hops} for p in seen.packets if p not in sent)


def test_drops_only_writes_ends_of_packets_and_starts_of_connections(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY), drops_only=True)) as seen:
        ask_everything()
    bad = [p for p in seen.packets if p.outcome in BAD]
    assert [p.verdict for p in bad] == ["REJECTED in filter/INPUT with icmp-port-unreachable"]
    first = next(p for p in seen.packets if p.tcp_flags == "SYN" and p.endpoints.dport == traffic.NODEPORT_HTTP)
    assert (
        [h.nat.kind for h in first.hops if isinstance(h, RewriteHop)] == ["DNAT", "MASQUERADE"]
        and first.handshake
        and first.handshake.accepted
    )
    rest = [p for p in seen.packets if p.protocol == "TCP" and not {"SYN", "RST"} & set(p.tcp_flags.split())]
    assert not [h for p in rest for h in p.hops if h.kind in ("nat", "hook", "table") and verdict_of(h) in ("ACCEPT", "")]
    assert {h.socket.state for p in rest for h in p.hops if isinstance(h, SocketHop)} <= {"LISTEN", "TIME_WAIT"}


def test_icmp_echo_is_delivered_to_the_kernel(watch: Watch) -> None:
    with watch(Filter(protocol=1)) as seen:
        subprocess.run(["ip", "netns", "exec", "client", "ping", "-c", "2", "-i", "0.2", NODE], check=True, capture_output=True)
    requests = [p for p in seen.packets if p.endpoints.dst == NODE]
    assert [p.verdict for p in requests] == ["delivered to node's kernel"] * 2
    assert len(seen.packets) == 4


def test_ranges_and_lists_of_ports(watch: Watch) -> None:
    with watch(Filter(ports=parse_ports(["30000-32767", "1"]), protocol=17)) as seen:
        ask_everything()
        assert traffic.udp_ask(POD, 5353, ns=None).outcome == "answered"
    assert len(seen.packets) == 4 and {p.protocol for p in seen.packets} == {"UDP"}, "two requests to the NodePort, two answers"


def test_source_and_destination_are_those_of_the_packets_direction(watch: Watch) -> None:
    with watch(Filter(sources=(parse_host(topology.CLIENT4),), protocol=17)) as seen:
        assert traffic.udp_ask().outcome == "answered"
    (request,) = seen.packets
    assert (request.endpoints.src, request.endpoints.dport) == (topology.CLIENT4, traffic.NODEPORT_UDP)
    with watch(Filter(destinations=(parse_host(topology.CLIENT4),), protocol=17)) as seen:
        assert traffic.udp_ask().outcome == "answered"
    (answer,) = seen.packets
    assert answer.endpoints.src in {pod.addr4 for pod in topology.PODS}, "the answer goes to the client, after translation"


def test_the_destination_after_translation(watch: Watch) -> None:
    client_to_pod = Filter(sources=(parse_host(topology.CLIENT4),), destinations=(parse_host("10.244.0.8/29"),), protocol=17)
    with watch(client_to_pod) as seen:
        assert traffic.udp_ask().outcome == "answered"
    (request,) = seen.packets
    assert [h.nat.kind for h in request.hops if isinstance(h, RewriteHop)] == ["DNAT", "MASQUERADE"]
    with watch(Filter(destination_ports=(5353,))) as seen:
        assert traffic.udp_ask().outcome == "answered"
    assert [p.endpoints.dport for p in seen.packets] == [traffic.NODEPORT_UDP]
    with watch(Filter(source_ports=(5353,))) as seen:
        assert traffic.udp_ask().outcome == "answered"
    assert [p.endpoints.sport for p in seen.packets] == [5353]


def test_excluded_ports_and_hosts(watch: Watch) -> None:
    with watch(Filter(hosts=(parse_host(topology.CLIENT4),), excluded_ports=(5353, traffic.NODEPORT_UDP), family=4)) as seen:
        ask_everything()
    assert {p.protocol for p in seen.packets} >= {"TCP"} and "UDP" not in {p.protocol for p in seen.packets}
    with watch(Filter(protocol=17, excluded_hosts=(parse_host(topology.CLIENT4),))) as seen:
        ask_everything()
    without_client = DisplayFilter(excluded_hosts=(parse_host(topology.CLIENT4),))
    request, answer = (p for p in seen.packets if p.family == "IPv4")
    assert [type(h) for h in request.hops] == [SocketHop], "masqueraded: in the pod its header has another source"
    assert request.netns == answer.netns and request.netns.startswith("pod-")
    assert without_client(request) and not without_client(answer), "the answer gets the client's address by address translation"
    assert len([p for p in seen.packets if p.family == "IPv6"]) == 2


def test_tcp_flags_select_packets_of_a_connection_whose_other_packets_they_reject(watch: Watch) -> None:
    port = (traffic.NODEPORT_HTTP,)
    with watch(Filter(ports=port, tcp_flags=parse_tcp_flags(["SYN"]))) as seen:
        assert traffic.http_get().outcome == "answered"
    assert [p.tcp_flags for p in seen.packets] == ["SYN", "SYN ACK"]
    assert seen.packets[0].handshake and seen.packets[0].handshake.accepted, "followed to the listener"
    with watch(Filter(ports=port, tcp_flags=parse_tcp_flags(["FIN", "SYN,not-ACK"]))) as seen:
        assert traffic.http_get().outcome == "answered"
    flags = [set(p.tcp_flags.split()) for p in seen.packets]
    assert flags[0] == {"SYN"} and len(flags) == 3, "one SYN, and a FIN of each side"
    assert all("FIN" in each for each in flags[1:])
    with watch(Filter(tcp_flags=parse_tcp_flags(["RST"]))) as seen:
        ask_everything()
    assert {p.protocol for p in seen.packets} <= {"TCP"} and all("RST" in p.tcp_flags for p in seen.packets)
