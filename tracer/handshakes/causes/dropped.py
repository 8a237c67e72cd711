# SPDX-License-Identifier: Apache-2.0
"""Any other drop: one row for each drop reason that has a text. Observed: the kernel's drop reason and function."""

from __future__ import annotations

from tracer.model.bpf_program import AttachPoint, ProgramAction
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import Drop, HandshakeHop
from tracer.node.namespace_questions import NamespaceInspector
from tracer.packets.outcome import BAD
from tracer.packets.ovs_drops import ovs_sentence
from tracer.packets.queue_drops import UNKNOWN, drop_of_packet, format_queue_drop

REASONS = {
    "IP_RPFILTER": ("rp_filter", "rp_filter: answers to {src} would not leave by {iface}, where it came in"),
    "IP_LOCAL_SOURCE": ("martian source", "martian: its source {src} is an address of this machine's own"),
    "IP_INVALID_SOURCE": ("martian source", "martian: its source {src} cannot be one"),
    "IP_LOCALNET": ("martian source", "martian: {src} may not come in by {iface}"),
    "TCP_CSUM": ("bad checksum", "its TCP checksum is wrong"),
    "IP_CSUM": ("bad checksum", "its IP checksum is wrong"),
    "CPU_BACKLOG": ("CPU backlog full", "the CPU's backlog is full (net.core.netdev_max_backlog)"),
    "QDISC_DROP": ("queue full", "the queue of the interface it left by is full"),
    "TC_INGRESS": ("tc", "a tc filter at {iface} dropped it"),
    "TC_EGRESS": ("tc", "a tc filter dropped it as it left"),
    "XDP": ("XDP", "an XDP program at {iface} dropped it"),
    "BPF_CGROUP_EGRESS": ("cgroup", "a program at the cgroup of the socket that sent it dropped it"),
    "SOCKET_FILTER": ("socket filter", "the listener's own socket filter, or a program at its cgroup, refused it"),
    "PKT_TOO_BIG": ("too big", "it is larger than the MTU of its way"),
    "XFRM_POLICY": ("IPsec policy", "an IPsec policy refused it"),
    "TCP_FLAGS": ("TCP flags", "the listener takes no such segment"),
}
"""Cause and text by drop reason, without SKB_DROP_REASON_."""

NAMES = {
    AttachPoint.XDP: "XDP",
    AttachPoint.NETKIT: "netkit",
    AttachPoint.CGROUP_INGRESS: "cgroup",
    AttachPoint.CGROUP_EGRESS: "cgroup",
    AttachPoint.SK_LOOKUP: "sk_lookup",
}
"""Cause by the place of a program, where it is not tc."""

SOURCE_CHECK = frozenset({"ip_rcv_finish_core", "ip_rcv_finish", "ip_route_input_noref"})
"""Functions that drop a packet with an impossible source or destination, without a specific reason before 6.14."""


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    syn, drop = attempt.syn, attempt.syn.drop
    if syn.outcome not in BAD or drop is None:
        return None
    if drop.program:
        return _by_program(attempt, drop, drop.program)
    if sentence := ovs_sentence(drop):
        return Cause("dropped", f"dropped{attempt.where} {sentence}")
    queued = drop_of_packet(syn)
    if queued and (sentence := format_queue_drop(queued)):
        evidence = Evidence.DERIVED if queued.cause == UNKNOWN else Evidence.OBSERVED
        return Cause("dropped", f"dropped{attempt.where} {sentence}", evidence)
    fields = {"src": attempt.reached.src, "iface": _arrival(attempt)}
    if drop.reason in REASONS:
        name, text = REASONS[drop.reason]
        return Cause(name, f"dropped{attempt.where}: {text.format(**fields)}")
    if drop.function in SOURCE_CHECK and drop.reason in ("", "NOT_SPECIFIED"):
        text = "martian: its source {src}, or its destination, cannot come in by {iface}".format(**fields)
        return Cause("martian source", f"dropped{attempt.where}: {text}", Evidence.DERIVED)
    shakes = (h.handshake for h in syn.hops if isinstance(h, HandshakeHop))
    shake = next((each for each in shakes if each.accepted is False), None)
    at = f"by {attempt.process}'s socket" if shake else f"in {drop.function or 'an unknown function'}"
    return Cause("dropped", f"dropped {at}{attempt.where}: {_reason(drop)}")


def _by_program(attempt: ConnectionAttempt, drop: Drop, program: ProgramAction) -> Cause:
    """The cause where a program or a filter of tc dropped the SYN, or where only the function suggests it."""
    is_refusal = program.point is AttachPoint.SK_LOOKUP  # a probe saw that
    is_known = is_refusal or drop.reason in REASONS or program.program is not None
    name = "dropped"
    if program.program or is_refusal:
        name = NAMES.get(program.point, "tc")
    elif drop.reason in REASONS:
        name, _ = REASONS[drop.reason]
    is_observed = is_known and program.program is None
    return Cause(
        name,
        f"{'refused' if is_refusal else 'dropped'}{attempt.where} {program.text}",
        Evidence.OBSERVED if is_observed else Evidence.DERIVED,
    )


def _arrival(attempt: ConnectionAttempt) -> str:
    return next((h.in_iface for h in reversed(attempt.syn.hops) if h.in_iface), "its interface")


def _reason(drop: Drop) -> str:
    return drop.reason if drop.reason not in ("", "NOT_SPECIFIED") else "the kernel gives no reason"
