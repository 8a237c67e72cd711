# SPDX-License-Identifier: Apache-2.0
"""A connection still goes to a deleted pod: conntrack repeats the translation of the connection's first packet.

NAT rules are evaluated only for a connection's first packet. UDP has no end of a connection: a client that always sends from
the same port keeps the same translation, until the conntrack entry is deleted.

kube-proxy deletes UDP entries of endpoints that are gone, and no TCP entries. 1.32 to 1.36 leave the entries of a Service that
has lost its last endpoint (kubernetes#139628, fixed in 1.37). The entries of a hostPort are portmap's: it deletes UDP entries
of a port when it gives the port to a pod. Source: kubernetes pkg/proxy/conntrack/cleanup.go; containernetworking/plugins,
plugins/meta/portmap.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import Nat, NatHop, decision_of
from tracer.model.kube import ObjectReference, Pod, ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.packet import Packet
from tracer.util.endpoint_format import format_endpoint


def find(packet: Packet, context: FindingContext) -> Finding | None:
    cluster, protocol = context.cluster, packet.protocol.lower()
    for hop in packet.hops:
        if not isinstance(hop, NatHop) or hop.clone or not is_host(hop.netns) or hop.nat.kind != "DNAT":
            continue
        before, after = hop.nat.before, hop.nat.after
        meant = cluster.service_at(before.dst, before.dport, protocol)
        if not _is_gone(after.dst, context):
            continue
        chosen = ("chosen by rules", protocol, before.dst, before.dport, after.dst, after.dport)
        if not hop.from_conntrack:
            if decision_of(hop):
                context.since[chosen] = packet.time
            continue
        if chosen in context.since:
            continue  # Rules that are in force choose it, too: the entry repeats no old translation.
        if meant and not _is_endpoint(meant[0], after.dst, after.dport, context):
            return _of_service(packet, hop.nat, meant[0], context)
        # Without a pod that has the hostPort now, nothing shows that the translation was made for one.
        holders = cluster.store.by_host_port.all((before.dport, protocol)) if not meant and cluster.is_local(before.dst) else ()
        if holders and cluster.store.node_of_network(after.dst):
            return _of_host_port(packet, hop.nat, holders)
    return None


def _is_gone(address: str, context: FindingContext) -> bool:
    """Whether no pod, sandbox or node has an address. A terminating endpoint is not gone: its pod still has the address."""
    cluster = context.cluster
    # If several pods have the address, or libcni and the API disagree, the pod is ambiguous, but not gone.
    return not (
        cluster.pod_at(address)
        or cluster.sandboxes.at(address)
        or cluster.store.by_pod_ip.all(address)
        or cluster.is_local(address)
        or cluster.store.by_node_ip.all(address)
    )


def _is_endpoint(port: ServicePort, address: str, number: int, context: FindingContext) -> bool:
    ends = context.cluster.store.endpoints.all((port.label, port.protocol))
    return any((e.address, e.port) == (address, number) for e in ends)


def _of_service(packet: Packet, nat: Nat, port: ServicePort, context: FindingContext) -> Finding:
    after, protocol = nat.after, packet.protocol.lower()
    ends = [e for e in context.cluster.store.endpoints.all((port.label, port.protocol)) if e.ready]
    now = ", ".join(format_endpoint(e.address, e.port) for e in ends[:5]) or "none"
    if protocol == "tcp":
        by_proxy = "kube-proxy deletes no entries of TCP: this one ends with the connection."
    elif ends:
        by_proxy = "kube-proxy deletes such UDP entries when an endpoint is removed: check its log if it did not."
    else:
        by_proxy = (
            "kube-proxy deletes such UDP entries when an endpoint is removed; but from 1.32 on, releases without the change"
            " kubernetes#139629 (1.37 has it) leave those of a Service that has lost its last endpoint, until it has one again."
        )
    return _finding(
        packet,
        nat,
        (port.label, protocol, after.dst, after.dport),
        f"Service {port.label}",
        "no longer an endpoint or a pod",
        FindingEvidence("object", f"the endpoints of {port.label} are {now}", "Kubernetes API"),
        by_proxy,
        port.reference,
    )


def _of_host_port(packet: Packet, nat: Nat, holders: Sequence[Pod]) -> Finding:
    before, after, protocol = nat.before, nat.after, packet.protocol.lower()
    who = f"hostPort {before.dport} of pod {holders[0].namespace}/{holders[0].name}"
    by_portmap = (
        "portmap deletes such UDP entries when it gives the port to a pod: check the container runtime's log if it did not."
        if protocol == "udp"
        else "portmap deletes no entries of TCP: this one ends with the connection."
    )
    has = ", ".join(holders[0].addresses) or "no address yet"
    return _finding(
        packet,
        nat,
        ("hostPort", before.dport, protocol, after.dst, after.dport),
        who,
        "no longer a pod",
        FindingEvidence("object", f"the pod with hostPort {before.dport} has {has}", "Kubernetes API"),
        by_portmap,
        ObjectReference("Pod", holders[0].namespace, holders[0].name),
    )


def _finding(
    packet: Packet, nat: Nat, key: tuple[Hashable, ...], asked: str, is_now: str, owned: FindingEvidence, deletes: str,
    subject: ObjectReference,
) -> Finding:  # fmt: skip
    """Makes the finding.

    Args:
        packet: The packet.
        nat: The translation that conntrack repeats.
        key: The finding's key.
        asked: What the client asked for.
        is_now: What the target is by now.
        owned: The evidence of what belongs to it now.
        deletes: Who deletes such entries, as a sentence.
        subject: The object that suffers.
    """
    before, after, protocol = nat.before, nat.after, packet.protocol.lower()
    return Finding(
        name="",
        key=key,
        cause=(
            f"A connection to {asked} still goes to {format_endpoint(after.dst, after.dport)}, which is {is_now}: conntrack"
            " repeats the translation of the connection's first packet, and the rules are not evaluated."
        ),
        proofs=(
            packet_proof(packet),
            FindingEvidence(
                "packet",
                f"{format_endpoint(before.dst, before.dport)} became {format_endpoint(after.dst, after.dport)}",
                "from conntrack",
            ),
            owned,
        ),
        check=f"`conntrack -L -p {protocol} --orig-dst {before.dst} --orig-port-dst {before.dport}` shows the entry.",
        cure=(
            f"`conntrack -D -p {protocol} --orig-dst {before.dst} --reply-src {after.dst}`; or make the client use another"
            f" source port. {deletes}"
        ),
        subject=subject,
    )
