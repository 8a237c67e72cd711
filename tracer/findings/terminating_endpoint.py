# SPDX-License-Identifier: Apache-2.0
"""A SYN to a Service goes to an endpoint of a pod that is being deleted, and is refused or not answered there.

Kubernetes tells the processes of the pod to end when it removes the endpoint, and the kube-proxy of each node hears of it
later. Since 1.26 kube-proxy also sends to terminating endpoints that still serve, if the Service has no ready one.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.handshake import ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import RewriteHop, alike_of, is_from_conntrack
from tracer.model.kube import Endpoint, ServicePort
from tracer.model.namespace_name import is_host
from tracer.util.endpoint_format import format_endpoint

FATES = {"no listener": "refused it", "refused elsewhere": "refused it", "no answer": "did not answer"}
"""Cause of a SYN -> what its endpoint did."""


def find_syn(verdict: HandshakeVerdict, context: FindingContext) -> Finding | None:
    attempt, fate = verdict.attempt, FATES.get(verdict.cause.name)
    if not attempt or not fate:
        return None
    for hop in alike_of(attempt.syn.hops, RewriteHop):
        if hop.nat.kind != "DNAT" or not is_host(hop.netns):
            continue
        before, after, protocol = hop.nat.before, hop.nat.after, attempt.syn.protocol.lower()
        meant = context.cluster.service_at(before.dst, before.dport, protocol)
        ends = context.cluster.store.endpoints.all((meant[0].label, protocol)) if meant else ()
        chosen = [e for e in ends if (e.address, e.port) == (after.dst, after.dport)]
        if meant and chosen and all(e.terminating for e in chosen):
            return _finding(verdict, attempt, meant[0], chosen[0], [e for e in ends if e.ready], is_from_conntrack(hop))
    return None


def _finding(
    verdict: HandshakeVerdict, attempt: ConnectionAttempt, port: ServicePort, end: Endpoint, ready: list[Endpoint], again: bool
) -> Finding:
    where = format_endpoint(end.address, end.port)
    who = f"{end.text or 'the pod'} at {where}"
    cause, fate = verdict.cause, FATES[verdict.cause.name]
    if again:
        why = "conntrack repeats the translation of an earlier packet with the same ports"
    elif not ready:
        why = "the Service has no ready endpoint, so kube-proxy (1.26 and later) still sends to terminating ones that serve"
    else:
        why = f"kube-proxy had not removed it yet, although the Service has {len(ready)} ready endpoint{'s' * (len(ready) > 1)}"
    state = f"terminating, {'serving' if end.serving else 'not serving'}, {'ready' if end.ready else 'not ready'}"
    asked = format_endpoint(attempt.asked.dst, attempt.asked.dport)
    return Finding(
        name="",
        key=(port.label, port.protocol, end.address, end.port, fate),
        cause=(f"A connection to Service {port.label} was sent to {who}, which is being deleted, and {fate}: {why}."),
        proofs=(
            FindingEvidence(
                "packet", f"SYN {attempt.asked.src} -> {asked}: {verdict.cause.text}", verdict.cause.evidence.value
            ),
            FindingEvidence("object", f"endpoint {where} of {port.label} is {state}", "Kubernetes API"),
        ),
        check=_check(end, port.namespace),
        cure=(
            "Let the pod go on accepting connections until its endpoint is gone everywhere: a preStop hook that sleeps some"
            " seconds, or a process that does not close its listener at SIGTERM, within terminationGracePeriodSeconds."
            + ("" if ready else " Keep another pod ready while this one ends (maxUnavailable: 0, a PodDisruptionBudget).")
        ),
        # That no answer came is derived; a pod that is being deleted may also be unreachable for another reason.
        certain=cause.evidence is Evidence.OBSERVED,
        subject=port.reference,
    )


def _check(end: Endpoint, namespace: str) -> str:
    if not end.pod[1]:
        return f"`kubectl get pods -n {namespace}` shows which pods are Terminating."
    command = f"kubectl get pods -n {end.pod[0]} {end.pod[1]} -o yaml | grep deletionTimestamp"
    return f"`{command}` shows since when the pod is being deleted; without an output it is gone by now."
