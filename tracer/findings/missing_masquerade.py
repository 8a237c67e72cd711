# SPDX-License-Identifier: Apache-2.0
"""A request to a pod on another node is not masqueraded: a stale RETURN in POSTROUTING stands before MASQUERADE.

flannel excludes its own node's subnet: `RETURN !pods -> podCIDR`. A stale rule, with an earlier subnet of this node that now
belongs to another node, also excludes requests to that node. Then the answer does not come back through the tunnel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

from tracer.findings.context import FindingContext, FollowedConnection
from tracer.findings.proofs import rule_proof
from tracer.kube.fwmarks import EMPTY
from tracer.kube.owners import owner_of
from tracer.model.connection import ConnectionKey
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import Nat, RewriteHop, RuleHop, is_from_conntrack
from tracer.model.kube import Owner
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, Ruleset
from tracer.node.node_questions import FlannelSubnets
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

_TO_SUBNET = re.compile(r"! -s (\S+/\d+) -d (\S+/\d+).* -j RETURN|ip6? saddr != (\S+/\d+) ip6? daddr (\S+/\d+) .*return")

FLANNEL_SUBNETS = FlannelSubnets()
ASKS = (FLANNEL_SUBNETS,)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    key = ConnectionKey.of(packet)
    followed = context.reported.get(key)
    if followed:
        return _later_packet(packet, followed)
    rewrites = (h for h in packet.hops if isinstance(h, RewriteHop) and not h.clone and not is_from_conntrack(h))
    dnat = next((h for h in rewrites if h.nat.kind == "DNAT"), None)
    found = _first_packet(packet, dnat, context) if dnat else None
    # The answer comes to the namespace of the DNAT. If the request was tracked in another one, the answer has another key.
    if found and dnat and key.netns == dnat.netns:
        context.reported[key] = FollowedConnection(found)
    return found


def _later_packet(packet: Packet, followed: FollowedConnection) -> Finding:
    """Adds to the finding whether an answer came, from a later packet of its connection."""
    assert packet.flow
    followed.sent += not packet.flow.is_reply
    followed.back += packet.flow.is_reply
    ends = packet.flow.orig
    which = f"packets from {format_endpoint(ends.src, ends.sport)} to {format_endpoint(ends.dst, ends.dport)}"
    came = next((h.in_iface for h in packet.hops if h.in_iface), "")
    answer = f"an answer came in by {came or 'an unknown interface'}" if followed.back else "no answer was seen"
    proof = FindingEvidence("packet", f"{which}: sent {followed.sent}, {answer}", "observed")
    return replace(followed.finding, proofs=(*followed.finding.proofs, proof))


def _first_packet(packet: Packet, dnat: RewriteHop, context: FindingContext) -> Finding | None:
    # A missing masquerade cannot be concluded from an incomplete packet.
    if not packet.complete:
        return None
    after = packet.hops[packet.hops.index(dnat) + 1 :]
    if any(isinstance(h, RewriteHop) and h.nat.kind in ("MASQUERADE", "SNAT") and h.netns == dnat.netns for h in after):
        return None
    for hop in after:
        if not isinstance(hop, RuleHop) or hop.netns != dnat.netns:
            continue
        hit = _returned(hop, dnat.nat.after.dst)
        if hit:
            return _finding(packet, dnat.nat, hop, hit, context)
    return None


def subnet_of(rule: Rule) -> str:
    """Returns the destination network that a rule excludes from masquerading for non-pod sources; "" for any other rule."""
    found = _TO_SUBNET.search(rule.text)
    return (found[2] or found[4]) if found else ""


def _returned(hop: RuleHop, address: str) -> RuleHit | None:
    """Returns the hit of the rule that skipped MASQUERADE because of the packet's destination."""
    if (
        hop.hook is not Hook.POSTROUTING
        or hop.clone
        or not hop.rule_trace
        or not hop.rule_trace.decision
        or not hop.table.endswith("nat")
    ):
        return None
    for hit in hop.rule_trace.hits:
        network = subnet_of(hit.rule) if hit.rule and hit.verdict == "RETURN" else ""
        if network and ip_address(address) in ip_network(network, strict=False):
            return hit
    return None


