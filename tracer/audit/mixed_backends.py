# SPDX-License-Identifier: Apache-2.0
"""Rules of one program in two places: legacy and nft tables, or two modes of kube-proxy. Both act, and only one is kept up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tracer.audit.state import State
from tracer.findings.model import Finding
from tracer.rules.model import Rule, Ruleset

FIREWALL = "KUBE-FIREWALL"
"""A chain of the filter table with the same rules whoever writes it: kubelet, or a newer kube-proxy, which leaves the chain and
the jumps to it in force at `--cleanup` (kubernetes pkg/proxy/iptables/proxier.go). It is never out of date."""

Met = tuple[Rule, Ruleset, int]
"""A program's first rule in one place, the ruleset, and how many it has there."""


def check(state: State) -> Iterator[Finding]:
    places: dict[tuple[str, str], dict[str, Met]] = defaultdict(dict)
    for rule, ruleset in state.rules():
        if rule.table == "filter" and FIREWALL in (rule.chain, rule.target):
            continue
        owner = state.owner(rule, ruleset)
        if owner.program and owner.kind != "administrator":
            where = _place(rule, ruleset, state)
            first, of, count = places[owner.program, rule.family].get(where, (rule, ruleset, 0))
            places[owner.program, rule.family][where] = first, of, count + 1
    for (program, family), found in places.items():
        if len(found) > 1:
            yield _tell(state, program, family, found)


def _place(rule: Rule, ruleset: Ruleset, state: State) -> str:
    if ruleset is state.installed.legacy:
        return "legacy tables"
    of_iptables = rule.table in ("raw", "mangle", "nat", "filter", "security")
    return "tables of iptables-nft" if of_iptables else f"the nftables table {rule.table}"


def _tell(state: State, program: str, family: str, found: dict[str, Met]) -> Finding:
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
        cure=(
            f"Remove the rules that {program} has left: for kube-proxy's, `kube-proxy --cleanup` of the version that wrote"
            f" them, with the iptables of that back end; or drain and reboot the node."
        ),
    )
