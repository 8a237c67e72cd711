# SPDX-License-Identifier: Apache-2.0
"""Why kube-proxy refuses requests to a Service: it has no endpoints, or, by its policy, no local ones."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.model.kube import Owner
from tracer.util.frozen import evolve

NONE, NONE_HERE = "no endpoints", "no local endpoints"
"""The phrases in an owner's detail, and after "has" in the comments of kube-proxy's rules."""
_WITHIN = "cluster IP"


def none_here(entry_point: str) -> str:
    """Returns the phrase for missing local endpoints, with the policy. entry_point: how the packet addressed the Service."""
    policy = "internal" if entry_point.startswith(_WITHIN) else "external"
    return f"{NONE_HERE} ({policy}TrafficPolicy Local)" if entry_point else NONE_HERE


def fate_in(owner: Owner | None) -> str:
    """Returns NONE or NONE_HERE if an owner's text contains it; else ""."""
    said = f"{owner.detail}, {owner.cause}" if owner else ""
    return NONE_HERE if NONE_HERE in said else NONE if NONE in said else ""


def without_real_server(owner: Owner, protocol: str, cluster: ClusterView) -> Owner:
    """Adds to the owner of an IPVS virtual server why it has no real server, from the API's objects.

    Returns the owner unchanged if they show no reason: kube-proxy may not have received an endpoint yet.
    """
    ports = cluster.store.services.all((owner.namespace, owner.name)) if owner.kind == "Service" else ()
    port = next((p for p in ports if (p.label, p.protocol) == (owner.label, protocol)), None)
    if not port or not len(cluster.store.endpoints):
        return owner
    ready = any(e.ready for e in cluster.store.endpoints.all((port.label, port.protocol)))
    by_policy = port.local and owner.detail and not owner.detail.startswith(_WITHIN)
    fate = NONE if not ready else none_here(owner.detail) if by_policy else ""
    return evolve(owner, detail=", ".join(filter(None, (owner.detail, fate))))
