# SPDX-License-Identifier: Apache-2.0
"""A service mesh's rule in a pod redirects a connection to the port of its proxy, and nothing listens there.

The rules stay in the pod's network namespace while the proxy's container has not started yet, has crashed, or was left out.
Then every connection of the pod is refused, also one to a destination that has nothing to do with the mesh.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, rewriting_rule, rule_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import RewriteHop, alike_of, is_from_conntrack
from tracer.model.kube import Owner
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Hook
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import RuleHit
from tracer.packets.outcome import without_socket
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint

PROXIES = {"Istio": "istio-proxy", "Linkerd": "linkerd-proxy", "Consul": "consul-dataplane"}
"""Program of a mesh -> name of its proxy's container."""
_TARGETS = frozenset({"REDIRECT", "DNAT"})


def find(packet: Packet, context: FindingContext) -> Finding | None:
    refused = without_socket(h for h in packet.hops if not h.clone) if packet.outcome is Outcome.REFUSED else None
    if not refused or is_host(refused.netns):
        return None
    last = next((h for h in reversed(alike_of(packet.hops, RewriteHop)) if h.netns == refused.netns), None)
    if not last or last.nat.kind not in _TARGETS or is_from_conntrack(last):
        return None
    owner, hit = last.owner, rewriting_rule(packet, last, _TARGETS)
    if not hit or not owner or not owner.known or owner.program not in PROXIES:
        return None
    return _finding(packet, last, hit, owner, context)


def _finding(packet: Packet, redirect: RewriteHop, hit: RuleHit, owner: Owner, context: FindingContext) -> Finding:
    nat, place = redirect.nat, redirect.netns
    port, proxy, target = nat.after.dport, PROXIES[owner.program], format_endpoint(nat.before.dst, nat.before.dport)
    found = context.cluster.pod_at(nat.before.src if redirect.hook is Hook.OUTPUT else nat.before.dst)
    pod = "/".join(found[:2]) if found else ""
    who = f"pod {pod} (network namespace {place})" if pod else f"network namespace {place}"
    rule = f"; `{operator_commands.shows(hit.rule)}` shows the rule" if hit.rule else ""
    return Finding(
        name="",
        key=(place, owner.program, port),
        cause=(
            f"{owner.program}'s rule in {who} redirects connections to the mesh's proxy at port {port}, where nothing"
            f" listens: the connection to {target} was refused there."
        ),
        proofs=(
            packet_proof(packet),
            rule_proof(hit, owner.text),
            FindingEvidence("packet", f"{target} became port {port}, which has no listener in {place}", "observed"),
        ),
        check=f"In network namespace {place}: `{operator_commands.sockets(port, 'tcp')}` shows no listener{rule}.",
        cure=(
            f"Find out why the container {proxy} does not listen on port {port} (not started yet, crashed, left out, or"
            f" configured for another port), or make the pod again. Where the application starts before the proxy, hold it"
            f" back until the proxy is ready."
        ),
    )
