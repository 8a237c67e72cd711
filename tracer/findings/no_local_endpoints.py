"""A Service of policy Local is dropped here for want of local endpoints, although its pods run here.

kube-proxy calls an endpoint local when the endpoint's nodeName is the name that kube-proxy goes by. Where that is the bare
host name and the node is registered by its full one, no endpoint is ever local.
"""

from __future__ import annotations

from tracer.findings.context import Context
from tracer.findings.kube_proxy import KubeProxy
from tracer.findings.model import Finding, Proof, rule_proof
from tracer.kube.model import Endpoint, Owner, ServicePort
from tracer.model import Packet
from tracer.rules.model import Visit, Walk

SAYS = "no local endpoints"


def find(packet: Packet, context: Context) -> Finding | None:
    if packet.outcome != "dropped":
        return None
    for hop in packet.hops:
        for visit in hop.walk.visits if hop.walk and not hop.clone and hop.netns == "node" else ():
            owner = _whom(visit, hop.walk, context) if hop.walk else None
            port = _port(owner, packet, context) if owner else None
            if owner and port:
                found = _tell(packet, visit, owner, port, context)
                if found:
                    return found
    return None


def _whom(visit: Visit, walk: Walk, context: Context) -> Owner | None:
    """The Service whose rule says here that it has no local endpoints: by its comment, or by a map's element that drops."""
    if not visit.rule:
        return None
    if visit.rule.comment.endswith("has " + SAYS):
        return context.owner(visit.rule, walk)
    if visit.element.endswith(": drop"):
        from tracer.kube.owners.kube_proxy_nftables import owner_of_element

        owner = owner_of_element(visit.element, context.known)
        return owner if owner and SAYS in owner.detail else None
    return None


def _port(owner: Owner, packet: Packet, context: Context) -> ServicePort | None:
    """The service port that was meant. The comment may name the Service alone: then it is the one port of this protocol and
    number.
    """
    protocol = packet.protocol.lower()
    ports = [p for p in context.known.store.services.all((owner.namespace, owner.name)) if p.protocol == protocol]
    meant = [p for p in ports if packet.endpoints.dport in (p.node_port, p.port)]
    found = [p for p in meant or ports if p.label == owner.label] or meant
    return found[0] if len(found) == 1 else None


def _tell(packet: Packet, visit: Visit, owner: Owner, port: ServicePort, context: Context) -> Finding | None:
    ends = [e for e in context.known.store.endpoints.all((port.label, port.protocol)) if e.ready]
    here = [(e, why) for e in ends for why in [_runs_here(e, context)] if why]
    if not here:
        return None
    names = tuple(dict.fromkeys(e.node for e, _ in here if e.node))
    proxy = context.node.kube_proxy()
    wrong = _wrong_name(proxy, names)
    proofs = [
        Proof(
            "packet", f"{packet.endpoints.src} -> {packet.endpoints.dst}:{packet.endpoints.dport}: {packet.verdict}", "observed"
        ),
        rule_proof(visit, owner.text),
    ]
    proofs += [
        Proof(
            "object",
            f"{e.text or e.address} at {e.address}:{e.port} runs here ({why}); its nodeName is {e.node or 'not told'}",
            "Kubernetes API",
        )
        for e, why in here[:5]
    ]
    if proxy:
        told = (
            "; or ".join(f"{name}, by {source}" for name, source in proxy.names) or "unknown: its configuration cannot be read"
        )
        proofs.append(Proof("process", f"kube-proxy (pid {proxy.pid}) goes by the name {told}", f"/proc/{proxy.pid}"))
    node = context.known.store.this_node()
    if node:
        proofs.append(Proof("object", f"this node is registered as {node.name}", "Kubernetes API"))
    registered = " or ".join(names) or "another name"
    count = f"{len(here)} of its pods run{'s' * (len(here) == 1)} here"
    if wrong:
        why = (
            f"kube-proxy goes by the name {wrong[0]} ({wrong[1]}) and the endpoints carry {registered}, so it takes"
            f" none of them for local"
        )
    else:
        why = f"perhaps kube-proxy goes by another name than {registered}, or has not yet heard of them"
    health = f" curl http://localhost:{port.health_port}/ answers localEndpoints 0." if port.health_port else ""
    return Finding(
        name="",
        key=(port.label, port.protocol),
        cause=f"Service {port.label} has externalTrafficPolicy Local and is dropped on this node for having no local"
            f" endpoints, although"
              f" {count}: {why}.",
        proofs=tuple(proofs),
        check=f"kubectl get endpointslices -n {port.namespace} -o wide against the name in kube-proxy's log and"
            f" configuration (its log says"
              f" 'Failed to retrieve node info: nodes \"NAME\" not found').{health}",
        cure=f"Set hostnameOverride: {names[0] if names else 'NODENAME'} in kube-proxy's configuration file: with"
            f" --config its flag"
              f" --hostname-override may be ignored. Then restart kube-proxy.",
        certain=wrong is not None,
    )  # fmt: skip


def _runs_here(end: Endpoint, context: Context) -> str:
    """How it is known that an endpoint is on this node, "" when it is not known to be."""
    known = context.known
    node = known.store.this_node()
    if known.sandboxes.at(end.address):
        return "CNI result cache"
    if node and end.node == node.name:
        return "its node has this node's address"
    of = known.store.node_of_network(end.address)
    if node and of and of.name == node.name:
        return "in this node's podCIDR"
    return ""


def _wrong_name(proxy: KubeProxy | None, names: tuple[str, ...]) -> tuple[str, str] | None:
    """The name that kube-proxy goes by and no endpoint carries. Of two possible ones, the rule shows that it is not the
    right one.
    """
    if not proxy or not names:
        return None
    others = [n for n in proxy.names if n[0] and n[0] not in names]
    return others[0] if len(others) == 1 or (others and len(others) == len(proxy.names)) else None
