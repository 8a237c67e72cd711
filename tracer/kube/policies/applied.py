# SPDX-License-Identifier: Apache-2.0
"""Owners of rules that carry out policies, in words that all programs share."""

from __future__ import annotations

from tracer.model.kube import Owner
from tracer.model.policy import AppliedPolicy, PolicyDenial, PolicyName

MOST_NAMED = 8
"""Policies that one owner names."""


def in_words(direction: str, number: int = 0) -> str:
    """Formats a part of a policy: "ingress", "ingress rule 2"."""
    return f"{direction} rule {number}" if number else direction


def owner_of_policy(program: str, named: tuple[PolicyName, ...], detail: str, chain: str) -> Owner:
    """Returns the owner of a rule of a policy. named: the policies that it can be for; () = unknown."""
    if len(named) == 1:
        (policy,) = named
        return Owner(policy.kind, policy.namespace, policy.name, "", program, detail, evidence=policy.evidence)
    if not named:
        return Owner("unknown", program=program, detail=f"policy of chain {chain}, {detail}")
    candidates = " or ".join(policy.text for policy in named[:MOST_NAMED])
    return Owner(
        "unknown", program=program, detail=f"candidates {candidates}, {detail}", evidence="chain hash of several objects"
    )


def owner_of_denial(denial: PolicyDenial) -> Owner:
    """Returns the owner of the rule at the end of a pod's chain, which denies what no policy allowed."""
    pod = f" of pod {'/'.join(denial.pod)}" if denial.pod[1] else ""
    detail = f"{denial.direction or 'policies'}{pod}, nothing in {'it' if len(denial.policies) == 1 else 'them'} allows it"
    named = [policy.candidates[0] for policy in denial.policies if len(policy.candidates) == 1]
    kinds = {(name.kind, name.namespace) for name in named}
    evidence = named[0].evidence if named else ""
    if len(named) == len(denial.policies) and len(kinds) == 1 and len(named) <= MOST_NAMED:
        names = ",".join(dict.fromkeys(name.name for name in named))
        return Owner(named[0].kind, named[0].namespace, names, "", denial.program, detail, evidence=evidence)
    words = list_in_words(denial.policies)
    if len(named) == len(denial.policies) and named:
        return Owner("program", program=denial.program, detail=f"{detail}: {words}", evidence=evidence)
    return Owner("unknown", program=denial.program, detail=f"{detail}: {words or 'policies not known'}", evidence=evidence)


def list_in_words(policies: tuple[AppliedPolicy, ...]) -> str:
    """Formats policies: "NetworkPolicy shop/a, NetworkPolicy shop/b and 3 more"."""
    texts = list(dict.fromkeys(policy.text for policy in policies))
    return ", ".join(texts[:MOST_NAMED]) + (f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else "")
