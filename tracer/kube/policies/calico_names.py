# SPDX-License-Identifier: Apache-2.0
"""Names of Calico's chains and interfaces, computed from policies and pods.

A chain is "cali-pi-" (ingress) or "cali-po-" (egress) and the policy's id. If that is too long for the back end, "_" and the
first characters of the id's hash take the id's place: SHA-256 in base64 for URLs. Three forms of the id exist:

    shop/knp.default.web            until 3.28   (default.web of namespace shop: shop/default.web; a global one: default.web)
    default/shop/knp.default.web    3.29 to 3.31: the tier before it
    knp/shop/web                    3.32 and later: a short word for the kind before namespace and name

The interface of a pod is "cali", or another prefix, and 11 hexadecimal digits of the SHA-1 of "NAMESPACE.POD".
Sources: projectcalico/calico felix/rules/policy.go (PolicyChainName), libcalico-go/lib/hash, felix/types/policy_id.go,
libcalico-go/lib/backend/k8s/conversion (K8sNetworkPolicyToCalico, VethNameForWorkload).
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache

from tracer.model.policy import PolicyName

IPTABLES_LENGTH, NFTABLES_LENGTH = 28, 256
"""Maximum length of a chain's name in each back end, characters."""
POLICY_PREFIXES = {"cali-pi-": "ingress", "cali-po-": "egress"}
"""Prefix of a policy's chain -> direction."""
_PREFIX_LENGTH = len("cali-pi-")
_TIERS = {"kanp.adminnetworkpolicy.": "adminnetworkpolicy", "kbanp.baselineadminnetworkpolicy.": "baselineadminnetworkpolicy"}
_SHORT = {"NetworkPolicy": "np", "GlobalNetworkPolicy": "gnp", "KubernetesNetworkPolicy": "knp"}
_KINDS = {"np": "CalicoNetworkPolicy", "gnp": "GlobalNetworkPolicy", "knp": "NetworkPolicy"}
_WORDS = {long: _KINDS[short] for long, short in _SHORT.items()}
_COMMENT = re.compile(r"(Policy|NetworkPolicy|GlobalNetworkPolicy|KubernetesNetworkPolicy) (\S+) (?:ingress|egress)")


def limited(identifier: str, limit: int, prefix_length: int = _PREFIX_LENGTH) -> str:
    """Returns the part of a name after its prefix: the identifier, or its hash if the name would be longer than the limit."""
    length = prefix_length + len(identifier)
    if length < limit or (length == limit and not identifier.startswith("_")):
        return identifier
    digest = base64.urlsafe_b64encode(hashlib.sha256(identifier.encode()).digest()).decode()
    return "_" + digest.rstrip("=")[: limit - 1 - prefix_length]


@lru_cache(4096)
def chains_of(namespace: str, name: str) -> tuple[str, ...]:
    """Returns the names that a chain for a NetworkPolicy of Kubernetes can have, without prefix."""
    old = f"{namespace}/knp.default.{name}"
    identifiers = (old, f"default/{old}", f"knp/{namespace}/{name}")
    return tuple(dict.fromkeys(limited(i, limit) for i in identifiers for limit in (IPTABLES_LENGTH, NFTABLES_LENGTH)))


@lru_cache(8192)
def interface_hash(namespace: str, pod: str) -> str:
    """Returns the 11 digits that end the name of a pod's interface."""
    return hashlib.sha1(f"{namespace}.{pod}".encode(), usedforsecurity=False).hexdigest()[:11]


def by_plain_name(identifier: str) -> tuple[PolicyName, ...]:
    """Reads a name that was not shortened. Returns each policy that it can be for: the forms of the id overlap."""
    if identifier.startswith("_"):
        return ()
    first, slash, rest = identifier.partition("/")
    found: list[PolicyName | None] = []
    if first in _KINDS and rest.count("/") == (first != "gnp"):
        namespace, _, name = rest.rpartition("/")
        found.append(PolicyName(_KINDS[first], namespace, name, "chain name"))
    if slash and _tier(rest) == first:
        found.append(_of_old_name(rest, "chain name"))
    if "." in identifier.rpartition("/")[2]:
        found.append(_of_old_name(identifier, "chain name"))
    return tuple(dict.fromkeys(name for name in found if name))


def by_comment(comment: str, chain: str) -> PolicyName | None:
    """Returns the policy of a comment if the chain's name fits it; None if it does not, or the comment names no policy.

    Args:
        comment: The comment: "Policy shop/knp.default.web ingress", "KubernetesNetworkPolicy shop/web ingress".
        chain: The chain's name without prefix.
    """
    found = _COMMENT.fullmatch(comment)
    if not found:
        return None
    kind, name = found[1], found[2]
    if kind == "Policy":
        identifiers, policy = [name, f"{_tier(name)}/{name}"], _of_old_name(name, "comment")
    else:
        namespace, _, own = name.rpartition("/")
        identifiers, policy = [f"{_SHORT[kind]}/{name}"], PolicyName(_WORDS[kind], namespace, own, "comment")
    fits = any(limited(i, limit) == chain for i in identifiers for limit in (IPTABLES_LENGTH, NFTABLES_LENGTH))
    return policy if fits else None


def _of_old_name(name: str, evidence: str) -> PolicyName | None:
    """Reads the name that a policy had until 3.31."""
    namespace, slash, own = name.rpartition("/")
    if "/" in namespace or own.startswith("staged:"):
        return None
    if not slash:
        return PolicyName("GlobalNetworkPolicy", "", own, evidence)
    if own.startswith("knp.default."):
        return PolicyName("NetworkPolicy", namespace, own.removeprefix("knp.default."), evidence)
    return PolicyName("CalicoNetworkPolicy", namespace, own, evidence)


def _tier(name: str) -> str:
    """Returns the tier of a policy by its old name: the word before the first dot."""
    own = name.rpartition("/")[2]
    for prefix, tier in _TIERS.items():
        if own.startswith(prefix):
            return tier
    if own.startswith(("knp.default.", "ossg.")):
        return "default"
    tier, dot, _ = own.partition(".")
    return tier if dot else "default"
