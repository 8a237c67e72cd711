# SPDX-License-Identifier: Apache-2.0
"""Checks and text fragments that several causes share."""

from __future__ import annotations

import re

from tracer.model.handshake import ConnectionAttempt
from tracer.model.packet import DecisionDetail, Hop, Packet
from tracer.util.endpoint_format import format_endpoint

INVALID = re.compile(r"(--ctstate|--state|ct state) INVALID\b", re.I)
LIMITED = "too many SYNs were open, or too many packets answered it"
"""Why an attempt did not wait for all its answers."""
PAWS_WINDOW = 1
"""Difference of TCP timestamps that PAWS tolerates, ticks."""


def is_older(tsval: int, recent: int) -> bool:
    """Whether a timestamp is older than another, as TCP compares them: by more than PAWS_WINDOW ticks, modulo 2^32."""
    return 0 < (recent - tsval - PAWS_WINDOW) % (1 << 32) < 1 << 31


def own_hops(attempt: ConnectionAttempt) -> list[Hop]:
    """The SYN's own hops, without those of copies."""
    return [h for h in attempt.syn.hops if not h.clone]


def table_of(hop: Hop) -> str:
    """filter/INPUT, or ip kube-proxy/filter-output for nftables."""
    return f"{hop.table}/{hop.chain or hop.hook}"


def formatted_actor(packet: Packet, hop: Hop) -> str:
    """Place and answer of a decision: "in filter/INPUT with tcp-reset", "by IPVS in INPUT with ...: reason"."""
    answer = f" with {hop.reject}" if hop.reject else ""
    if not hop.ipvs:
        return f"in {table_of(hop)}{answer}"
    server = f": {packet.protocol} {format_endpoint(hop.ipvs.virtual, hop.ipvs.virtual_port)} has no real server available"
    return f"by IPVS in {hop.hook}{answer}{server if hop.ipvs.virtual else ''}"


def formatted_owner(hop: Hop) -> str:
    """ ": " and the owner of the rule that decided; "" when it is not known."""
    return f": {hop.owner.text}" if hop.owner and hop.owner.known else ""


def matches_invalid(hop: Hop) -> bool:
    """Whether the rule that decided matches conntrack's state INVALID."""
    rule = (
        hop.rule_trace.decision.rule
        if hop.rule_trace and hop.rule_trace.decision and not hop.rule_trace.decision.hotdrop
        else None
    )
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
    last = next((h for p in attempt.acks for h in p.hops if h.handshake and h.handshake.stage == "ACK" and not h.clone), None)
    if last and last.handshake and last.handshake.accepted:
        return "connected"
    if last and last.handshake and last.handshake.accepted is False:
        return "refused"
    return "acknowledged" if attempt.acks else ""


def formatted_loss(attempt: ConnectionAttempt) -> str:
    """Why packets of this time may be missing: "left unexplained" or "lost". Only for a doubtful attempt."""
    return "left unexplained" if attempt.unexplained else "lost"
