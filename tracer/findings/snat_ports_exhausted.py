# SPDX-License-Identifier: Apache-2.0
"""A rule that rewrites the source finds no free port: each SYN of the connection gets a port that another connection has.

The new source must differ from that of every other connection to the same destination. If the search finds no free port, the
kernel goes on with a used one, and conntrack drops the packet when it is to be entered. One such drop may also be a race of two
connections; but the repeated SYNs of one connection, a second and more apart, do not lose a race each time.
Source: Linux net/netfilter/nf_nat_core.c, nf_nat_l4proto_unique_tuple().
"""

from __future__ import annotations

import re

from tracer.findings.context import FindingContext
from tracer.findings.proofs import rewriting_rule, rule_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.handshake import ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import RewriteHop, is_from_conntrack
from tracer.model.kube import Owner
from tracer.model.rule import RuleHit
from tracer.util.endpoint_format import format_endpoint

CAUSE, SURE_AFTER = "conntrack race lost", 2
"""Cause of such a SYN; number of earlier SYNs of the connection after which it is no race."""
_TARGETS = frozenset({"MASQUERADE", "SNAT"})
_PORTS = re.compile(r"(?:--to-ports |--to-source \S+?:|(?:masquerade|snat)\b.* to \S*?:)(\d+(?:-\d+)?)(?:\s|$)")


def find_syn(verdict: HandshakeVerdict, context: FindingContext) -> Finding | None:
    attempt = verdict.attempt
    if verdict.cause.name != CAUSE or not attempt:
        return None
    # Not by alike_of: the port is this packet's own.
    rewrites = [h for h in attempt.syn.hops if isinstance(h, RewriteHop) and not h.clone and not is_from_conntrack(h)]
    rewrite = next((h for h in reversed(rewrites) if h.nat.kind in _TARGETS), None)
    return _finding(verdict, attempt, rewrite, rewriting_rule(attempt.syn, rewrite, _TARGETS)) if rewrite else None


def _finding(verdict: HandshakeVerdict, attempt: ConnectionAttempt, rewrite: RewriteHop, hit: RuleHit | None) -> Finding:
    before, after, owner = rewrite.nat.before, rewrite.nat.after, rewrite.owner or Owner("unknown")
    target, count = format_endpoint(after.dst, after.dport), verdict.again + 1
    who = f"The rule of {owner.text}" if owner.known else "A rule of an unknown program"
    ports = _PORTS.search(hit.rule.text) if hit and hit.rule else None
    of = f" of its range {ports[1]}" if ports else ""
    is_sure = verdict.again >= SURE_AFTER
    word = "finds" if is_sure else "perhaps finds"
    got = f"got {format_endpoint(after.src, after.sport)}, which another connection has, and conntrack dropped it"
    times = f"{count} SYNs of this connection were" if count > 1 else "one SYN of this connection was"
    return Finding(
        name="",
        key=(rewrite.netns, after.src, after.dst, after.dport),
        cause=(
            f"{who} that rewrites the source of connections from {before.src} to {target} {word} no free port{of} at"
            f" {after.src}: the SYN {got}."
        ),
        proofs=(
            FindingEvidence(
                "packet", f"SYN {attempt.asked.src} -> {target}: {verdict.cause.text}", verdict.cause.evidence.value
            ),
            FindingEvidence("counter", f"{times} dropped so", "observed"),
            *([rule_proof(hit, owner.text)] if hit else []),
        ),
        check=(
            f"`conntrack -L -p tcp --reply-src {after.dst} --reply-dst {after.src}` lists the connections that share the"
            f" address {after.src}; one port of it serves one connection to {target}."
        ),
        cure=(
            "Give the rule more ports or more addresses, let clients keep and share connections, or find the client that opens"
            " so many; a destination with more addresses or ports takes more connections, too."
        ),
        certain=is_sure,
    )
