# SPDX-License-Identifier: Apache-2.0
"""Rules, snapshots of rulesets, and the trace of one packet through the rules of a table.

Every back end (legacy iptables, iptables-nft, native nftables) reads its rulesets into these classes. Owners, findings
and output formats use only these classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracer.model.evidence import Evidence

NFT_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
"""Families of nftables as nft spells them, by number (NFPROTO_*)."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        family: "ip", "ip6", "inet", "bridge" or "netdev".
        table: Name of the table.
        chain: Name of the chain.
        number: Position in the chain, from 1, as in `iptables -L --line-numbers`.
        text: The rule as a user writes it, without "-A CHAIN" (`iptables-save`) or the handle (`nft`).
        comment: The comment, "" = none.
        target: The chain it jumps to, or its target or verdict ("DNAT", "ACCEPT"); "" = it only counts.
        handle: The nftables handle; 0 with legacy iptables.
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
"""(family, table, chain)."""


@dataclass(frozen=True)
class Ruleset:
    """Snapshot of all rules of one back end in one namespace.

    Attributes:
        backend: "legacy" or "nft".
        netns: Inode of the namespace.
        generation: The generation (nft: generation id; legacy: one for each table, joined).
        chains: Rules in order, by chain; empty chains are included.
        policies: Policies of base chains, "ACCEPT" or "DROP".
    """

    backend: str
    netns: int
    generation: str
    chains: Mapping[ChainKey, tuple[Rule, ...]]
    policies: Mapping[ChainKey, str] = field(default_factory=dict)

    def chain(self, family: str, table: str, chain: str) -> tuple[Rule, ...]:
        """The rules of a chain; () = no such chain."""
        return self.chains.get((family, table, chain), ())


@dataclass(frozen=True)
class RuleLocation:
    """A position in a chain: the number of the rule, from 1; 0 = the policy of the chain."""

    chain: str
    number: int


@dataclass(frozen=True)
class RuleHit:
    """A rule or a policy that acted on the packet.

    Attributes:
        path: From the base chain to this rule: the positions of the jumps, then the rule's own position.
        rule: The rule; None = a policy.
        verdict: What it did: "DNAT", "MARK", "ACCEPT", "RETURN" ...
        evidence: How this is known.
        element: nftables: the map element that chose the verdict; else "".
        hotdrop: Why a match of this rule dropped the packet, as a clause; the rule's target did not act then. "" = no hotdrop.
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
    """The rules that one packet met in one run of a table or chain.

    Attributes:
        hits: Rules that acted, in order; the last one decided, unless `undecided`.
        possible: Candidates for the deciding rule, if it is not known.
        undecided: Why the deciding rule is not known, as one clause; "" = it is known.
        ruleset: The snapshot of the rules; None = it could not be read.
    """

    hits: tuple[RuleHit, ...] = ()
    possible: tuple[Rule, ...] = ()
    undecided: str = ""
    ruleset: Ruleset | None = field(default=None, compare=False, repr=False)

    @property
    def decision(self) -> RuleHit | None:
        return None if self.undecided or not self.hits else self.hits[-1]


def format_path(places: Sequence[RuleLocation]) -> str:
    """Formats a path: "PREROUTING 1 > KUBE-SERVICES 2 > KUBE-SEP-X 1"; a policy has no number: "FORWARD policy"."""
    return " > ".join(f"{p.chain} {p.number or 'policy'}" for p in places)
