# SPDX-License-Identifier: Apache-2.0
"""A connection still goes to a deleted pod: conntrack repeats the translation of the connection's first packet.

NAT rules are evaluated only for a connection's first packet. UDP has no end of a connection: a client that always sends from
the same port keeps the same translation, until the conntrack entry is deleted.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import Nat, NatHop
from tracer.model.kube import ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.packet import Packet
from tracer.util.endpoint_format import format_endpoint


def find(packet: Packet, context: FindingContext) -> Finding | None:
    cluster, protocol = context.cluster, packet.protocol.lower()
    for hop in packet.hops:
        if (
            not isinstance(hop, NatHop)
            or hop.clone
            or not is_host(hop.netns)
            or not hop.from_conntrack
            or hop.nat.kind != "DNAT"
        ):
            continue
        before, after = hop.nat.before, hop.nat.after
        meant = cluster.service_at(before.dst, before.dport, protocol)
        # A terminating endpoint is not gone: its pod still has the address.
        gone = (
            meant
            and not cluster.pod_at(after.dst)
            # If several pods have the address, or libcni and the API disagree, the pod is ambiguous, but not gone.
            and not cluster.sandboxes.at(after.dst)
            and not cluster.store.by_pod_ip.all(after.dst)
            and not cluster.is_local(after.dst)
            and not cluster.store.by_node_ip.all(after.dst)
        )
        if meant and gone and not _is_endpoint(meant[0], after.dst, after.dport, context):
            return _finding(packet, hop.nat, meant[0], context)
    return None


def _is_endpoint(port: ServicePort, address: str, number: int, context: FindingContext) -> bool:
    ends = context.cluster.store.endpoints.all((port.label, port.protocol))
    return any((e.address, e.port) == (address, number) for e in ends)


def _finding(packet: Packet, nat: Nat, port: ServicePort, context: FindingContext) -> Finding:
    before, after = nat.before, nat.after
    ends = [e for e in context.cluster.store.endpoints.all((port.label, port.protocol)) if e.ready]
    now = ", ".join(format_endpoint(e.address, e.port) for e in ends[:5]) or "none"
    protocol = packet.protocol.lower()
    return Finding(
        name="",
        key=(port.label, protocol, after.dst, after.dport),
        cause=(
            f"A connection to Service {port.label} still goes to {format_endpoint(after.dst, after.dport)}, which is no"
            " longer an endpoint or a pod: conntrack repeats the translation of the connection's first packet, and the"
            " rules are not evaluated."
        ),
        proofs=(
            packet_proof(packet),
            FindingEvidence(
                "packet",
                f"{format_endpoint(before.dst, before.dport)} became {format_endpoint(after.dst, after.dport)}",
                "from conntrack",
            ),
            FindingEvidence("object", f"the endpoints of {port.label} are {now}", "Kubernetes API"),
        ),
        check=f"`conntrack -L -p {protocol} --orig-dst {before.dst} --orig-port-dst {before.dport}` shows the entry.",
        cure=(
            f"`conntrack -D -p {protocol} --orig-dst {before.dst} --reply-src {after.dst}`; or make the client use another"
            " source port. kube-proxy deletes such UDP entries when an endpoint is removed: check its log if it did not."
        ),
        subject=port.reference,
    )
