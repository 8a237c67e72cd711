# SPDX-License-Identifier: Apache-2.0
"""Marks carry a cause from one table to the next: who set the mark that a later rule acts on, and for whom.

KUBE-MARK-MASQ is jumped to for one Service; the MASQUERADE happens later, in KUBE-POSTROUTING, which names none. The packet is
what joins them. The same with KUBE-MARK-DROP and KUBE-FIREWALL, and with portmap's chains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracer.kube.catalog import ClusterView
from tracer.kube.missing_endpoints import NONE_HERE, none_here
from tracer.kube.owners import marks, owner_of
from tracer.kube.owners.kube_proxy_ipvs import asks_for_the_service
from tracer.kube.owners.kube_proxy_nftables import owner_of_element
from tracer.kube.rule_text import mark_set, mark_tested
from tracer.model.kube import Owner
from tracer.model.rule import Rule, RuleHit, RuleLocation, Ruleset
from tracer.util.frozen import evolve

EMPTY = Ruleset("", 0, "", {})


@dataclass(frozen=True)
class _Mark:
    """A mark set on the packet. chain: that of the rule which set it. owner: for whom, None when it cannot be told (yet)."""

    bits: int
    chain: str
    owner: Owner | None


class MarkTracker:
    """What one packet met so far. Give it the packet's visits in order, table by table.

    service: the one that answers at the destination it came with, None if none does.
    """

    def __init__(self, cluster: ClusterView, service: Owner | None = None) -> None:
        self._known, self._service = cluster, service
        self._marks: list[_Mark] = []
        self._met: dict[RuleLocation, Rule] = {}
        self._chosen: dict[str, Owner] = {}
        self._sure = True

    def table(self, hits: Sequence[RuleHit], ruleset: Ruleset = EMPTY) -> list[Owner | None]:
        """The owner of each visit of one walk, causes included; None for a chain's policy.

        ruleset: what the walk went through; without it, places on the way that no visit shows are known by their chains' names
        only.
        """
        # Many packets have the same walk, and with the same marks before it the same comes of it.
        memory, before = self._known.cache, (self._service, tuple(self._marks))
        owners: list[Owner | None]
        told = memory.get_trace(hits, ruleset, before, self._known.store.version)
        if told:
            owners, marks = told
            self._marks = list(marks)
            return owners
        self._sure = True
        owners = self._owners_of(hits, ruleset)
        if self._sure and ruleset is not EMPTY:
            memory.put_trace(hits, ruleset, before, (owners, tuple(self._marks)))
        return owners

    def _owners_of(self, hits: Sequence[RuleHit], ruleset: Ruleset) -> list[Owner | None]:
        owners: list[Owner | None] = []
        opened = len(self._marks)
        led: list[Owner] = []
        self._met, self._chosen = {}, {}
        for visit in hits:
            if visit.rule is None:
                owners.append(None)
                continue
            self._met[visit.location] = visit.rule
            owner = self._owner(visit, visit.rule, ruleset, led)
            if owner.kind in ("Service", "Pod"):
                led.append(owner)
                self._marks[opened:] = [m if m.owner else evolve(m, owner=owner) for m in self._marks[opened:]]
            elif self._service and asks_for_the_service(visit.rule):
                led.append(self._service)
            bits = mark_set(visit.rule)
            if bits or visit.verdict == "MARK":
                self._note(bits, visit.rule, led)
            owners.append(self._with_cause(owner, visit.rule, ruleset))
        return owners

    def _owner(self, hit: RuleHit, rule: Rule, ruleset: Ruleset, led: list[Owner]) -> Owner:
        """The rule's owner, with what the way to it tells: as what the packet came to the Service."""
        owner = self._of(rule, ruleset)
        if hit.element:
            owner = owner_of_element(hit.element, self._known) or owner
            self._chosen[hit.element.rpartition(" ")[2]] = owner
        elif owner.kind == "program":
            # A chain for all Services, such as reject-chain: the element that led here was for one.
            owner = self._chosen.get(rule.chain, owner)
        way = [self._of(r, ruleset) for r in self._places(hit.path[:-1], rule, ruleset)]
        way = [o for o in [*led, *way] if o.kind in ("Service", "Pod")]
        led += [o for o in way if o not in led]
        if owner.kind in ("Service", "Pod") and not owner.detail:
            details = (o.detail for o in way if o.label == owner.label and o.detail)
            return evolve(owner, detail=next(details, ""))
        return owner

    def _of(self, rule: Rule, ruleset: Ruleset) -> Owner:
        found = owner_of(rule, ruleset, self._known)
        self._sure = self._sure and found.known  # who is not known now may be at the next packet
        return found

    def _places(self, path: tuple[RuleLocation, ...], rule: Rule, ruleset: Ruleset) -> Iterable[Rule]:
        """The rules on the way, from the base chain down; one that is not known is a bare name."""
        for place in path:
            rules = ruleset.chain(rule.family, rule.table, place.chain)
            if 0 < place.number <= len(rules):
                yield rules[place.number - 1]
            else:
                yield self._met.get(place) or Rule(rule.family, rule.table, place.chain, place.number, "")

    def _note(self, bits: int, rule: Rule, led: list[Owner]) -> None:
        cleared = rule.chain in marks()
        if not cleared:
            self._marks.append(_Mark(bits, rule.chain, _with_door(led)))

    def _with_cause(self, owner: Owner, rule: Rule, ruleset: Ruleset) -> Owner:
        setter = marks().get(rule.chain)
        ends = rule.target.upper()
        if not setter or ends in ("RETURN", "MARK") or not (mark_tested(rule) or ends == "MASQUERADE"):
            return owner
        tested = mark_tested(rule) or _bits_of(rule, ruleset)
        for mark in reversed(self._marks):
            if mark.chain == setter or (mark.bits and mark.bits & tested):
                return evolve(owner, cause=_clause(owner, mark))
        return owner


def _with_door(led: Sequence[Owner]) -> Owner | None:
    """For whom a mark was set. The rule that says that there are no local endpoints does not say by what the packet came: those
    before it do.
    """
    last = led[-1] if led else None
    if not last or last.detail != NONE_HERE:
        return last
    door = next((o.detail for o in led if o.label == last.label and o.detail not in ("", NONE_HERE)), "")
    return evolve(last, detail=", ".join(filter(None, (door, none_here(door)))))


def _bits_of(rule: Rule, ruleset: Ruleset) -> int:
    """The bits that the rules before it in its chain look at: KUBE-POSTROUTING returns unless the mark is there."""
    before = ruleset.chain(rule.family, rule.table, rule.chain)[: rule.number - 1]
    return next((bits for bits in map(mark_tested, before) if bits), 0)


def _clause(owner: Owner, mark: _Mark) -> str:
    whom = f" for {mark.owner.label}" if mark.owner else ""
    whom += f", {mark.owner.detail}" if mark.owner and NONE_HERE in mark.owner.detail else ""
    if owner.program == "kubelet":
        return f"marked by {mark.chain}{whom}"
    bits = f" {mark.bits:#x}" if mark.bits else ""
    return f"mark{bits} set by {mark.chain}{whom}"
