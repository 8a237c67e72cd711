# SPDX-License-Identifier: Apache-2.0
"""A Service is refused because it has no endpoints: it has pods, but none of them is ready.

Or it has the policy Local and no local endpoints: a pod runs on this node, but it is not ready.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracer.findings.context import FindingContext
from tracer.findings.no_local_endpoints import port_of, runs_here, turned_away
from tracer.findings.proofs import decision_proof, packet_proof
from tracer.kube.missing_endpoints import NONE
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DecidingHop, IpvsRefusalHop, decision_of
from tracer.model.kube import Endpoint, ServicePort
from tracer.model.netfilter import Verdict
from tracer.model.packet import Packet

CURE = (
    "Fix the application so that its readiness probe succeeds, or fix the probe; publishNotReadyAddresses: true sends requests"
    " to pods that are not ready."
)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    return _nowhere(packet, context) or _not_here(packet, context)


def _not_here(packet: Packet, context: FindingContext) -> Finding | None:
    """Policy Local: the pods on this node are not ready, and ready pods run only on other nodes."""
    for port, shown, fate in turned_away(packet, context):
        ends = context.cluster.store.endpoints.all((port.label, port.protocol))
        here = [e for e in ends if runs_here(e, context)]
        if not here or any(e.ready for e in here):
            continue
        count, one = f"{len(here)} of its pods run{'s' * (len(here) == 1)} here", len(here) == 1
        state = "it is not ready, so it gets no requests" if one else "none of these is ready, so none gets requests"
        cause = (
            f"Service {port.label} has externalTrafficPolicy Local and is {fate} on this node because it has no local"
            f" endpoints, although {count}: {state}."
        )
        return _finding(port, cause, shown, here, "local")
    return None


def _nowhere(packet: Packet, context: FindingContext) -> Finding | None:
    """No pod of the Service is ready."""
    for hop in packet.hops:
        if not isinstance(hop, DecidingHop) or hop.verdict is not Verdict.REJECT or hop.clone:
            continue
        by_rule = decision_of(hop) and hop.owner and NONE in hop.owner.detail
        by_ipvs = isinstance(hop, IpvsRefusalHop)
        if not hop.owner or hop.owner.kind != "Service" or not (by_rule or by_ipvs):
            continue
        port = port_of(hop.owner, packet.protocol.lower(), packet.endpoints.dport, context)
        ends = context.cluster.store.endpoints.all((port.label, port.protocol)) if port else ()
        if not port or not ends or any(e.ready for e in ends):
            continue
        cause = (
            f"Service {port.label} is refused because it has no endpoints, although {len(ends)} pod{'s' * (len(ends) > 1)}"
            f" belong{'s' * (len(ends) == 1)} to it: none is ready, so none gets requests."
        )
        return _finding(port, cause, (packet_proof(packet), decision_proof(hop, hop.owner.text)), ends)
    return None


def _finding(port: ServicePort, cause: str, shown: Sequence[FindingEvidence], ends: Sequence[Endpoint], *key: str) -> Finding:
    """shown: Evidence that requests are turned away. ends: Endpoints that are not ready. key: Parts beside the port's."""
    not_ready = ", ".join(e.text or e.address for e in ends[:5])
    return Finding(
        name="",
        key=(port.label, port.protocol, *key),
        cause=cause,
        proofs=(*shown, FindingEvidence("object", f"not ready: {not_ready}", "Kubernetes API")),
        check=_check(port.namespace, next((e.pod[1] for e in ends if e.pod[1]), "")),
        cure=CURE,
        subject=port.reference,
    )


def _check(namespace: str, pod: str) -> str:
    """Returns what to check. pod: a pod that is not ready; "" if the endpoints name none."""
    if not pod:
        return f"`kubectl get pods -n {namespace}` shows which pods are not ready."
    command = f"kubectl describe pod -n {namespace} {pod}"
    return f"`{command}` shows the condition Ready; its events say how the readiness probe fails."
