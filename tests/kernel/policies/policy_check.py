# SPDX-License-Identifier: Apache-2.0
"""Compares what the kernel did with a packet, what the policies say, and what the tracer says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.kernel.policies.pod_links import Sent
from tests.support.policy_semantics import Expected, World, expected, name_of
from tracer.kube.catalog import ClusterView
from tracer.kube.policies.evaluation import evaluate
from tracer.model.finding import Finding
from tracer.model.hop import DetailHop, owner_of, verdict_of
from tracer.model.kube import Owner
from tracer.model.netfilter import REFUSALS, Verdict
from tracer.model.packet import Outcome, Packet

_ALLOWED = re.compile(r"NetworkPolicy (\S+?), (ingress|egress)(?: rule (\d+))?")
BY_QUEUE = "kube-network-policies"
"""The program that decides behind a queue, and not by rules: policies are candidates, each with what it says of the packet."""
DENIED = (Outcome.DROPPED, Outcome.REJECTED)
MOST_EXAMPLES = 12


@dataclass
class Counts:
    """The counts of all sets.

    Attributes:
        packets: Packets compared.
        denied: Packets that the kernel denied.
        numbered: Rules of policies that were named with their number.
        wrong: Packets for which two of the three accounts differ.
        unknown: Packets for which the tracer says that it does not know the policy, or the packet was not seen.
        open: Denied packets of which the finding leaves open what a policy would have needed.
        evaluated: Rules of policies that the tracer evaluated from the objects.
        undecided: Those among them with the answer "not known".
        examples: The first of each.
    """

    packets: int = 0
    denied: int = 0
    numbered: int = 0
    wrong: int = 0
    unknown: int = 0
    open: int = 0
    evaluated: int = 0
    undecided: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"packets={self.packets} denied={self.denied} wrong={self.wrong} unknown={self.unknown}"

    def add(self, what: str, text: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{what}: {text}")


def check(
    world: World, program: str, each: Sent, arrived: bool, seen: Packet | None, findings: Sequence[Finding], counts: Counts
) -> None:
    """Compares one packet.

    Args:
        world: The cluster.
        program: "calico", "kube-router" or "kube-network-policies".
        each: The packet.
        arrived: Whether the kernel delivered it.
        seen: It, as the tracer shows it; None = it does not.
        findings: The tracer's findings in it.
        counts: Where the result is counted.
    """
    protocol, source, _, to, port = each.key
    wanted = expected(world, source, to, protocol, port)
    counts.packets += 1
    counts.denied += not arrived
    if arrived != all(one.is_allowed for one in wanted):
        return counts.add("wrong", f"{each.text}: the rules {'let it pass' if arrived else 'denied it'}, but {wanted}")
    if seen is None:
        return counts.add("unknown", f"{each.text}: not seen")
    if (seen.outcome in DENIED) == arrived:
        return counts.add("wrong", f"{each.text}: arrived {arrived}, but the tracer says {seen.verdict}")
    if not arrived and program == BY_QUEUE:
        return _check_queue(each, findings, wanted, counts)
    if not arrived:
        return _check_denied(world, program, each, seen, findings, wanted, counts)
    if findings:
        return counts.add("wrong", f"{each.text}: arrived, but {findings[0].name}")
    if program == BY_QUEUE:  # no rule shows which policy allowed it
        answers = [hop.detail.facts.get("verdict") for hop in seen.hops if isinstance(hop, DetailHop)]
        was_queued = any(verdict_of(hop) is Verdict.QUEUE for hop in seen.hops)
        return counts.add("wrong", f"{each.text}: answers {answers}") if was_queued and "ACCEPT" not in answers else None
    return _check_allowed(program, each, seen, wanted, counts)


def _check_denied(
    world: World, program: str, each: Sent, seen: Packet, findings: Sequence[Finding], wanted: list[Expected], counts: Counts
) -> None:
    owner = next((owner_of(hop) for hop in seen.hops if verdict_of(hop) in REFUSALS and owner_of(hop)), None)
    if not owner or not owner.known:
        return counts.add("unknown", f"{each.text}: {owner.text if owner else seen.verdict}")
    denied = [one for one in wanted if not one.is_allowed]
    names = {f"{owner.namespace}/{name}" for name in owner.name.split(",")}
    if owner.kind != "NetworkPolicy" or not any(names == _applied(world, program, one) for one in denied):
        return counts.add("wrong", f"{each.text}: {owner.text}, not {denied}")
    if not any(f"of pod {one.pod}," in owner.detail for one in denied):
        return counts.add("wrong", f"{each.text}: {owner.text}, not at {denied}")
    if [f.name for f in findings] != ["no_policy_allows"] or "it is allowed" in findings[0].cause:
        return counts.add("wrong", f"{each.text}: findings {[f.cause for f in findings]}")
    fits = [one for one in denied if f"the {one.direction.lower()} of {one.pod} is limited by" in findings[0].cause]
    proofs = [p.text for p in findings[0].proofs if p.what == "object"]
    if not fits or not all(any(f"NetworkPolicy {name}: " in text for text in proofs) for name in fits[0].policies):
        return counts.add("wrong", f"{each.text}: {findings[0].cause} {proofs}, not {denied}")
    counts.open += any("not known" in text for text in proofs)
    return None


def _check_queue(each: Sent, findings: Sequence[Finding], wanted: list[Expected], counts: Counts) -> None:
    """The finding must name all policies that limit the pods, and say that they do not allow the packet."""
    if [(f.name, f.certain) for f in findings] != [("dropped_by_queue", True)]:
        return counts.add("wrong", f"{each.text}: findings {[f.cause for f in findings]}")
    cause, proofs = findings[0].cause, [p.text for p in findings[0].proofs if p.what == "object"]
    for one in wanted:
        place = f"{one.direction.lower()} of pod {one.pod.partition('/')[2]}"
        if not all(any(text.startswith(f"NetworkPolicy {name}, {place}: ") for text in proofs) for name in one.policies):
            return counts.add("wrong", f"{each.text}: {cause} {proofs}, not {one}")
    if not re.search(r"by the objects of the API (?:does|do) not allow it\.$", cause):
        is_open = any("not known" in text for text in proofs)
        return counts.add("unknown" if is_open else "wrong", f"{each.text}: {cause}, not {wanted}")
    return None


def check_evaluation(world: World, each: Sent, cluster: ClusterView, counts: Counts) -> None:
    """Compares the tracer's evaluation of the API's policies with the plain one; its third answer is counted."""
    protocol, source, _, to, port = each.key
    for one in expected(world, source, to, protocol, port):
        (pod,) = cluster.store.pods.all((one.pod.partition("/")[0], one.pod.partition("/")[2]))
        answer = evaluate(one.direction.lower(), pod, source, to, protocol.lower(), port, cluster)
        rules = {
            (f"{policy.policy.namespace}/{policy.policy.name}", rule.number): rule.allows
            for policy in answer.policies for rule in policy.rules
        }  # fmt: skip
        counts.evaluated += len(rules)
        undecided = {place for place, allows in rules.items() if allows is None}
        counts.undecided += len(undecided)
        names = {name for name, _ in rules} | {f"{p.policy.namespace}/{p.policy.name}" for p in answer.policies}
        if {place for place, allows in rules.items() if allows} != set(one.rules) - undecided or names != set(one.policies):
            counts.add("wrong", f"{each.text}: evaluated as {answer}, not {one}")


def _applied(world: World, program: str, one: Expected) -> set[str]:
    """The policies that a pod's chain asks: in kube-router's those of both directions."""
    if program == "calico":
        return set(one.policies)
    pod = next(p for p in world.pods if name_of(p) == one.pod)
    return {name_of(p) for way in ("Ingress", "Egress") for p in world.policies_of(pod, way)}


def _check_allowed(program: str, each: Sent, seen: Packet, wanted: list[Expected], counts: Counts) -> None:
    owners: list[Owner] = [owner for hop in seen.hops for owner in [owner_of(hop)] if owner and "allowed by" in owner.cause]
    named = [found for owner in owners for found in _ALLOWED.findall(owner.cause)]
    for one in wanted:
        way = one.direction.lower()
        mine = [(name, number) for name, of, number in named if of == way]
        if not one.policies:
            continue
        if not mine:
            counts.add("unknown", f"{each.text}: no policy is named, {one}")
            return None
        allowed = {name for name, _ in one.rules}
        for name, number in mine:
            if name not in allowed or (number and (name, int(number)) not in one.rules):
                return counts.add("wrong", f"{each.text}: allowed by {name} {way} {number}, not {one}")
            counts.numbered += bool(number)
    for name, way, _ in named:
        if not any(way == one.direction.lower() and name in one.policies for one in wanted):
            return counts.add("wrong", f"{each.text}: allowed by {name} {way}, which selects neither end")
    return None
