# SPDX-License-Identifier: Apache-2.0
"""Names what one nftables rule did: the kernel's verdict, or the rule's target if that may have given the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.model.rule import Rule
from tracer.rules.ending_targets import ENDS
from tracer.rules.xt_targets import hotdrop_clause

CONTINUE, JUMP, GOTO, RETURN = -1, -3, -4, -5
DROP, ACCEPT, STOLEN, QUEUE = range(4)
MASK = 0xFF
"""Bits of the verdict; above them are the queue number of NF_QUEUE and the error of NF_DROP."""
VERDICTS = {DROP: "DROP", ACCEPT: "ACCEPT", STOLEN: "STOLEN", QUEUE: "QUEUE"}
CONTROL_VERDICTS = {CONTINUE: "CONTINUE", JUMP: "JUMP", GOTO: "GOTO", RETURN: "RETURN"}
_PRECISE_TARGETS = {
    ACCEPT: frozenset({"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP", "TPROXY"}),
    DROP: frozenset({"REJECT"}),
    STOLEN: frozenset({"FWD", "SYNPROXY"}),
    QUEUE: frozenset({"NFQUEUE"}),
}
"""Targets that are more precise than the verdict that ends their rule. A rule may end by something else than its target: it
sets a mark and then a verdict map drops, or a match of iptables sets hotdrop."""
_NEVER_DROP = frozenset({"", "ACCEPT", "RETURN", "QUEUE"}) | {name for name, ends in ENDS.items() if "DROP" not in ends}


def signed(code: int) -> int:
    """The code as a signed number. NFT_CONTINUE to NFT_RETURN are negative; NF_QUEUE with a high queue number is not."""
    return code - (1 << 32) if code >= (1 << 32) + RETURN else code


def verdict_name(code: int, rule: Rule, to: str, is_answered: bool) -> str:
    """Names what a rule did.

    Args:
        code: The kernel's verdict code, signed.
        rule: The rule.
        to: Target chain of a jump.
        is_answered: Whether an answer was, or may have been, sent, as REJECT does.
    """
    if code in (JUMP, GOTO):
        return f"{CONTROL_VERDICTS[code]} {to}"
    if code == RETURN:
        return "RETURN"
    if code == CONTINUE:
        return rule.target or "CONTINUE"
    code &= MASK
    if rule.target in _PRECISE_TARGETS.get(code, ()) and (is_answered or rule.target != "REJECT"):
        return rule.target
    return VERDICTS.get(code, str(code))


def hotdrop_reason(code: int, rule: Rule, is_jump: bool, matches: Sequence[str]) -> str:
    """Why a match of the rule set hotdrop; "" if none did, or if the target may have dropped the packet.

    nft_match_eval turns hotdrop into NF_DROP, whatever the rule's target is.

    Args:
        code: The kernel's verdict code, signed.
        rule: The rule.
        is_jump: Whether the rule's target is a chain.
        matches: Matches of iptables in the rule that may set hotdrop.
    """
    if code < 0 or code & MASK != DROP or not (is_jump or rule.target in _NEVER_DROP):
        return ""
    return hotdrop_clause(" or ".join(matches)) if matches else ""
