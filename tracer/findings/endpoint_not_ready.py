# SPDX-License-Identifier: Apache-2.0
"""A Service is refused for having no endpoints, although it has pods: none of them is ready."""

from __future__ import annotations

from tracer.findings.context import Context
from tracer.findings.model import Finding, Proof, decision_proof, packet_proof
from tracer.findings.no_local_endpoints import port_of
from tracer.model import Packet

SAYS = "no endpoints"


def find(packet: Packet, context: Context) -> Finding | None:
    for hop in packet.hops:
        by_rule = hop.walk and hop.walk.decision and hop.owner and SAYS in hop.owner.detail
        if hop.verdict != "REJECT" or hop.clone or not hop.owner or hop.owner.kind != "Service" or not (by_rule or hop.ipvs):
            continue
        port = port_of(hop.owner, packet.protocol.lower(), packet.endpoints.dport, context)
        ends = context.known.store.endpoints.all((port.label, port.protocol)) if port else ()
        if not port or not ends or any(e.ready for e in ends):
            continue
        names = ", ".join(e.text or e.address for e in ends[:5])
        return Finding(
            name="",
            key=(port.label, port.protocol),
            cause=(
                f"Service {port.label} is refused for having no endpoints, although {len(ends)} pod{'s' * (len(ends) > 1)}"
                f" stand{'s' * (len(ends) == 1)} behind it: none is ready, so none gets requests."
            ),
            proofs=(
                packet_proof(packet),
                decision_proof(hop, hop.owner.text),
                Proof("object", f"not ready: {names}", "Kubernetes API"),
            ),
            check=_check(port.namespace, next((e.pod[1] for e in ends if e.pod[1]), "")),
            cure=(
                "Mend what the readiness probe asks for, or the probe; publishNotReadyAddresses: true gives requests to pods"
                " that are not ready."
            ),
        )
    return None


def _check(namespace: str, pod: str) -> str:
    """What to look at. pod: one that is not ready, "" where the endpoints name none."""
    if not pod:
        return f"`kubectl get pods -n {namespace}` shows which pods are not ready."
    command = f"kubectl describe pod -n {namespace} {pod}"
    return f"`{command}` shows the condition Ready; its events say how the readiness probe fails."
