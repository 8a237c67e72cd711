"""Chains and rules that nobody needs any more, or that are there twice: what a program left when it went, or was interrupted.

Chains that no rule leads to do no harm, so they are only said to be there. A hostPort's chain that is led to, for a pod that
is gone, takes the port for ever; and of two equal jumps, or of two pods' hostPorts, the second never acts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tracer.audit.ports import Claim, host_ports
from tracer.audit.state import State
from tracer.findings.model import Finding, Proof
from tracer.kube.names import IPTABLES_CHAIN
from tracer.rules import commands
from tracer.rules.model import Rule, Ruleset

_OF_PODS = re.compile(r"CNI-[0-9a-f]{24}|CNI-(?:DN|SN)-[0-9a-f]{21}")
NAMED = 5
"""So many chains are named."""


def check(state: State) -> Iterator[Finding]:
    yield from _unreached(state)
    yield from _repeated(state)
    claims: dict[tuple[int, str, str], list[Claim]] = defaultdict(list)
    for host in host_ports(state):
        yield from _of_nobody(state, host)
        claims[host.port, host.protocol, host.address].append(host)
    for same in claims.values():
        if len({c.target for c in same}) > 1:
            yield _twice_claimed(same)


def _unreached(state: State) -> Iterator[Finding]:
    for ruleset in state.installed.rulesets:
        targets: dict[tuple[str, str], set[str]] = defaultdict(set)
        for (family, table, _), rules in ruleset.chains.items():
            targets[family, table].update(r.target for r in rules)
        found = [
            rules[0]
            for (family, table, chain), rules in ruleset.chains.items()
            if rules and chain not in targets[family, table] and (IPTABLES_CHAIN.fullmatch(chain) or _OF_PODS.fullmatch(chain))
        ]
        if found:
            yield _leftover(state, found, ruleset)


def _leftover(state: State, found: list[Rule], ruleset: Ruleset) -> Finding:
    names = ", ".join(r.chain for r in found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    plural = len(found) > 1
    return Finding(
        name="",
        key=("unreached", ruleset.backend),
        cause=(
            f"{len(found)} chain{'s' * plural} of Services or pods {'are' if plural else 'is'} left that no rule leads to:"
            f" perhaps what they were for is gone. No packet meets them."
        ),
        proofs=(
            *(state.proof(r, ruleset, state.owner(r, ruleset).text) for r in found[:NAMED]),
            Proof("rule", f"no rule jumps to {names}", state.installed.source(found[0], ruleset)),
        ),
        check="`iptables-save | grep CHAIN`: it stands behind ':' and '-A' only, and behind no '-j'.",
        cure="kube-proxy removes its own when it next writes all its rules, at the latest when it is restarted.",
        certain=False,
    )


def _repeated(state: State) -> Iterator[Finding]:
    """The same jump twice in one base chain: two programs, or two versions of one, have written it."""
    for rule, ruleset in state.rules("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"):
        chain = ruleset.chain(rule.family, rule.table, rule.chain)
        first = next(r for r in chain if r.text == rule.text)
        if first is rule or not rule.target or not rule.target.startswith(("KUBE-", "CNI-", "FLANNEL-", "cali-")):
            continue
        yield Finding(
            name="",
            key=("twice", rule.family, rule.table, rule.chain, rule.text),
            cause=(
                f"Rule {rule.number} of {rule.chain} ({rule.family} {rule.table}) is the same as rule {first.number}: what it"
                f" leads to is gone through twice, and somebody has written it without looking."
            ),
            proofs=(state.proof(first, ruleset), state.proof(rule, ruleset)),
            check="Two programs, or two versions of iptables, may write them: `iptables -V` on the node and in its pods.",
            cure=f"`{commands.deletes_this_one(rule)}`",
        )


def _of_nobody(state: State, host: Claim) -> Iterator[Finding]:
    """A hostPort of a container that libcni does not know any more, at an address that no pod has."""
    sandboxes, store = state.known.sandboxes, state.known.store
    known = host.owner.kind == "Pod" or sandboxes.at(host.target) or not host.target
    if known or not store.pods or store.by_pod_ip.all(host.target) or not store.this_node():
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
            Proof("object", f"no pod has the address {host.target}", "Kubernetes API"),
            Proof("object", f"no container has the address {host.target}", "CNI result cache"),
        ),
        check="The container's id is in the rule's comment: `crictl pods` does not list it.",
        cure=f"Remove the rule and its chain {host.rule.target if host.rule else ''}, or restart the node.",
    )


def _twice_claimed(same: list[Claim]) -> Finding:
    first, *others = same
    return Finding(
        name="",
        key=("hostPort twice", first.port, first.protocol, first.address),
        cause=(
            f"hostPort {first.port} ({first.protocol}) has rules for {len(same)} containers: the first one's rule takes every"
            f" request, to {first.target}, and the others get none."
        ),
        proofs=tuple(c.shown for c in same),
        check=f"`kubectl get pods -A -o wide` finds who has hostPort {first.port}; `crictl pods`, which containers are there.",
        cure=f"If a container is gone, remove its rule ({', '.join(c.rule.target for c in others if c.rule)}).",
    )
