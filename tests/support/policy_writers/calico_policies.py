# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies as rules of Calico, independent of the back end: parts with conditions, names of chains, sets and interfaces.

Written from the description of its source: felix/rules (policy.go, endpoints.go, static.go) and libcalico-go's conversion.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.policy_semantics import Object, World, address_of, name_of, ports_of, types_of

FORMS = ("3.28", "3.31", "3.32")
ACCEPT, PASS, ALL_BLOCKS, THIS_BLOCK = 0x10000, 0x20000, 0x40000, 0x80000


@dataclass
class Part:
    """What one peer and one protocol of a rule allow.

    Attributes:
        protocol: "tcp", "udp", or "" = all.
        ports: Ranges of ports, "80" or "80:90".
        named: Sets of (address, port) for named ports.
        others: Set of the addresses of the other end, "" = any.
        net: Network of the other end, "" = any.
        exceptions: Networks inside of it that are not meant.
    """

    protocol: str = ""
    ports: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    others: str = ""
    net: str = ""
    exceptions: list[str] = field(default_factory=list)


@dataclass
class Compiled:
    """The parts of all policies.

    Attributes:
        policies: (policy, "ingress" or "egress") -> parts, by name of the policy.
        addresses: Name of a set -> addresses.
        named: Name of a set -> (address, protocol, port).
    """

    policies: dict[tuple[str, str], list[Part]] = field(default_factory=dict)
    addresses: dict[str, list[str]] = field(default_factory=dict)
    named: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)


def compiled(world: World) -> Compiled:
    made = Compiled()
    for policy in world.policies:
        for way, side in (("ingress", "from"), ("egress", "to")):
            if way.capitalize() in types_of(policy):
                rules = policy["spec"].get(way) or []
                made.policies[name_of(policy), way] = [p for r in rules for p in _parts(world, policy, r, way, side, made)]
    return made


def _parts(world: World, policy: Object, rule: Object, way: str, side: str, made: Compiled) -> Iterator[Part]:
    by_protocol: dict[str, list[Object] | None] = {}
    for port in rule.get("ports") or ():
        protocol = (port.get("protocol") or "TCP").lower()
        had = by_protocol.get(protocol, [])
        by_protocol[protocol] = None if port.get("port") is None or had is None else [*had, port]
    for protocol, ports in sorted((by_protocol or {"": None}).items()):
        for peer in rule.get(side) or [None]:
            part = Part(protocol)
            pods = world.selected(policy) if way == "ingress" else world.pods
            if peer and "ipBlock" in peer:
                block = peer["ipBlock"]
                if ":" in block["cidr"]:
                    continue
                part.net, part.exceptions = block["cidr"], list(block.get("except") or ())
            elif peer:
                members = world.peers(policy, peer)
                part.others = _set(made, [address_of(p) for p in members], repr((name_of(policy), peer)))
                pods = pods if way == "ingress" else members
            for port in ports or ():
                if isinstance(port["port"], str):
                    part.named.append(_named(made, [p for p in pods if not p["spec"].get("hostNetwork")], port, protocol))
                else:
                    part.ports.append(f"{port['port']}:{port['endPort']}" if "endPort" in port else str(port["port"]))
            yield part


def _id(prefix: str, text: str) -> str:
    return f"{prefix}:{base64.urlsafe_b64encode(hashlib.sha224(text.encode()).digest()).decode()[:23]}"


def _set(made: Compiled, addresses: list[str], text: str) -> str:
    name = _id("s", text)
    made.addresses[name] = sorted(set(addresses))
    return name


def _named(made: Compiled, pods: list[Object], port: Object, protocol: str) -> str:
    members = sorted({
        (address_of(pod), protocol, each["containerPort"]) for pod in pods for each in ports_of(pod)
        if each.get("name") == port["port"] and each.get("protocol", "TCP").lower() == protocol
    })  # fmt: skip
    name = _id("n", repr((port["port"], protocol, members)))
    made.named[name] = members
    return name


def limited(prefix: str, name: str, limit: int) -> str:
    """A name of a chain, shortened as Calico does."""
    if len(prefix + name) < limit or (len(prefix + name) == limit and name[0] != "_"):
        return prefix + name
    digest = base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()).decode()
    return f"{prefix}_{digest}"[:limit]


def policy_chain(name: str, way: str, form: str, limit: int) -> str:
    namespace, _, own = name.partition("/")
    old = f"{namespace}/knp.default.{own}"
    identifier = {"3.28": old, "3.31": f"default/{old}", "3.32": f"knp/{namespace}/{own}"}[form]
    return limited("cali-pi-" if way == "ingress" else "cali-po-", identifier, limit)


def policy_comment(name: str, way: str, form: str) -> str:
    namespace, _, own = name.partition("/")
    if form == "3.32":
        return f"KubernetesNetworkPolicy {name} {way}"
    return f"Policy {namespace}/knp.default.{own} {way}"


def comments_of_tier(form: str) -> tuple[str, str]:
    """The comments at the begin and at the end of a pod's policies."""
    if form == "3.28":
        return "Start of policies", "Drop if no policies passed packet"
    return "Start of tier default", "End of tier default. Drop if no policies passed packet"


def interface_of(pod: Object) -> str:
    """The node's end of a pod's link."""
    return "cali" + hashlib.sha1(name_of(pod).replace("/", ".").encode(), usedforsecurity=False).hexdigest()[:11]


def groups(world: World, pod: Object, way: str, form: str) -> list[tuple[str, list[str]]]:
    """The policies of a pod, by name, in groups with one selector: (chain of the group, "" = none; names)."""
    policies = sorted(world.policies_of(pod, way.capitalize()), key=name_of)
    found: list[tuple[str, list[str]]] = []
    last = ""
    for policy in policies:
        selector = repr(policy["spec"]["podSelector"])
        if found and form != "3.28" and selector == last:
            names = [*found[-1][1], name_of(policy)]
            prefix = "cali-gi-" if way == "ingress" else "cali-go-"
            found[-1] = limited(prefix, "_" + _id("g", repr(names)), 28).replace(":", "-"), names
        else:
            found.append(("", [name_of(policy)]))
        last = selector
    return found


def is_whole(network: str) -> bool:
    return ipaddress.ip_network(network).prefixlen == 0
