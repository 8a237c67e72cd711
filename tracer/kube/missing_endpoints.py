# SPDX-License-Identifier: Apache-2.0
"""Why kube-proxy lets nothing through to a Service: it has no endpoints, or by its policy none that counts on this node."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.model.kube import Owner
from tracer.util.frozen import evolve

NONE, NONE_HERE = "no endpoints", "no local endpoints"
"""In an owner's detail, and in the comments of kube-proxy's rules behind "has"."""
_WITHIN = "cluster IP"


def none_here(door: str) -> str:
    """That there are no local endpoints, with the policy that asks for local ones. door: by what the packet came."""
    policy = "internal" if door.startswith(_WITHIN) else "external"
    return f"{NONE_HERE} ({policy}TrafficPolicy Local)" if door else NONE_HERE


def fate_in(owner: Owner | None) -> str:
    """NONE or NONE_HERE, where an owner's words say so; else ""."""
    said = f"{owner.detail}, {owner.cause}" if owner else ""
    return NONE_HERE if NONE_HERE in said else NONE if NONE in said else ""


def without_real_server(owner: Owner, protocol: str, cluster: ClusterView) -> Owner:
    """The owner of a virtual server of IPVS that has no real server, with the reason that the API's objects tell. As it is,
    where they tell none: kube-proxy may not have heard of an endpoint yet.
    """
    ports = cluster.store.services.all((owner.namespace, owner.name)) if owner.kind == "Service" else ()
    port = next((p for p in ports if (p.label, p.protocol) == (owner.label, protocol)), None)
    if not port or not len(cluster.store.endpoints):
        return owner
    ready = any(e.ready for e in cluster.store.endpoints.all((port.label, port.protocol)))
    by_policy = port.local and owner.detail and not owner.detail.startswith(_WITHIN)
    fate = NONE if not ready else none_here(owner.detail) if by_policy else ""
    return evolve(owner, detail=", ".join(filter(None, (owner.detail, fate))))
