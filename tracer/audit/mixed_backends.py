# SPDX-License-Identifier: Apache-2.0
"""Rules of one program in two places: legacy and nft tables, or two modes of kube-proxy. Both act; only one is maintained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tracer.audit.state import NodeState
from tracer.model.finding import Finding
from tracer.model.rule import Rule, Ruleset

CONSTANT = frozenset({"kubelet", "portmap"})
"""Programs with constant rules, independent of objects, so never out of date: KUBE-FIREWALL, which a newer kube-proxy writes as
kubelet does and `--cleanup` keeps (kubernetes pkg/proxy/iptables/proxier.go); CNI-HOSTPORT-MASQ, which portmap keeps after the
last pod is gone."""

_CLEANUP = {"kube-proxy": ": `kube-proxy --cleanup` of the version that wrote them, with the iptables of that back end"}
"""How a program removes its left rules; other programs have no command for it."""

Met = tuple[Rule, Ruleset, int]
"""(first rule of a program in one place, its ruleset, number of its rules there)."""


def check(state: NodeState) -> Iterator[Finding]:
    places: dict[tuple[str, str], dict[str, Met]] = defaultdict(dict)
    for rule, ruleset in state.rules():
        owner = state.owner(rule, ruleset)
        is_constant = owner.program in CONSTANT and owner.kind == "program"
        if owner.program and owner.kind != "administrator" and not is_constant:
            where = _place(rule, ruleset, state)
            first, of, count = places[owner.program, rule.family].get(where, (rule, ruleset, 0))
            places[owner.program, rule.family][where] = first, of, count + 1
    for (program, family), found in places.items():
        if len(found) > 1:
            yield _tell(state, program, family, found)


def _place(rule: Rule, ruleset: Ruleset, state: NodeState) -> str:
    if ruleset is state.installed.legacy:
        return "legacy tables"
    of_iptables = rule.table in ("raw", "mangle", "nat", "filter", "security")
    return "tables of iptables-nft" if of_iptables else f"the nftables table {rule.table}"


def _tell(state: NodeState, program: str, family: str, found: dict[str, Met]) -> Finding:
    counts = " and ".join(f"{count} in {where}" for where, (_, _, count) in found.items())
    return Finding(
        name="",
        key=(program, family),
        cause=(
            f"{program} has {family} rules in {len(found)} places ({counts}): the kernel goes through all of them, and those"
            f" that {program} does not keep up any more still act."
        ),
        proofs=tuple(state.proof(rule, ruleset, state.owner(rule, ruleset).text) for rule, ruleset, _ in found.values()),
        check=(
            "`iptables-legacy-save`, `iptables-nft-save` and `nft list ruleset` each show a part. Which one is kept up: restart"
            f" {program}, and see whose counters or handles are new."
        ),
        cure=f"Remove the rules that {program} has left{_CLEANUP.get(program, '')}; or drain and reboot the node.",
    )
