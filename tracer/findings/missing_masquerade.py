# SPDX-License-Identifier: Apache-2.0
"""A request from the node to a pod elsewhere keeps the node's address: a stale RETURN in POSTROUTING stands before MASQUERADE.

flannel leaves out its own node's subnet: `RETURN !pods -> podCIDR`. A rule of an earlier life of the node, with a subnet that
is another node's now, does the same to requests for that node; the answer then does not come back through the tunnel.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

from tracer.findings.context import FindingContext
from tracer.findings.proofs import rule_proof
from tracer.kube.fwmarks import EMPTY
from tracer.kube.owners import owner_of
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.kube import Owner
from tracer.model.packet import Hop, Nat, Packet
from tracer.model.rule import Rule, RuleHit, Ruleset
from tracer.rules import operator_commands
from tracer.util.asking import answered
from tracer.util.endpoint_format import format_endpoint

_TO_SUBNET = re.compile(r"! -s (\S+/\d+) -d (\S+/\d+).* -j RETURN|ip6? saddr != (\S+/\d+) ip6? daddr (\S+/\d+) .*return")

MOST = 1000
"""So many connections are followed."""


def find(packet: Packet, context: FindingContext) -> Finding | None:
    connection = ("unmasqueraded", packet.flow.orig) if packet.flow else None
    if connection in context.told:
        return _again(packet, connection, context)
    found = _first(packet, context)
    if found and connection and len(context.told) < MOST:
        context.told[connection] = found
    return found


def _again(packet: Packet, connection: Hashable, context: FindingContext) -> Finding:
    """A later packet of such a connection: whether an answer came."""
    assert packet.flow
    told = context.told[connection]
    context.counts[connection, packet.flow.is_reply] += 1
    sent, back = context.counts[connection, False] + 1, context.counts[connection, True]
    ends = packet.flow.orig
    which = f"packets from {format_endpoint(ends.src, ends.sport)} to {format_endpoint(ends.dst, ends.dport)}"
    came = next((h.in_iface for h in packet.hops if h.in_iface), "")
    answer = f"an answer came in by {came or 'an unknown interface'}" if back else "no answer was seen"
    return replace(told, proofs=(*told.proofs, FindingEvidence("packet", f"{which}: sent {sent}, {answer}", "observed")))


def _first(packet: Packet, context: FindingContext) -> Finding | None:
    dnat = next((h for h in packet.hops if h.nat and h.nat.kind == "DNAT" and not h.clone and not h.from_conntrack), None)
    # That it was not masqueraded is an absence: of a packet that lost a part nothing is concluded.
    if not dnat or not dnat.nat or not packet.complete:
        return None
    after = packet.hops[packet.hops.index(dnat) + 1 :]
    if any(h.nat and h.nat.kind in ("MASQUERADE", "SNAT") and h.netns == dnat.netns for h in after):
        return None
    for hop in after:
        visit = _returned(hop, dnat.nat.after.dst) if hop.netns == dnat.netns else None
        if visit:
            return _tell(packet, dnat.nat, hop, visit, context)
    return None


def subnet_of(rule: Rule) -> str:
    """The network that a rule leaves out from masquerading what comes from no pod; "" for any other rule."""
    found = _TO_SUBNET.search(rule.text)
    return (found[2] or found[4]) if found else ""


def _returned(hop: Hop, address: str) -> RuleHit | None:
    """The visit of the rule that sent the packet past MASQUERADE because of its destination."""
    if (
        hop.hook != "POSTROUTING"
        or hop.clone
        or not hop.rule_trace
        or not hop.rule_trace.decision
        or not hop.table.endswith("nat")
    ):
        return None
    for visit in hop.rule_trace.hits:
        network = subnet_of(visit.rule) if visit.rule and visit.verdict == "RETURN" else ""
        if network and ip_address(address) in ip_network(network, strict=False):
            return visit
    return None


def _tell(packet: Packet, nat: Nat, hop: Hop, hit: RuleHit, context: FindingContext) -> Finding | None:
    assert hit.rule and hop.rule_trace
    ends = nat.after
    kept = f"{ends.src} -> {format_endpoint(ends.dst, ends.dport)}"
    left = f"{kept} left by {hop.out_iface or 'an unknown interface'} with its source unchanged"
    shown = [
        FindingEvidence("packet", left, "observed"),
        rule_proof(hit, _whose(hit.rule, hop.rule_trace.ruleset, context).text),
    ]
    return conflict(hit.rule, hop.rule_trace.ruleset, f"the source address {ends.src}", shown, context)


def conflict(
    rule: Rule,
    ruleset: Ruleset | None,
    keeps: str,
    shown: Sequence[FindingEvidence],
    context: FindingContext,
    elsewhere: bool = False,
) -> Finding | None:
    """That this RETURN is for a network that is not this node's; None when it is.

    keeps: what requests keep. shown: the rule, as it was found. elsewhere: it is known that the network is not here.
    """
    network = subnet_of(rule)
    node = context.cluster.store.this_node()
    family = ":" in network
    by_api = tuple(c for c in node.pod_cidrs if (":" in c) == family) if node else ()
    leased = answered(context.node.flannel_subnets, None)
    leases = tuple(c for c in leased or () if (":" in c) == family)
    if network in (*by_api, *leases):
        return None
    holder = context.cluster.store.by_pod_cidr.one(network)
    mine = by_api or leases
    proofs = [*shown, *_instead(rule, ruleset)]
    if by_api and node:
        proofs.append(FindingEvidence("object", f"Node {node.name} has podCIDR {', '.join(by_api)}", "Kubernetes API"))
    if leases:
        proofs.append(FindingEvidence("setting", f"flannel's lease here is {', '.join(leases)}", "/run/flannel/subnet.env"))
    if holder:
        proofs.append(FindingEvidence("object", f"{network} is the podCIDR of node {holder.name}", "Kubernetes API"))
    # Without flannel's own word on this node the network may be one that it has leased here.
    known = (mine and leased is not None) or elsewhere
    whose = f"node {holder.name}'s" if holder else "not this node's" if known else "perhaps not this node's"
    program = _whose(rule, ruleset, context).program or "an unknown program"
    return Finding(
        name="",
        key=(rule.chain, network),
        cause=(
            f"Requests to pods in {network} keep {keeps}: a stale RETURN rule of {program} for that network, which is {whose},"
            f" stands before MASQUERADE, so the answer does not come back the way of the request."
        ),
        proofs=tuple(proofs),
        check=(
            f"`{operator_commands.shows(rule)}` has one such RETURN for each subnet that this node has had; the"
            f" right one is {' or '.join(mine) or 'the podCIDR of this node'}."
            " On the pod's node, tcpdump shows where the answer goes."
        ),
        cure=(
            f"Delete the stale rule: `{operator_commands.deletes(rule)}`."
            " Restarting flannel alone does not: it only removes what it would write now."
        ),
        certain=bool(known) or bool(holder and node and holder.name != node.name),
    )


def _whose(rule: Rule, ruleset: Ruleset | None, context: FindingContext) -> Owner:
    return owner_of(rule, ruleset or EMPTY, context.cluster)


def _instead(rule: Rule, ruleset: Ruleset | None) -> list[FindingEvidence]:
    """The MASQUERADE behind it in the same chain, which would have acted."""
    behind = masquerades_behind(rule, ruleset)
    if not behind:
        return []
    last = behind[-1]
    return [FindingEvidence("rule", f"behind it and so not reached: {last.chain} {last.number}: {last.text}", "derived")]


def masquerades_behind(rule: Rule, ruleset: Ruleset | None) -> list[Rule]:
    """The rules behind this one in its chain that masquerade."""
    rules = ruleset.chain(rule.family, rule.table, rule.chain) if ruleset else ()
    return [r for r in rules if r.number > rule.number and r.target.upper() == "MASQUERADE"]
