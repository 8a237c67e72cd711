# SPDX-License-Identifier: Apache-2.0
"""A connection goes on to a pod that is gone: conntrack repeats the translation that its first packet was given.

Rules are asked for a connection's first packet only. UDP has no end, so a client that always sends from one port is sent to the
same address for ever, unless whoever removed the pod also removed the entry.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.kube import ServicePort
from tracer.model.packet import Nat, Packet
from tracer.util.endpoint_format import format_endpoint


def find(packet: Packet, context: FindingContext) -> Finding | None:
    known, protocol = context.cluster, packet.protocol.lower()
    for hop in packet.hops:
        if hop.clone or hop.netns != "node" or not hop.from_conntrack or not hop.nat or hop.nat.kind != "DNAT":
            continue
        before, after = hop.nat.before, hop.nat.after
        meant = known.service_at(before.dst, before.dport, protocol)
        # An endpoint that is on its way out is not gone: its pod still has the address.
        gone = (
            meant
            and not known.pod_at(after.dst)
            # Where two are told, or one by libcni and another by the API, nobody knows which: but none is gone.
            and not known.sandboxes.at(after.dst)
            and not known.store.by_pod_ip.all(after.dst)
            and not known.is_local(after.dst)
            and not known.store.by_node_ip.all(after.dst)
        )
        if meant and gone and not _is_endpoint(meant[0], after.dst, after.dport, context):
            return _tell(packet, hop.nat, meant[0], context)
    return None


def _is_endpoint(port: ServicePort, address: str, number: int, context: FindingContext) -> bool:
    ends = context.cluster.store.endpoints.all((port.label, port.protocol))
    return any((e.address, e.port) == (address, number) for e in ends)


def _tell(packet: Packet, nat: Nat, port: ServicePort, context: FindingContext) -> Finding:
    before, after = nat.before, nat.after
    ends = [e for e in context.cluster.store.endpoints.all((port.label, port.protocol)) if e.ready]
    now = ", ".join(format_endpoint(e.address, e.port) for e in ends[:5]) or "none"
    protocol = packet.protocol.lower()
    return Finding(
        name="",
        key=(port.label, protocol, after.dst, after.dport),
        cause=(
            f"A connection to Service {port.label} still goes to {format_endpoint(after.dst, after.dport)}, which is no"
            " endpoint of it and no pod any more: conntrack repeats the translation of the connection's first packet, and the"
            " rules are not asked."
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
            f"`conntrack -D -p {protocol} --orig-dst {before.dst} --reply-src {after.dst}`; or let the client take another"
            " source port. kube-proxy removes such entries of UDP when it sees the endpoint go: see its log if it did not."
        ),
    )
