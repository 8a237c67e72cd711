# SPDX-License-Identifier: Apache-2.0
"""Random NetworkPolicies, labels and packets.

Left out is what a program does in another way than Kubernetes describes; docs/policies.md has the list.
"""

from __future__ import annotations

from random import Random

from tests.kernel.policies.pod_links import CLIENT, FAR, LOCAL, Sent, pods
from tests.support.policies import Object, policy
from tests.support.policy_semantics import World, name_of, types_of

APPS, TIERS = ("web", "cart", "pg"), ("front", "back")
SPACES = ("shop", "db", "ops")
NUMBERS = {"TCP": (80, 8080, 9090, 443), "UDP": (53, 5353, 8080)}
NAMES = ("allow-web", "deny-all", "p", "from-clients", "a-name-that-is-too-long-for-a-chain-of-iptables", "x.y", "only-metrics")
BLOCKS = ("10.244.0.0/16", "10.244.0.0/24", "10.244.3.0/24", "192.168.56.0/24", "0.0.0.0/0", "10.244.0.8/29", "fd00::/8")
EXCEPTIONS = {
    "10.244.0.0/16": ["10.244.0.12/32", "10.244.3.0/24"], "10.244.0.0/24": ["10.244.0.8/30", "10.244.0.14/32"],
    "0.0.0.0/0": ["10.244.0.0/24", "192.168.56.1/32"], "10.244.0.8/29": ["10.244.0.13/32"],
}  # fmt: skip


def world(dice: Random, program: str) -> World:
    """A cluster. program: "calico" or "kube-router"."""
    labels = {
        name: {**({"app": dice.choice(APPS)} if dice.random() < 0.9 else {}),
               **({"tier": dice.choice(TIERS)} if dice.random() < 0.6 else {})}
        for name in (*LOCAL, *FAR)
    }  # fmt: skip
    spaces = {
        n: {"kubernetes.io/metadata.name": n, **({"team": dice.choice("ab")} if dice.random() < 0.7 else {})} for n in SPACES
    }
    made: dict[str, Object] = {}
    for _ in range(dice.randint(1, 6)):
        name = f"{dice.choice(('shop', 'shop', 'db', 'ops'))}/{dice.choice(NAMES)}"
        made.setdefault(name, _policy(dice, name, program))
    return World(pods(labels), list(made.values()), spaces)


def _policy(dice: Random, name: str, program: str) -> Object:
    spec: Object = {}
    types = dice.choice((["Ingress"], ["Ingress"], ["Egress"], ["Ingress", "Egress"], []))
    if types:
        spec["policyTypes"] = types
    if types != ["Egress"] and dice.random() < 0.85:
        spec["ingress"] = [_rule(dice, "from", program) for _ in range(dice.randint(0, 3))]
    if (not types or "Egress" in types) and dice.random() < 0.7:
        spec["egress"] = [_rule(dice, "to", program) for _ in range(dice.randint(0, 3))]
    body = policy(name, **spec)
    body["spec"]["podSelector"] = {} if dice.random() < 0.3 else _selector(dice)
    # The API fills in the default.
    body["spec"]["policyTypes"] = types_of(body)
    return body


def _selector(dice: Random) -> Object:
    if dice.random() < 0.5:
        return {"matchLabels": {"app": dice.choice(APPS)}}
    key, values = dice.choice((("app", APPS), ("tier", TIERS)))
    operator = dice.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    some = {"values": sorted(dice.sample(values, dice.randint(1, 2)))} if operator in ("In", "NotIn") else {}
    return {"matchExpressions": [{"key": key, "operator": operator, **some}]}


def _rule(dice: Random, side: str, program: str) -> Object:
    peers = [_peer(dice) for _ in range(dice.choice((0, 1, 1, 2)))]
    if program == "kube-router":
        # It joins all networks of a rule in one set, in which an exception counts for each of them.
        with_exceptions = [p for p in peers if p.get("ipBlock", {}).get("except")]
        peers = with_exceptions[:1] or peers
    ports = [_port(dice, named=program == "calico" or side == "from") for _ in range(dice.choice((0, 1, 1, 2)))]
    return ({side: peers} if peers else {}) | ({"ports": ports} if ports else {})


def _peer(dice: Random) -> Object:
    kind = dice.choice(("pods", "pods", "spaces", "both", "block", "block"))
    if kind == "block":
        cidr = dice.choice(BLOCKS)
        cut = dice.sample(EXCEPTIONS.get(cidr, []), dice.randint(0, len(EXCEPTIONS.get(cidr, []))))
        return {"ipBlock": {"cidr": cidr, **({"except": cut} if cut else {})}}
    found: Object = {}
    if kind in ("pods", "both"):
        found["podSelector"] = {} if dice.random() < 0.2 else _selector(dice)
    if kind in ("spaces", "both"):
        found["namespaceSelector"] = dice.choice(
            ({}, {"matchLabels": {"team": "a"}}, {"matchLabels": {"kubernetes.io/metadata.name": dice.choice(SPACES)}})
        )
    return found


def _port(dice: Random, named: bool) -> Object:
    protocol = dice.choice(("TCP", "TCP", "UDP"))
    found: Object = {"protocol": protocol} if protocol == "UDP" or dice.random() < 0.5 else {}
    kind = dice.random()
    if kind < 0.1:
        return found or {"protocol": "TCP"}
    if kind < 0.35 and named:
        return found | {"port": dice.choice(("http", "metrics") if protocol == "TCP" else ("dns",))}
    if kind < 0.5:
        low = dice.choice((79, 8000, 50, 5000))
        return found | {"port": low, "endPort": low + dice.choice((1, 10, 100, 1000))}
    return found | {"port": dice.choice(NUMBERS[protocol])}


def packets(dice: Random, made: World, program: str, count: int, first_port: int) -> list[Sent]:
    """Packets of which at least one end is a pod of the node, each with its own source port."""
    local = [address for address, _ in LOCAL.values()]
    others = [address for address, _ in FAR.values()] + [CLIENT]
    found: list[Sent] = []
    while len(found) < count:
        source, to = dice.choice(local + others), dice.choice(local + others)
        protocol = dice.choice(("TCP", "TCP", "UDP"))
        if source == to or not {source, to} & set(local):
            continue
        if program == "kube-router" and _is_one_policy_at_both_ends(made, source, to):
            continue
        found.append(Sent((protocol, source, first_port + len(found), to, dice.choice(NUMBERS[protocol]))))
    return found


def _is_one_policy_at_both_ends(made: World, source: str, to: str) -> bool:
    """Whether a policy of both types selects both ends. kube-router jumps to it for packets of both directions at each pod."""
    ends = [made.at(source), made.at(to)]
    for each in made.policies:
        names = {name_of(p) for p in made.selected(each)}
        if len(types_of(each)) == 2 and all(end and name_of(end) in names for end in ends):
            return True
    return False
