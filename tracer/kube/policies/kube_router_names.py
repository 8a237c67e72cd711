# SPDX-License-Identifier: Apache-2.0
"""Names of kube-router's ipsets, computed from policies.

A set is "KUBE-SRC-" or "KUBE-DST-" and 16 characters of a SHA-256 in base32, of namespace and name of the policy written one
after the other, in the sets of one rule followed by "ingressrule0" or "egressrule0", the family (since 2.0) and the kind of the
set. Chains (KUBE-NWPLCY-, KUBE-POD-FW-) also contain the time at which they were written, so they cannot be computed.
Source: cloudnativelabs/kube-router pkg/controllers/netpol/policy.go.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache

FAMILIES = ("", "IPv4", "IPv6")
"""The family in the hash; "" before kube-router 2.0."""
MOST_NAMED_PORTS = 8
"""Named ports of one rule that are compared."""


def digest(text: str) -> str:
    """The hash in the name of a set or chain."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]


@lru_cache(4096)
def target_hashes(namespace: str, name: str) -> tuple[str, ...]:
    """Returns the hashes of the sets of the pods that a policy selects."""
    return tuple(digest(f"{namespace}{name}{family}") for family in FAMILIES)


@lru_cache(4096)
def rule_of_set(found: str, namespace: str, name: str, direction: str, count: int) -> int:
    """Returns the number, from 1, of the policy's rule that a set belongs to; 0 = it is not a set of one of its rules.

    Args:
        found: The hash in the set's name.
        namespace: The policy's namespace.
        name: The policy's name.
        direction: "ingress" or "egress".
        count: The number of rules that the policy has in this direction.
    """
    for at in range(count):
        base = f"{namespace}{name}{direction}rule{at}"
        for family in FAMILIES:
            ends = [
                f"{family}pod",
                f"{family}ipblock",
                f"{family}ipblockexcept",
                *(f"{n}{family}namedport" for n in range(MOST_NAMED_PORTS)),
            ]
            if any(digest(base + end) == found for end in ends):
                return at + 1
    return 0
