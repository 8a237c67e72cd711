# SPDX-License-Identifier: Apache-2.0
"""Checks and text fragments that several causes share."""

from __future__ import annotations

import re

from tracer.model.handshake import ConnectionAttempt
from tracer.model.hop import (
    DecidingHop,
    DecisionDetail,
    HandshakeHop,
    Hop,
    IpvsRefusalHop,
    RuleHop,
    alike,
    alike_of,
    decision_of,
)
from tracer.model.packet import Packet
from tracer.util.endpoint_format import format_endpoint

INVALID = re.compile(r"(--ctstate|--state|ct state) INVALID\b", re.I)
LIMITED = "too many SYNs were open, or too many packets answered it"
"""Why an attempt did not wait for all its answers."""


def is_older(tsval: int, recent: int) -> bool:
    """Whether a timestamp is older than that of a connection in TIME_WAIT, as tcp_paws_reject() compares them: modulo 2^32.

    A connection with the timestamp 0 accepts each; of established connections the kernel tolerates one tick.
    """
    return recent != 0 and 0 < (recent - tsval) % (1 << 32) < 1 << 31


def is_old(detail: DecisionDetail) -> bool:
    """Whether a SYN has an older timestamp than the connection in TIME_WAIT that it hit."""
    has_both = "tsval" in detail.facts and "ts_recent" in detail.facts
    return has_both and is_older(detail.number("tsval"), detail.number("ts_recent"))


def own_hops(attempt: ConnectionAttempt) -> list[Hop]:
    """Hops alike the SYN's own ones, without those of copies."""
    return [h for h in alike(attempt.syn.hops) if not h.clone]


def formatted_actor(packet: Packet, hop: RuleHop | IpvsRefusalHop) -> str:
    """Place and answer of a decision: "in filter/INPUT with tcp-reset", "by IPVS in INPUT with ...: reason"."""
    answer = f" with {hop.reject}" if hop.reject else ""
    if isinstance(hop, RuleHop):
        return f"in {hop.place}{answer}"
    decision = hop.decision
    server = f": {packet.protocol} {format_endpoint(decision.virtual, decision.virtual_port)} has no real server available"
    return f"by IPVS in {hop.hook}{answer}{server if decision.virtual else ''}"


def formatted_owner(hop: DecidingHop) -> str:
    """ ": " and the owner of the rule that decided; "" when it is not known."""
    return f": {hop.owner.text}" if hop.owner and hop.owner.known else ""


def matches_invalid(hop: RuleHop) -> bool:
    """Whether the rule that decided matches conntrack's state INVALID."""
    decision = decision_of(hop)
    rule = decision.rule if decision and not decision.hotdrop else None
    return bool(rule and INVALID.search(rule.text))


def format_queues(detail: DecisionDetail) -> str:
    """The listener's queues before the SYN arrived."""
    n = detail.number
    return f"accept queue {n('accept_queue')}/{n('accept_limit')}, SYN queue {n('syn_queue')}/{n('accept_limit')}"


def completion(attempt: ConnectionAttempt) -> str:
    """State of the handshake after the SYN was answered.

    Returns:
        "connected": the client's ACK made a connection here. "refused": the listener refused that ACK. "acknowledged": an ACK
        was seen, without its result. "": no ACK was seen.
    """
    shakes = (h.handshake for p in attempt.acks for h in alike_of(p.hops, HandshakeHop))
    last = next((shake for shake in shakes if shake.stage == "ACK"), None)
    if last and last.accepted:
        return "connected"
    if last and last.accepted is False:
        return "refused"
    return "acknowledged" if attempt.acks else ""


def formatted_loss(attempt: ConnectionAttempt) -> str:
    """Why packets of this time may be missing: "left unexplained" or "lost". Only for a doubtful attempt."""
    return "left unexplained" if attempt.unexplained else "lost"
