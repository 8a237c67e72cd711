# SPDX-License-Identifier: Apache-2.0
"""Follows packet marks from table to table, to find which rule set the mark that a later rule tests, and for which owner.

A rule of one Service jumps to KUBE-MARK-MASQ. The MASQUERADE happens later in KUBE-POSTROUTING, which names no Service. The
mark of the packet connects both. KUBE-MARK-DROP and KUBE-FIREWALL, and portmap's chains, work in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracer.kube.catalog import ClusterView
from tracer.kube.missing_endpoints import NONE_HERE, none_here
from tracer.kube.owners import marks, owner_of, policy_mark, policy_marks
from tracer.kube.owners.kube_proxy_ipvs import asks_for_the_service
from tracer.kube.owners.kube_proxy_nftables import owner_of_element
from tracer.kube.rule_text import mark_set, mark_tested
from tracer.model.kube import Owner
from tracer.model.rule import Rule, RuleHit, RuleLocation, Ruleset
from tracer.util.frozen import evolve

EMPTY = Ruleset("", 0, "", {})


@dataclass(frozen=True)
class _Mark:
    """A mark set on the packet.

    Attributes:
        chain: The chain of the rule that set it.
        owner: The owner for which it was set; None = not known (yet).
    """

    bits: int
    chain: str
    owner: Owner | None


class MarkTracker:
    """Tracks the marks of one packet. It needs the packet's rule hits in order, table by table."""

    def __init__(self, cluster: ClusterView, service: Owner | None = None) -> None:
        self._cluster, self._service = cluster, service
        self._marks: list[_Mark] = []
        self._seen_rules: dict[RuleLocation, Rule] = {}
        self._chosen: dict[str, Owner] = {}
        self._allowed: dict[Owner, int] = {}
        self._is_final = True

    def table(self, hits: Sequence[RuleHit], ruleset: Ruleset = EMPTY) -> list[Owner | None]:
        """Returns the owner of each hit of one rule trace, with causes; None for a chain's policy.

        Args:
            hits: The hits of the rule trace.
            ruleset: Its ruleset. Without it, rules on the path without a hit are known only by their chains' names.
        """
        # Many packets have the same rule trace. With the same marks before it, the result is the same.
        cache, before = self._cluster.cache, (self._service, tuple(self._marks))
        owners: list[Owner | None]
        cached = cache.get_trace(hits, ruleset, before, self._cluster.store.version)
        if cached:
            owners, marks = cached
            self._marks = list(marks)
            return owners
        self._is_final = True
        owners = self._owners_of(hits, ruleset)
        if self._is_final and ruleset is not EMPTY:
            cache.put_trace(hits, ruleset, before, (owners, tuple(self._marks)))
        return owners

    def _owners_of(self, hits: Sequence[RuleHit], ruleset: Ruleset) -> list[Owner | None]:
        owners: list[Owner | None] = []
        opened = len(self._marks)
        led: list[Owner] = []
        self._seen_rules, self._chosen, self._allowed = {}, {}, {}
        for hit in hits:
            if hit.rule is None:
                owners.append(None)
                continue
            self._seen_rules[hit.location] = hit.rule
            owner = self._owner(hit, hit.rule, ruleset, led)
            if owner.kind in ("Service", "Pod"):
                led.append(owner)
                self._marks[opened:] = [m if m.owner else evolve(m, owner=owner) for m in self._marks[opened:]]
            elif self._service and asks_for_the_service(hit.rule):
                led.append(self._service)
            bits = mark_set(hit.rule)
            accepted = policy_mark(hit.rule, ruleset, owner, bits) if bits else 0
            if accepted:
                self._allowed[owner] = accepted
            if bits or hit.verdict == "MARK":
                self._add_mark(bits, hit.rule, led)
            owners.append(self._with_cause(owner, hit.rule, ruleset))
        return owners

    def _owner(self, hit: RuleHit, rule: Rule, ruleset: Ruleset, led: list[Owner]) -> Owner:
        """Returns the rule's owner. The path to the rule adds how the packet addressed the Service."""
        owner = self._of(rule, ruleset)
        if hit.element:
            owner = owner_of_element(hit.element, self._cluster) or owner
            self._chosen[hit.element.rpartition(" ")[2]] = owner
        elif owner.kind == "program":
            # A chain for all Services, such as reject-chain: the element that led here is for one Service.
            owner = self._chosen.get(rule.chain, owner)
        way = [self._of(r, ruleset) for r in self._places(hit.path[:-1], rule, ruleset)]
        way = [o for o in [*led, *way] if o.kind in ("Service", "Pod")]
        led += [o for o in way if o not in led]
        if owner.kind in ("Service", "Pod") and not owner.detail:
            details = (o.detail for o in way if o.label == owner.label and o.detail)
            return evolve(owner, detail=next(details, ""))
        return owner

    def _of(self, rule: Rule, ruleset: Ruleset) -> Owner:
        found = owner_of(rule, ruleset, self._cluster)
        self._is_final = self._is_final and found.known  # an unknown owner may be known for the next packet
        return found

    def _places(self, path: tuple[RuleLocation, ...], rule: Rule, ruleset: Ruleset) -> Iterable[Rule]:
        """Yields the rules on the path, from the base chain down. An unknown rule has only its chain and number."""
        for place in path:
            rules = ruleset.chain(rule.family, rule.table, place.chain)
            if 0 < place.number <= len(rules):
                yield rules[place.number - 1]
            else:
                yield self._seen_rules.get(place) or Rule(rule.family, rule.table, place.chain, place.number, "")

    def _add_mark(self, bits: int, rule: Rule, led: list[Owner]) -> None:
        cleared = rule.chain in marks()
        if not cleared:
            self._marks.append(_Mark(bits, rule.chain, _with_entry_point(led)))

    def _with_cause(self, owner: Owner, rule: Rule, ruleset: Ruleset) -> Owner:
        setter = marks().get(rule.chain)
        ends = rule.target.upper()
        if not setter and ends == "ACCEPT" and owner.kind == "program" and self._allowed:
            tested = mark_tested(rule)
            bits = policy_marks().get((owner.program, tested), tested)
            names = [of.text for of, mark in self._allowed.items() if mark & bits and of.program == owner.program]
            return evolve(owner, cause=f"allowed by {' and '.join(names)}") if names else owner
        if not setter or ends in ("RETURN", "MARK") or not (mark_tested(rule) or ends == "MASQUERADE"):
            return owner
        tested = mark_tested(rule) or _bits_of(rule, ruleset)
        for mark in reversed(self._marks):
            if mark.chain == setter or (mark.bits and mark.bits & tested):
                return evolve(owner, cause=_clause(owner, mark))
        return owner


