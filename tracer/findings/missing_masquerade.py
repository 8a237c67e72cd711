"""A request from the node to a pod elsewhere keeps the node's address: a stale RETURN in POSTROUTING stands before MASQUERADE.

flannel leaves out its own node's subnet: `RETURN !pods -> podCIDR`. A rule of an earlier life of the node, with a subnet that
is another node's now, does the same to requests for that node; the answer then does not come back through the tunnel.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network

from tracer.findings.context import Context
from tracer.findings.model import Finding, Proof, rule_proof
from tracer.model import Hop, Nat, Packet
from tracer.rules.model import Visit, Walk

_TO_SUBNET = re.compile(r"! -s (\S+/\d+) -d (\S+/\d+).* -j RETURN|ip6? saddr != (\S+/\d+) ip6? daddr (\S+/\d+) .*return")


def find(packet: Packet, context: Context) -> Finding | None:
    dnat = next((h for h in packet.hops if h.nat and h.nat.kind == "DNAT" and not h.clone and not h.from_conntrack), None)
    # That it was not masqueraded is an absence: of a packet that lost a part nothing is concluded.
    if not dnat or not dnat.nat or not packet.complete:
        return None
    after = packet.hops[packet.hops.index(dnat) + 1 :]
    if any(h.nat and h.nat.kind in ("MASQUERADE", "SNAT") and h.netns == dnat.netns for h in after):
        return None
    for hop in after:
        returned = _returned(hop, dnat.nat.after.dst) if hop.netns == dnat.netns else None
        if returned and hop.walk:
            visit, network = returned
            return _tell(packet, dnat.nat, hop, hop.walk, visit, network, context)
    return None


def _returned(hop: Hop, address: str) -> tuple[Visit, str] | None:
    """The rule that sent the packet past MASQUERADE because of its destination, and the network that rule is for."""
    if hop.hook != "POSTROUTING" or hop.clone or not hop.walk or not hop.walk.decision or not hop.table.endswith("nat"):
        return None
    for visit in hop.walk.visits:
        if not visit.rule:
            continue
        found = _TO_SUBNET.search(visit.rule.text) if visit.verdict == "RETURN" else None
        network = (found[2] or found[4]) if found else ""
        if network and ip_address(address) in ip_network(network, strict=False):
            return visit, network
    return None


def _tell(
    packet: Packet, nat: Nat, hop: Hop, walk: Walk, visit: Visit, network: str, context: Context
) -> Finding | None:  # fmt: skip
    node = context.known.store.this_node()
    family = ":" in network
    by_api = tuple(c for c in node.pod_cidrs if (":" in c) == family) if node else ()
    leases = tuple(c for c in context.node.flannel_subnets() if (":" in c) == family)
    if network in (*by_api, *leases):
        return None
    assert visit.rule
    owner = context.owner(visit.rule, walk)
    holder = context.known.store.by_pod_cidr.one(network)
    mine = by_api or leases
    ends = nat.after
    kept = f"{ends.src} -> {ends.dst}:{ends.dport}"
    proofs = [
        Proof(
            "packet",
            f"{kept} left by {hop.out_iface or 'an unknown interface'} with its source unchanged: {packet.verdict}",
            "observed",
        ),
        rule_proof(visit, owner.text),
        *_instead(visit, walk),
    ]
    if by_api and node:
        proofs.append(Proof("object", f"Node {node.name} has podCIDR {', '.join(by_api)}", "Kubernetes API"))
    if leases:
        proofs.append(Proof("setting", f"flannel's lease here is {', '.join(leases)}", "/run/flannel/subnet.env"))
    if holder:
        proofs.append(Proof("object", f"{network} is the podCIDR of node {holder.name}", "Kubernetes API"))
    whose = f"node {holder.name}'s" if holder else "not this node's" if mine else "perhaps not this node's"
    delete = f"iptables -t nat -D {visit.rule.chain} {visit.rule.text}" if visit.rule.text.startswith(("!", "-")) else (
        f"nft delete rule {visit.rule.family} nat {visit.rule.chain} handle {visit.rule.handle}"
    )  # fmt: skip
    return Finding(
        name="",
        key=(visit.rule.chain, network),
        cause=(
            f"Requests to pods in {network} keep the source address {ends.src}: a stale RETURN rule of"
            f" {owner.program or 'an unknown program'}"
            f" for that network, which is {whose}, stands before MASQUERADE, so the answer does not come back the way"
            f" of the request."
        ),
        proofs=tuple(proofs),
        check=(
            f"iptables -t nat -S POSTROUTING has one such RETURN for each subnet that this node has had; the right one is"
            f" {' or '.join(mine) or 'the podCIDR of this node'}. On the pod's node, tcpdump shows where the answer goes."
        ),
        cure=(f"Delete the stale rule: {delete}. Restarting flannel alone does not: it only removes what it would write now."),
        certain=bool(mine) or bool(holder and node and holder.name != node.name),
    )


def _instead(visit: Visit, walk: Walk) -> list[Proof]:
    """The MASQUERADE behind it in the same chain, which would have acted."""
    assert visit.rule
    rules = walk.ruleset.chain(visit.rule.family, visit.rule.table, visit.rule.chain) if walk.ruleset else ()
    behind = [r for r in rules if r.number > visit.rule.number and r.target == "MASQUERADE"]
    if not behind:
        return []
    last = behind[-1]
    return [Proof("rule", f"behind it and so not reached: {last.chain} {last.number}: {last.text}", "derived")]
