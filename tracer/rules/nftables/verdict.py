# SPDX-License-Identifier: Apache-2.0
"""What one nftables rule did, in a word: the kernel's verdict, or the rule's target where that can have given the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.model.rule import Rule
from tracer.rules.ending_targets import ENDS
from tracer.rules.xt_targets import hotdrop_clause

CONTINUE, JUMP, GOTO, RETURN = -1, -3, -4, -5
DROP, ACCEPT, STOLEN, QUEUE = range(4)
MASK = 0xFF
"""The verdict's bits; above them stand NF_QUEUE's number of the queue and NF_DROP's error."""
VERDICTS = {DROP: "DROP", ACCEPT: "ACCEPT", STOLEN: "STOLEN", QUEUE: "QUEUE"}
WORDS = {CONTINUE: "CONTINUE", JUMP: "JUMP", GOTO: "GOTO", RETURN: "RETURN"}
_TARGETS = {
    ACCEPT: frozenset({"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP", "TPROXY"}),
    DROP: frozenset({"REJECT"}),
    STOLEN: frozenset({"FWD", "SYNPROXY"}),
    QUEUE: frozenset({"NFQUEUE"}),
}
"""Targets that say more than the verdict which ends their rule. A rule may end by something else than its target: a mark is set
and then a verdict map says drop, or a match of iptables throws the packet away."""
_NEVER_DROP = frozenset({"", "ACCEPT", "RETURN", "QUEUE"}) | {name for name, ends in ENDS.items() if "DROP" not in ends}


def signed(code: int) -> int:
    """NFT_CONTINUE to NFT_RETURN are negative; NF_QUEUE with a high queue number only looks so."""
    return code - (1 << 32) if code >= (1 << 32) + RETURN else code


def word(code: int, rule: Rule, to: str, answered: bool) -> str:
    """What a rule did. code: signed. to: where a jump leads. answered: not known not to have sent an answer, as REJECT does."""
    if code in (JUMP, GOTO):
        return f"{WORDS[code]} {to}"
    if code == RETURN:
        return "RETURN"
    if code == CONTINUE:
        return rule.target or "CONTINUE"
    code &= MASK
    if rule.target in _TARGETS.get(code, ()) and (answered or rule.target != "REJECT"):
        return rule.target
    return VERDICTS.get(code, str(code))


def thrown(code: int, rule: Rule, leads_on: bool, matches: Sequence[str]) -> str:
    """Why a match of the rule threw the packet away; "" where none did, or where the target may have dropped it.

    leads_on: the rule's target is a chain. matches: those of iptables in it that may do so. nft_match_eval makes NF_DROP of
    their hotdrop, whatever the rule's target is.
    """
    if code < 0 or code & MASK != DROP or not (leads_on or rule.target in _NEVER_DROP):
        return ""
    return hotdrop_clause(" or ".join(matches)) if matches else ""
