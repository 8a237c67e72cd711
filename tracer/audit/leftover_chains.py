# SPDX-License-Identifier: Apache-2.0
"""Chains and rules that are not needed any more, or exist twice, left by a program that was removed or interrupted.

Chains that no rule leads to do no harm, so they are only reported. A reachable chain of a hostPort, of a pod that is gone,
takes the port forever. Of two equal jumps, or of the hostPorts of two pods, the second one never acts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tracer.audit import _needs, _traffic
from tracer.audit._ports import PortClaim, host_ports
from tracer.audit.state import NodeState
from tracer.findings.hostport_takes_service import host_ports as host_ports_of
from tracer.kube.chain_names import IPTABLES_CHAIN
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.rule import Rule, Ruleset
from tracer.rules import operator_commands

_OF_ALL = frozenset({"KUBE-NODEPORTS", "KUBE-NODE-PORT", "KUBE-EXTERNAL-SERVICES", "CNI-HOSTPORT-DNAT"})
"""Chains with a rule for each Service or pod. (`kube-proxy --cleanup` keeps KUBE-MARK-MASQ, for other programs may use it.)"""
_OF_PODS = re.compile(r"CNI-[0-9a-f]{24}|CNI-(?:DN|SN)-[0-9a-f]{21}")
NAMED = 5
"""Most chains that are named."""
REMOVED = 40
"""Most chains for which the commands that remove them are printed."""

NEEDS = (_needs.pods,)


def check(state: NodeState) -> Iterator[Finding]:
    yield from _unreached(state)
    yield from _repeated(state)
    claims: dict[tuple[int, str, str], list[PortClaim]] = defaultdict(list)
    for host in host_ports(state):
        yield from _of_missing_pod(state, host)
        claims[host.port, host.protocol, host.address].append(host)
    for same in claims.values():
        if len({c.target for c in same}) > 1:
            yield _twice_claimed(state, same)


def _unreached(state: NodeState) -> Iterator[Finding]:
    """Chains that cannot be reached from a base chain, over any number of jumps."""
    for ruleset in state.installed.rulesets:
        reached = state.reach(ruleset).chains
        found = [rules[0] for key, rules in ruleset.chains.items() if rules and key not in reached and _of_an_object(key[2])]
        if found:
            yield _leftover(state, found, ruleset)


def _of_an_object(chain: str) -> bool:
    return bool(IPTABLES_CHAIN.fullmatch(chain) or _OF_PODS.fullmatch(chain)) or chain in _OF_ALL


def _leftover(state: NodeState, found: list[Rule], ruleset: Ruleset) -> Finding:
    names = ", ".join(r.chain for r in found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    plural = len(found) > 1
    return Finding(
        name="",
        key=("unreached", ruleset.backend),
        cause=(
            f"{len(found)} chain{'s' * plural} of Services or pods {'are' if plural else 'is'} left that cannot be reached"
            f" from a base chain: perhaps the objects they were for are gone. No packet meets them."
        ),
        proofs=(
            *(state.proof(r, ruleset, state.owner(r, ruleset).text) for r in found[:NAMED]),
            FindingEvidence("rule", f"no rule that a packet meets jumps to {names}", state.installed.source(found[0], ruleset)),
        ),
        check=(
            f"`{operator_commands.saves(found[0])} | grep -e {found[0].chain}`: a '-j' to it stands in no chain but such as"
            " these, if at all."
        ),
        cure=(
            "kube-proxy removes its own when it next writes all its rules, at the latest when it is restarted; what another"
            f" version or another mode has written stays. {_removal(state, found, ruleset)}"
        ),
        certain=False,
    )


def _removal(state: NodeState, found: list[Rule], ruleset: Ruleset) -> str:
    """How to remove such chains: together with unreachable ones that jump to them, for a chain in use cannot be removed."""
    reached = state.reach(ruleset).chains
    tables: dict[tuple[str, str], list[str]] = defaultdict(list)
    for rule in found:
        tables[rule.family, rule.table].append(rule.chain)
    for (family, table), names in tables.items():
        others = {key[2]: {r.target for r in rules} for key, rules in ruleset.chains.items()
                  if key[:2] == (family, table) and key not in reached}  # fmt: skip
        while more := [name for name, targets in others.items() if name not in names and targets.intersection(names)]:
            names += more
    if sum(map(len, tables.values())) > REMOVED:
        return "To remove them, drain and reboot the node."
    removals = (
        operator_commands.removes_chains(*key, names, legacy=ruleset.backend == "legacy") for key, names in tables.items()
    )
    return f"To remove them: {', '.join(f'`{each}`' for each in removals)}; or drain and reboot the node."


def _repeated(state: NodeState) -> Iterator[Finding]:
    """The same jump twice in one base chain, written by two programs or by two versions of one."""
    for rule, ruleset in state.rules("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"):
        chain = ruleset.chain(rule.family, rule.table, rule.chain)
        first = next(r for r in chain if r.text == rule.text)
        if first is rule or not rule.target or not rule.target.startswith(("KUBE-", "CNI-", "FLANNEL-", "cali-")):
            continue
        yield Finding(
            name="",
            key=("twice", rule.family, rule.table, rule.chain, rule.text),
            cause=(
                f"Rule {rule.number} of {rule.chain} ({rule.family} {rule.table}) is the same as rule {first.number}: its"
                f" target is traversed twice, and a program has added it without a check."
            ),
            proofs=(state.proof(first, ruleset), state.proof(rule, ruleset)),
            check="Two programs, or two versions of iptables, may write them: `iptables -V` on the node and in its pods.",
            cure=f"`{operator_commands.deletes_by_position(rule)}`",
        )


def _of_missing_pod(state: NodeState, host: PortClaim) -> Iterator[Finding]:
    """A hostPort of a container that libcni no longer knows, at an address that no pod has."""
    sandboxes, store = state.cluster.sandboxes, state.cluster.store
    is_known = host.owner.kind == "Pod" or sandboxes.at(host.target) or not host.target
    if is_known or not store.pods or store.by_pod_ip.all(host.target) or not store.this_node():
        return
    goes = _goes_to(state, host)
    if goes is False:
        return
    yield Finding(
        name="",
        key=("hostPort of nobody", host.port, host.protocol, host.target),
        cause=(
            f"portmap's rule for hostPort {host.port} leads to {host.target}, and no pod has that address: it was left by a pod"
            f" that is gone, and every request to {host.protocol} {host.port} is lost."
        ),
        proofs=(
            host.shown,
            FindingEvidence("object", f"no pod has the address {host.target}", "Kubernetes API"),
            FindingEvidence("object", f"no container has the address {host.target}", "CNI result cache"),
        ),
        check="The container's id is in the rule's comment: `crictl pods` does not list it.",
        cure=f"Remove the rule{_deletes([host])}, or restart the node.",
        certain=goes is True,
    )


def _goes_to(state: NodeState, host: PortClaim) -> bool | None:
    """Whether every request to the hostPort goes to its pod's address; None = only some do, or not known."""
    v6 = bool(host.rule and host.rule.family == "ip6")
    traffic = _traffic.at_port(state, host.port, host.protocol, host.address, v6)
    found = {w.target == host.target for w in _traffic.all_paths(traffic)}
    return next(iter(found)) if len(found) == 1 else None


def _deletes(claims: list[PortClaim]) -> str:
    """The commands that delete the rules of the claims, after a colon."""
    found = [f"`{operator_commands.deletes(c.rule)}`" for c in claims if c.rule]
    return f": {', '.join(found)}" if found else ""


def _twice_claimed(state: NodeState, same: list[PortClaim]) -> Finding:
    winners = [c for c in same if _goes_to(state, c)]
    first = winners[0] if winners else same[0]
    others = [c for c in same if c is not first]
    fate = (
        f"that of one takes every request, to {first.target}, and the others get none" if winners
        else "perhaps not all of them get requests, for which rule takes them cannot be computed"
    )  # fmt: skip
    return Finding(
        name="",
        key=("hostPort twice", first.port, first.protocol, first.address),
        cause=(f"hostPort {first.port} ({first.protocol}) has rules for {len(same)} containers: {fate}."),
        proofs=tuple(c.shown for c in same),
        check=(
            f"`{host_ports_of(first.port)}` shows the pods that have the hostPort; `crictl pods`, which containers are there."
        ),
        cure=f"If a container is gone, remove its rule{_deletes(others)}.",
        certain=bool(winners),
    )
