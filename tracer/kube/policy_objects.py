# SPDX-License-Identifier: Apache-2.0
"""Converts NetworkPolicies and Namespaces of the API's JSON to the classes of tracer/model/policy.py."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from tracer.model.policy import (
    EGRESS,
    INGRESS,
    LabelSelector,
    NetworkPolicy,
    PolicyNamespace,
    PolicyPeer,
    PolicyPort,
    PolicyRule,
    SelectorTerm,
)

Json = dict[str, Any]
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def network_policy(body: Json) -> NetworkPolicy:
    """Returns a NetworkPolicy. Raises ValueError for an invalid network or an operator that does not exist.

    Without policyTypes it limits ingress, and egress if it has rules for egress: the API's default.
    """
    meta, spec = body.get("metadata") or {}, body.get("spec") or {}
    types = [str(t).lower() for t in spec.get("policyTypes") or ()]
    directions = types or [INGRESS, *([EGRESS] if spec.get("egress") else ())]
    return NetworkPolicy(
        str(meta.get("namespace", "")),
        str(meta.get("name", "")),
        label_selector(spec.get("podSelector", {})),
        tuple(d for d in (INGRESS, EGRESS) if d in directions),
        tuple(_rule(rule, "from") for rule in spec.get("ingress") or ()),
        tuple(_rule(rule, "to") for rule in spec.get("egress") or ()),
    )


def namespace(body: Json) -> PolicyNamespace:
    """Returns a Namespace with its labels."""
    meta = body.get("metadata") or {}
    labels = tuple(sorted((str(k), str(v)) for k, v in (meta.get("labels") or {}).items()))
    return PolicyNamespace(str(meta.get("name", "")), labels)


def label_selector(body: Json) -> LabelSelector:
    """Returns a selector. Raises ValueError for an operator that does not exist, AttributeError if it is no object."""
    terms = [SelectorTerm(str(k), "In", (str(v),)) for k, v in sorted((body.get("matchLabels") or {}).items())]
    for term in body.get("matchExpressions") or ():
        if term["operator"] not in _OPERATORS:
            raise ValueError(f"operator {term['operator']}")
        terms.append(SelectorTerm(str(term["key"]), term["operator"], tuple(map(str, term.get("values") or ()))))
    return LabelSelector(tuple(terms))


def _rule(body: Json, peers: str) -> PolicyRule:
    return PolicyRule(tuple(map(_peer, body.get(peers) or ())), tuple(map(_port, body.get("ports") or ())))


def _peer(body: Json) -> PolicyPeer:
    block = body.get("ipBlock")
    if block is not None:
        networks = [block["cidr"], *(block.get("except") or ())]
        checked = [str(ip_network(str(network), strict=False)) for network in networks]
        return PolicyPeer(block=checked[0], exceptions=tuple(checked[1:]))
    pods, namespaces = body.get("podSelector"), body.get("namespaceSelector")
    return PolicyPeer(
        None if pods is None else label_selector(pods), None if namespaces is None else label_selector(namespaces)
    )


def _port(body: Json) -> PolicyPort:
    port, protocol = body.get("port"), str(body.get("protocol") or "TCP").lower()
    if not isinstance(port, int | str | None):
        raise ValueError("port")
    if isinstance(port, str) and not port.isdigit():
        return PolicyPort(protocol, name=port)
    return PolicyPort(protocol, int(port or 0), int(body.get("endPort") or 0))
