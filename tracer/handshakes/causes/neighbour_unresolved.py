# SPDX-License-Identifier: Apache-2.0
"""The next hop's link address was not found: ARP or neighbour discovery got no answer. Observed: the packet waited for it, and
was dropped for this reason, or still waits."""

from __future__ import annotations

from tracer.handshakes.correlator import waits_for_neighbour
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import alike
from tracer.node.namespace_questions import NamespaceInspector

REASONS = {
    "NEIGH_FAILED": "does not answer", "NEIGH_QUEUEFULL": "has not answered, and too many packets wait for it",
    "NEIGH_DEAD": "is gone", "NEIGH_CREATEFAIL": "could not be looked for",
}  # fmt: skip
FUNCTIONS = frozenset({"neigh_invalidate", "arp_error_report", "ndisc_error_report"})
"""Functions that drop the waiting packets when there is no answer; for IPv6 without a specific drop reason."""


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    detail, drop = attempt.syn.detail("neighbour"), attempt.syn.drop
    family = "ipv6" if ":" in attempt.reached.dst else "ipv4"
    if detail and family not in detail.facts:
        family = "ipv6"  # a route for IPv4 may lead by an IPv6 address
    asked = "neighbour discovery" if family == "ipv6" else "ARP"
    hop = str(detail.facts.get(family, "")) if detail else attempt.reached.dst
    iface = next((f" on {h.out_iface}" for h in reversed(alike(attempt.syn.hops)) if h.out_iface), "")
    reason = drop.reason if drop else ""
    if drop and detail and drop.function in FUNCTIONS and reason in ("", "NOT_SPECIFIED"):
        reason = "NEIGH_FAILED"
    if reason in REASONS:
        return Cause("neighbour failed", f"dropped{attempt.where}: next hop {hop}{iface} {REASONS[reason]} ({asked})")
    if waits_for_neighbour(attempt):
        return Cause(
            "neighbour failed", f"not sent{attempt.where}: next hop {hop}{iface} has not answered {asked}", Evidence.DERIVED
        )
    return None
