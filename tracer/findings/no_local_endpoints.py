# SPDX-License-Identifier: Apache-2.0
"""A Service with policy Local is dropped on this node because it has no local endpoints, although its pods run here.

For kube-proxy an endpoint is local if the endpoint's nodeName equals kube-proxy's own node name. If kube-proxy uses the short
host name and the node is registered with its full name, no endpoint is ever local.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracer.findings.context import FindingContext
from tracer.findings.proofs import decision_proof, packet_proof, rule_proof
from tracer.kube.missing_endpoints import NONE_HERE
from tracer.kube.owners.kube_proxy_nftables import owner_of_element
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import IpvsRefusalHop, trace_of
from tracer.model.kube import Endpoint, Owner, ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Verdict
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import RuleHit, RuleTrace
from tracer.node.kube_proxy import FLAG, KEY, KubeProxy
from tracer.node.node_questions import RunningKubeProxy
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

KUBE_PROXY = RunningKubeProxy()
ASKS = (KUBE_PROXY,)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    found = (conflict(port, shown, context, fate) for port, shown, fate in turned_away(packet, context))
    return next(filter(None, found), None)


def turned_away(packet: Packet, context: FindingContext) -> Iterator[tuple[ServicePort, list[FindingEvidence], str]]:
    """Yields (service port, evidence, "dropped" or "refused") if a packet ended because of missing local endpoints."""
    for hop in packet.hops if packet.outcome in (Outcome.DROPPED, Outcome.REJECTED) else ():
        if hop.clone or not is_host(hop.netns):
            continue
        if isinstance(hop, IpvsRefusalHop) and hop.verdict is Verdict.REJECT:
            yield from _by_ipvs(packet, hop, context)
            return
        trace = trace_of(hop)
        for hit in trace.hits if trace else ():
            owner = _service_without_local(hit, trace, context) if trace else None
            port = port_of(owner, packet.protocol.lower(), packet.endpoints.dport, context) if owner else None
            if owner and port:
                yield port, [packet_proof(packet), rule_proof(hit, owner.text)], "dropped"


def _by_ipvs(
    packet: Packet, hop: IpvsRefusalHop, context: FindingContext
) -> Iterator[tuple[ServicePort, list[FindingEvidence], str]]:
    """In ipvs mode there is no rule for this: the NodePort of such a Service has a virtual server without real servers."""
    owner, protocol = hop.owner, packet.protocol.lower()
    if not owner or owner.kind != "Service":
        return
    port = port_of(owner, protocol, hop.decision.virtual_port, context)
    if port and port.local and hop.decision.virtual not in port.cluster_ips:
        yield port, [packet_proof(packet), decision_proof(hop, owner.text)], "refused"


def _service_without_local(hit: RuleHit, trace: RuleTrace, context: FindingContext) -> Owner | None:
    """Returns the Service of a rule for missing local endpoints, found by its comment or by a map element that drops."""
    if not hit.rule:
        return None
    if hit.rule.comment.endswith("has " + NONE_HERE):
        return context.owner(hit.rule, trace)
    owner = owner_of_element(hit.element, context.cluster) if hit.element.endswith(": drop") else None
    return owner if owner and NONE_HERE in owner.detail else None


def port_of(owner: Owner, protocol: str, number: int, context: FindingContext) -> ServicePort | None:
    """Returns the service port of a rule's owner.

    The rule's comment may name only the Service. Then it is the only port with this protocol and number; number 0 = the only
    port with this protocol.
    """
    ports = [p for p in context.cluster.store.services.all((owner.namespace, owner.name)) if p.protocol == protocol]
    meant = [p for p in ports if number in (p.node_port, p.port)]
    found = [p for p in meant or ports if p.label == owner.label] or meant or ([] if number else ports)
    return found[0] if len(found) == 1 else None


def conflict(
    port: ServicePort, shown: Sequence[FindingEvidence], context: FindingContext, fate: str = "dropped"
) -> Finding | None:
    """Makes the finding if pods of the Service run here; else returns None.

    Args:
        port: The service port.
        shown: The evidence for the rule.
        context: The context of the findings.
        fate: What happens to the packets: "dropped" or "refused".
    """
    ends = [e for e in context.cluster.store.endpoints.all((port.label, port.protocol)) if e.ready]
    here = [(e, why) for e in ends for why in [runs_here(e, context)] if why]
    if not here:
        return None
    names = tuple(dict.fromkeys(e.node for e, _ in here if e.node))
    proxy = value_of(context.ask(KUBE_PROXY))
    wrong = _wrong_name(proxy, names)
    registered = " or ".join(names) or "another name"
    count = f"{len(here)} of its pods run{'s' * (len(here) == 1)} here"
    if wrong:
        why = (
            f"kube-proxy uses the node name {wrong[0]} ({wrong[1]}) but the endpoints have {registered}, so none of them is"
            f" local for it"
        )
    else:
        why = f"perhaps kube-proxy uses another node name than {registered}, or has not received them yet"
    asks = f" `curl http://localhost:{port.health_port}/` shows how many local endpoints kube-proxy counts."
    health = asks if port.health_port else ""
    return Finding(
        name="",
        key=(port.label, port.protocol),
        cause=(
            f"Service {port.label} has externalTrafficPolicy Local and is {fate} on this node because it has no local"
            f" endpoints, although {count}: {why}."
        ),
        proofs=(*shown, *_ends(here), *_names(proxy, context)),
        check=(
            f"`kubectl get endpoints -n {port.namespace} {port.name} -o yaml | grep nodeName` shows the node name of the"
            f" endpoints; compare it with the one that kube-proxy uses, in {_where(proxy)} (its log says 'Failed to"
            f' retrieve node info: nodes "NAME" not found\').{health}'
        ),
        cure=_cure(proxy, names[0] if names else "NODENAME"),
        certain=wrong is not None,
        subject=port.reference,
    )


def _where(proxy: KubeProxy | None) -> str:
    """Returns where kube-proxy's node name can be found."""
    by_file = proxy.by_file if proxy else None
    if by_file is None:
        return "its log, its command line, and its configuration file if it has one"
    return "its log and its configuration file" if by_file else "its log and its command line"