def _with_entry_point(led: Sequence[Owner]) -> Owner | None:
    """Returns the owner for which a mark was set.

    The rule for missing local endpoints does not show how the packet addressed the Service; the rules before it do.
    """
    last = led[-1] if led else None
    if not last or last.detail != NONE_HERE:
        return last
    entry_point = next((o.detail for o in led if o.label == last.label and o.detail not in ("", NONE_HERE)), "")
    return evolve(last, detail=", ".join(filter(None, (entry_point, none_here(entry_point)))))


def _bits_of(rule: Rule, ruleset: Ruleset) -> int:
    """Returns the mark bits that earlier rules of its chain test: KUBE-POSTROUTING returns if the mark is not set."""
    before = ruleset.chain(rule.family, rule.table, rule.chain)[: rule.number - 1]
    return next((bits for bits in map(mark_tested, before) if bits), 0)


def _clause(owner: Owner, mark: _Mark) -> str:
    whom = f" for {mark.owner.label}" if mark.owner else ""
    whom += f", {mark.owner.detail}" if mark.owner and NONE_HERE in mark.owner.detail else ""
    if owner.program == "kubelet":
        return f"marked by {mark.chain}{whom}"
    bits = f" {mark.bits:#x}" if mark.bits else ""
    return f"mark{bits} set by {mark.chain}{whom}"
