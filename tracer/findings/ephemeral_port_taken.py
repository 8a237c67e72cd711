# SPDX-License-Identifier: Apache-2.0
"""A connection of the node has a NodePort as its own port, and a packet of its peer goes to the Service instead of the process.

The kernel gives connections ports of ip_local_port_range; nothing tells it which of them are NodePorts. Then:

- In ipvs mode IPVS takes each packet to the NodePort that begins a connection, and a SYN ACK is one for it. So the answer to
  the node's own SYN, or datagram, goes to a pod: the connection is never made.
- In iptables and nftables mode rules are evaluated only for packets for which conntrack has no entry. So answers arrive, until
  the entry is gone (an idle UDP flow, a deleted entry): then the peer's next packet goes to a pod, which resets the connection.

A masquerade chooses its port from 1024 to 65535, whatever ip_local_port_range is. Its answers are translated back before any
rule, and before IPVS, sees the port, so nothing breaks.
Source: Linux net/netfilter/ipvs/ip_vs_proto_tcp.c, tcp_conn_schedule(); net/netfilter/nf_nat_core.c, nf_nat_inet_fn().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracer.findings.context import FindingContext
from tracer.findings.nodeport_host_process import decided_node_port, is_within, named_node_port
from tracer.findings.proofs import decision_proof, packet_proof
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import IpvsNatHop, RewriteHop, places_of
from tracer.model.kube import ObjectReference, Owner
from tracer.model.namespace_name import is_host
from tracer.model.packet import Packet
from tracer.node.node import LocalConnection
from tracer.node.node_questions import ConnectionOf, Setting
from tracer.packets.path_memo import PathMemo
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

RANGE, RESERVED = Setting("net/ipv4/ip_local_port_range"), Setting("net/ipv4/ip_local_reserved_ports")
CONNECTION = ConnectionOf()
ASKS = (RANGE, RESERVED, CONNECTION)
SYN_ACK = "SYN ACK"
DEFAULT_NODE_PORTS = range(30000, 32768)
"""The NodePorts that kube-apiserver gives unless --service-node-port-range says otherwise."""
SETTINGS = tuple(setting.name.replace("/", ".") for setting in (RANGE, RESERVED))
CHECK = f"`sysctl {SETTINGS[0]} {SETTINGS[1]}` shows the ports that the kernel chooses from, and those that it leaves out."


def find(packet: Packet, context: FindingContext) -> Finding | None:
    if packet.protocol not in ("TCP", "UDP") or packet.tcp_flags == "SYN":
        return None
    for taken in _TAKEN.of(packet):
        port = taken.of_syn_ack if packet.tcp_flags == SYN_ACK else taken.port
        hop = packet.hops[taken.at] if port else None
        if not isinstance(hop, RewriteHop) or not hop.owner or hop.nat.before.dport != port:
            continue
        ends, protocol = hop.nat.before, packet.protocol.lower()
        mine = value_of(context.ask(CONNECTION, protocol, port, ends.src, ends.sport))
        if mine:
            return _finding(packet, hop, hop.owner, mine, context)
    return None


class _Taken(NamedTuple):
    """A hop where a Service's rule or IPVS sent a packet for a NodePort elsewhere.

    Attributes:
        at: Place of the hop.
        port: The NodePort; 0 = the packet was not decided on now.
        of_syn_ack: The NodePort, if the packet is a SYN ACK. No client sends one to a Service, so one that IPVS sends on is
            stolen also when an earlier copy of it was: IPVS keeps the choice.
    """

    at: int
    port: int
    of_syn_ack: int


def _taken(packet: Packet) -> tuple[_Taken, ...]:
    found = []
    for at in places_of(packet.hops, RewriteHop):
        hop = packet.hops[at]
        if isinstance(hop, RewriteHop):
            port = of_syn_ack = decided_node_port(hop)
            if isinstance(hop, IpvsNatHop) and hop.owner and is_host(hop.netns) and not hop.clone and hop.nat.kind == "DNAT":
                of_syn_ack = named_node_port(hop.owner)
            found += [_Taken(at, port, of_syn_ack)] if port or of_syn_ack else []
    return tuple(found)


_TAKEN = PathMemo(_taken)


def _finding(packet: Packet, hop: RewriteHop, owner: Owner, mine: LocalConnection, context: FindingContext) -> Finding:
    ends, port = hop.nat.before, hop.nat.before.dport
    peer, protocol = format_endpoint(ends.src, ends.sport), packet.protocol.lower()
    to = owner.target or format_endpoint(hop.nat.after.dst, hop.nat.after.dport)
    if isinstance(hop, IpvsNatHop):
        why = f"IPVS takes every packet that may begin a connection to this port, and sent the peer's answer to {to}"
    else:
        why = f"conntrack has no entry of the connection any more, so the Service's rule sent the peer's packet to {to}"
    return Finding(
        name="",
        key=(port, protocol, owner.label),
        cause=(
            f"A connection of {mine.text} on this node to {peer} has the port {port}, which is also the NodePort of Service"
            f" {owner.label}: {why}, and the process did not get it."
        ),
        proofs=(
            packet_proof(packet),
            decision_proof(hop, owner.text),
            FindingEvidence("process", f"{mine.text} has a {protocol} socket {_pair(ends)}", "/proc/net"),
            *setting_proofs((port,), context),
        ),
        check=f"`ss -an{'u' if protocol == 'udp' else 't'}p 'sport = :{port}'` shows the connection. {CHECK}",
        cure=cure((port,), value_of(context.ask(RESERVED)) or ""),
        subject=owner.reference,
    )


def _pair(ends: Endpoints) -> str:
    """The addresses of the connection, seen from the node."""
    return f"{format_endpoint(ends.dst, ends.dport)} -> {format_endpoint(ends.src, ends.sport)}"


def setting_proofs(ports: Sequence[int], context: FindingContext) -> tuple[FindingEvidence, ...]:
    """The evidence that the kernel may give some of these ports to a connection; () = it does not, or it is not known."""
    if not given(ports, context):
        return ()
    low, high = (value_of(context.ask(RANGE)) or "").split()
    reserved = value_of(context.ask(RESERVED)) or "empty"
    text = f"ip_local_port_range is {low}-{high}, ip_local_reserved_ports is {reserved}"
    return (FindingEvidence("setting", text, "/proc/sys"),)


def given(ports: Sequence[int], context: FindingContext) -> tuple[int, ...]:
    """Those of the ports that the kernel may give to a connection; () = none, or the settings are not known."""
    limits, reserved = value_of(context.ask(RANGE)), value_of(context.ask(RESERVED))
    low, _, high = (limits or "").partition(" ")
    if reserved is None or not (low.isdigit() and high.isdigit()):
        return ()
    return tuple(port for port in ports if int(low) <= port <= int(high) and not is_within(port, reserved))


def cure(ports: Sequence[int], reserved: str) -> str:
    """What keeps the kernel from giving these ports away. reserved: the ports that are reserved already."""
    is_default = all(port in DEFAULT_NODE_PORTS for port in ports)
    more = f"{DEFAULT_NODE_PORTS[0]}-{DEFAULT_NODE_PORTS[-1]}" if is_default else ",".join(map(str, ports))
    value = ",".join(filter(None, (reserved, more)))
    return (
        f"Reserve the NodePorts: `sysctl -w {SETTINGS[1]}={value}`, and a file in /etc/sysctl.d for the next boot; or give"
        f" {SETTINGS[0]} a range without NodePorts, such as the kernel's default 32768 60999. Connections that have such a"
        " port keep it: restart their process."
    )


def subject_of(owners: Sequence[Owner]) -> ObjectReference | None:
    """The Service, if all of the NodePorts belong to one."""
    found = {owner.reference for owner in owners}
    return next(iter(found)) if len(found) == 1 else None