def _cure(proxy: KubeProxy | None, name: str) -> str:
    """Returns how to set kube-proxy's node name. Mentions a configuration file only if there may be one."""
    by_file = proxy.by_file if proxy else None
    in_file, in_flag = f"Set {KEY}: {name} in kube-proxy's configuration file", f"Start kube-proxy with {FLAG}={name}"
    if by_file is None:
        return f"{in_flag}; where it is started with --config, set {KEY}: {name} in that file. Then restart kube-proxy."
    if by_file:
        return f"{in_file}: with --config its flag {FLAG} may be ignored. Then restart kube-proxy."
    return f"{in_flag}: it has no --config, so the flag has effect."


def _ends(here: Sequence[tuple[Endpoint, str]]) -> list[FindingEvidence]:
    """The evidence for the first endpoints on this node."""
    return [
        FindingEvidence(
            "object",
            f"{_pod(e)}{format_endpoint(e.address, e.port)} runs here ({why}); its nodeName is {e.node or 'not known'}",
            "Kubernetes API",
        )
        for e, why in here[:5]
    ]


def _pod(end: Endpoint) -> str:
    return f"pod {'/'.join(end.pod)} at " if end.pod[1] else ""


def _names(proxy: KubeProxy | None, context: FindingContext) -> list[FindingEvidence]:
    """The evidence for kube-proxy's node name and for this node's name."""
    proofs, node = [], context.cluster.store.this_node()
    if proxy:
        names = "; or ".join(f"{name}, by {source}" for name, source in proxy.names)
        shown = names or "unknown: its configuration cannot be read"
        proofs.append(
            FindingEvidence("process", f"kube-proxy (pid {proxy.pid}) uses the node name {shown}", f"/proc/{proxy.pid}")
        )
    if node:
        proofs.append(FindingEvidence("object", f"this node is registered as {node.name}", "Kubernetes API"))
    return proofs


def runs_here(end: Endpoint, context: FindingContext) -> str:
    """Returns how it is known that an endpoint is on this node; "" = not known."""
    cluster = context.cluster
    node = cluster.store.this_node()
    if cluster.sandboxes.at(end.address):
        return "CNI result cache"
    if node and end.node == node.name:
        return "its node has this node's address"
    of = cluster.store.node_of_network(end.address)
    if node and of and of.name == node.name:
        return "in this node's podCIDR"
    return ""


def _wrong_name(proxy: KubeProxy | None, names: tuple[str, ...]) -> tuple[str, str] | None:
    """Returns the node name that kube-proxy uses and no endpoint has.

    If two names are possible, the rule itself shows that kube-proxy does not use the right one.
    """
    if not proxy or not names:
        return None
    others = [n for n in proxy.names if n[0] and n[0] not in names]
    return others[0] if len(others) == 1 or (others and len(others) == len(proxy.names)) else None