def _finding(packet: Packet, nat: Nat, hop: RuleHop, hit: RuleHit, context: FindingContext) -> Finding | None:
    assert hit.rule and hop.rule_trace
    ends = nat.after
    kept = f"{ends.src} -> {format_endpoint(ends.dst, ends.dport)}"
    left = f"{kept} left by {hop.out_iface or 'an unknown interface'} with its source unchanged"
    shown = [
        FindingEvidence("packet", left, "observed"),
        rule_proof(hit, _owner(hit.rule, hop.rule_trace.ruleset, context).text),
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
    """Makes the finding for a RETURN rule; None if its network belongs to this node.

    Args:
        rule: The RETURN rule.
        ruleset: Its ruleset.
        keeps: What requests keep, as a phrase.
        shown: The evidence for the rule.
        context: The context of the findings.
        elsewhere: The network is known not to be on this node.
    """
    network = subnet_of(rule)
    node = context.cluster.store.this_node()
    family = ":" in network
    by_api = tuple(c for c in node.pod_cidrs if (":" in c) == family) if node else ()
    leased = value_of(context.ask(FLANNEL_SUBNETS))
    leases = tuple(c for c in leased or () if (":" in c) == family)
    if network in (*by_api, *leases):
        return None
    holder = context.cluster.store.by_pod_cidr.one(network)
    mine = by_api or leases
    proofs = [*shown, *_skipped_masquerade(rule, ruleset)]
    if by_api and node:
        proofs.append(FindingEvidence("object", f"Node {node.name} has podCIDR {', '.join(by_api)}", "Kubernetes API"))
    if leases:
        proofs.append(FindingEvidence("setting", f"flannel's lease here is {', '.join(leases)}", "/run/flannel/subnet.env"))
    if holder:
        proofs.append(FindingEvidence("object", f"{network} is the podCIDR of node {holder.name}", "Kubernetes API"))
    # If flannel's lease file was not asked for, or cannot be read, flannel may have leased the network to this node.
    is_certain = (mine and leased is not None) or elsewhere
    whose = f"node {holder.name}'s" if holder else "not this node's" if is_certain else "perhaps not this node's"
    program = _owner(rule, ruleset, context).program or "an unknown program"
    return Finding(
        name="",
        key=(rule.chain, network),
        cause=(
            f"Requests to pods in {network} keep {keeps}: a stale RETURN rule of {program} for that network, which is {whose},"
            f" stands before MASQUERADE, so the answer does not come back on the path of the request."
        ),
        proofs=tuple(proofs),
        check=(
            f"`{operator_commands.shows(rule)}` has one such RETURN for each subnet that this node has had; the"
            f" right one is {' or '.join(mine) or 'the podCIDR of this node'}."
            " On the pod's node, tcpdump shows where the answer goes."
        ),
        cure=(
            f"Delete the stale rule: `{operator_commands.deletes(rule)}`."
            " Restarting flannel does not delete it: flannel removes only the rules that it would write now."
        ),
        certain=bool(is_certain) or bool(holder and node and holder.name != node.name),
    )


def _owner(rule: Rule, ruleset: Ruleset | None, context: FindingContext) -> Owner:
    return owner_of(rule, ruleset or EMPTY, context.cluster)


def _skipped_masquerade(rule: Rule, ruleset: Ruleset | None) -> list[FindingEvidence]:
    """The evidence for the MASQUERADE after it in the same chain, which would have acted."""
    behind = masquerades_behind(rule, ruleset)
    if not behind:
        return []
    last = behind[-1]
    return [FindingEvidence("rule", f"behind it and so not reached: {last.chain} {last.number}: {last.text}", "derived")]


def masquerades_behind(rule: Rule, ruleset: Ruleset | None) -> list[Rule]:
    """Returns the MASQUERADE rules after this one in its chain."""
    rules = ruleset.chain(rule.family, rule.table, rule.chain) if ruleset else ()
    return [r for r in rules if r.number > rule.number and r.target.upper() == "MASQUERADE"]
