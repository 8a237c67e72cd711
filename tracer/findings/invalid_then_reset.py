# SPDX-License-Identifier: Apache-2.0
"""conntrack calls a pod's segment INVALID, so its source stays the pod's address, and the client answers it with a reset.

A client of a Service knows the Service's address. A segment that conntrack finds outside of the window (delayed, reordered by a
network card, or after an entry that was lost) is not translated back: the client knows no such connection, sends a reset to the
pod, and the connection that both ends still use is closed. kube-proxy drops INVALID packets for this reason, unless its option
for liberal tracking is set. Source: kubernetes pkg/proxy/iptables/proxier.go; kubernetes#74839.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import HookHop, RewriteHop, SocketHop, alike_of
from tracer.model.kube import ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.node.node_questions import Setting
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

LIBERAL = Setting("net/netfilter/nf_conntrack_tcp_be_liberal")
ASKS = (LIBERAL,)
INVALID, FOLLOWS_WITHIN_NS = "INVALID", 2_000_000_000
"""conntrack's state for both packets; longest time from the segment to the reset, ns."""


def find(packet: Packet, context: FindingContext) -> Finding | None:
    if packet.protocol != "TCP" or packet.untracked != INVALID or "SYN" in packet.tcp_flags or not packet.complete:
        return None
    if any(True for _ in alike_of(packet.hops, RewriteHop)):
        return None
    # Asked for each of these packets: so each of them is looked at, and a reset finds the segment before it.
    liberal, ends = value_of(context.ask(LIBERAL)), packet.endpoints
    if "RST" not in packet.tcp_flags:
        if _has_left(packet) and _services(ends.src, ends.sport, context):
            context.since["invalid", ends] = packet.time
        return None
    sent = context.since.get(("invalid", ends.reversed))
    ports = _services(ends.dst, ends.dport, context)
    if sent is None or not ports or not 0 <= packet.time - sent <= FOLLOWS_WITHIN_NS:
        return None
    return _finding(packet, ports, liberal, context)


def _has_left(packet: Packet) -> bool:
    """Whether the packet left the node, for a pod of it or for another machine."""
    hooks = alike_of(packet.hops, HookHop)
    return any(is_host(h.netns) and h.hook is Hook.POSTROUTING and h.verdict is Verdict.ACCEPT for h in hooks)


def _services(address: str, number: int, context: FindingContext) -> tuple[ServicePort, ...]:
    """Returns the service ports with this endpoint."""
    return tuple(context.cluster.store.by_endpoint.all((address, number, "tcp")))


def _finding(packet: Packet, ports: tuple[ServicePort, ...], liberal: str | None, context: FindingContext) -> Finding:
    ends, names = packet.endpoints, ", ".join(dict.fromkeys(port.label for port in ports))
    pod = context.cluster.leads_to(ends.dst) or ends.dst
    open_socket = next((h for h in reversed(alike_of(packet.hops, SocketHop)) if h.socket.state == "ESTABLISHED"), None)
    segment = f"{format_endpoint(ends.dst, ends.dport)} -> {format_endpoint(ends.src, ends.sport)}"
    reached = f"{packet.verdict}, whose connection was established" if open_socket else packet.verdict
    was_reset = open_socket is not None and packet.outcome is Outcome.DELIVERED
    is_strict = liberal == "0"
    return Finding(
        name="",
        key=(ends.dst, ends.dport),
        cause=(
            f"A segment of {pod} (endpoint of Service {names}) left this node with the pod's own address, because conntrack"
            f" calls it INVALID and does not translate it back: the client {ends.src} does not know that address and answered"
            " with a reset" + (", which closed the open connection." if was_reset else ".")
        ),
        proofs=(
            FindingEvidence("packet", f"{segment}: conntrack state INVALID, forwarded without a translation", "observed"),
            FindingEvidence("packet", f"RST {ends.src} -> {format_endpoint(ends.dst, ends.dport)}: {reached}", "observed"),
            packet_proof(packet),
            *([FindingEvidence("setting", f"nf_conntrack_tcp_be_liberal = {liberal}", "/proc/sys")] if liberal else []),
        ),
        check="`conntrack -S` counts such packets as invalid; `sysctl net.netfilter.nf_conntrack_tcp_be_liberal` is 0 then.",
        cure=(
            "Let conntrack accept segments outside of the window:"
            " `sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1` (kube-proxy 1.29 and later: --conntrack-tcp-be-liberal)."
            if is_strict
            else "Drop INVALID packets in FORWARD before they leave, as KUBE-FORWARD of kube-proxy does without that option."
        ),
        # Without an open connection, or with a sequence number that TCP does not accept, the reset does no harm.
        certain=was_reset,
    )
