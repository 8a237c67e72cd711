# SPDX-License-Identifier: Apache-2.0
"""The nouns of rulesets: a rule and its place, a ruleset as it was at one moment, the walk of one packet through a table.

Every back end (legacy iptables, iptables-nft, native nftables) reads its rulesets into these, and every reader of rules
(owners, findings, output formats) knows only these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracer.model.evidence import Evidence

NFT_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
"""nftables' families as nft spells them, by number (NFPROTO_*)."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    family: "ip", "ip6", "inet", "bridge", "netdev". number: its place in the chain, from 1, as `iptables -L --line-numbers`
    counts. text: as its user would write it, without "-A CHAIN" (`iptables-save`) or the handle (`nft`). comment: "" when it
    has none. target: the chain it jumps to or the target or verdict it ends in ("DNAT", "ACCEPT"), "" when it only counts.
    handle: of nftables, 0 on legacy.
    """

    family: str
    table: str
    chain: str
    number: int
    text: str
    comment: str = ""
    target: str = ""
    handle: int = 0


ChainKey = tuple[str, str, str]
"""family, table, chain."""


@dataclass(frozen=True)
class Ruleset:
    """All rules of one back end in one namespace, as they were at one moment.

    backend: "legacy" or "nft". generation: what the kernel calls this state (nft: generation id; legacy: one a table, joined).
    chains: rules in order; empty chains are there too. policies: of base chains, "ACCEPT" or "DROP".
    """

    backend: str
    netns: int
    generation: str
    chains: Mapping[ChainKey, tuple[Rule, ...]]
    policies: Mapping[ChainKey, str] = field(default_factory=dict)

    def chain(self, family: str, table: str, chain: str) -> tuple[Rule, ...]:
        """Its rules; () when there is no such chain."""
        return self.chains.get((family, table, chain), ())


@dataclass(frozen=True)
class RuleLocation:
    """Where in a chain: the rule's number from 1, 0 = the chain's policy."""

    chain: str
    number: int


@dataclass(frozen=True)
class RuleHit:
    """A rule that acted on the packet, or the policy that did.

    path: from the base chain down to it: the places jumped from, then its own. rule: None for a policy. verdict: what it did:
    "DNAT", "MARK", "ACCEPT", "RETURN" ... element: nftables: the map element that chose, "" elsewhere. hotdrop: why a match of
    this rule threw the packet away, as a clause: the rule's own target did not act then; "" elsewhere.
    """

    path: tuple[RuleLocation, ...]
    rule: Rule | None
    verdict: str
    evidence: Evidence
    element: str = ""
    hotdrop: str = ""

    @property
    def location(self) -> RuleLocation:
        return self.path[-1]


@dataclass(frozen=True)
class RuleTrace:
    """The way of one packet through one table run.

    visits: what acted, in order; the last one decided, unless `undecided`. possible: when it cannot be told which rule decided,
    those that may have. undecided: why it cannot be told, as one clause; "" when it is known. ruleset: which these are of,
    None when it could not be read.
    """

    hits: tuple[RuleHit, ...] = ()
    possible: tuple[Rule, ...] = ()
    undecided: str = ""
    ruleset: Ruleset | None = field(default=None, compare=False, repr=False)

    @property
    def decision(self) -> RuleHit | None:
        return None if self.undecided or not self.hits else self.hits[-1]


def format_path(places: Sequence[RuleLocation]) -> str:
    """PREROUTING 1 > KUBE-SERVICES 2 > KUBE-SEP-X 1; a policy has no number: FORWARD policy."""
    return " > ".join(f"{p.chain} {p.number or 'policy'}" for p in places)
