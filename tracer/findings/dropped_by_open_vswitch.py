# SPDX-License-Identifier: Apache-2.0
"""The Open vSwitch datapath drops packets. Antrea, Kube-OVN and OVN-Kubernetes carry out policies there, by flows.

The kernel gives the reason. It does not give the flow, so the policy is unknown; those that select the pods are candidates.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import check_of_candidates, last_ends, packet_proof, policy_proofs
from tracer.kube.policies.evaluation import end_at
from tracer.kube.policies.policy_candidates import OPEN_VSWITCH, candidates
from tracer.model.finding import Finding
from tracer.model.hop import DropHop
from tracer.model.namespace_name import is_host
from tracer.model.packet import Outcome, Packet
from tracer.packets.ovs_drops import DATAPATH, OF_FLOWS, UPCALL, ovs_clause
from tracer.util.endpoint_format import format_endpoint, format_protocol


def find(packet: Packet, context: FindingContext) -> Finding | None:
    hop = next((h for h in reversed(packet.hops) if isinstance(h, DropHop) and not h.clone), None)
    clause = ovs_clause(hop.drop) if hop and packet.outcome is Outcome.DROPPED else ""
    if not hop or not clause:
        return None
    ends, protocol, cluster = last_ends(packet), packet.protocol.lower(), context.cluster
    source, target = end_at(ends.src, cluster), end_at(ends.dst, cluster)
    what = format_protocol(protocol, ends.dport)
    where = (f" at {hop.in_iface}" if hop.in_iface else "") + ("" if is_host(hop.netns) else f" in {hop.netns}")
    policies = candidates(ends, protocol, cluster) if hop.drop.reason in OF_FLOWS else None
    reason = f"{hop.drop.reason}, {clause}" if policies else clause
    cause = f"{DATAPATH[0].upper()}{DATAPATH[1:]} drops {what} from {source.text} to {target.text}{where}: {reason}."
    return Finding(
        name="",
        key=(hop.netns, hop.in_iface, hop.drop.reason, ends.src, ends.dst, what),
        cause=f"{cause} {policies.sentence(OPEN_VSWITCH)}" if policies else cause,
        proofs=(packet_proof(packet), *policy_proofs(policies)),
        check=" ".join(filter(None, (_check(hop), check_of_candidates(policies)))),
        cure=_cure(hop, source.text, format_endpoint(ends.dst, ends.dport)),
    )


def _check(hop: DropHop) -> str:
    port = f", with in_port({hop.in_iface}) those of this interface" if hop.in_iface else ""
    return (
        "Where ovs-vswitchd runs (with Antrea in container antrea-ovs of the agent's pod),"
        f" `ovs-appctl dpctl/dump-flows --names` shows the flows{port}; with Antrea a Traceflow names the policy."
    )


def _cure(hop: DropHop, source: str, target: str) -> str:
    if hop.drop.reason in OF_FLOWS:
        return f"If it should be allowed: a NetworkPolicy that allows {source} to reach {target}."
    if hop.drop.function.partition(".")[0] == UPCALL:
        return "Start ovs-vswitchd, or look into its log: without it packets of new connections have no flow."
    return "What the reason says: see the log of ovs-vswitchd, and of the program that gives it its flows."
