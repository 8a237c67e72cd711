# SPDX-License-Identifier: Apache-2.0
"""Two datagrams of a new connection arrive at the same time: conntrack can confirm only one entry and drops the other one.

The typical case is a resolver that sends its A and AAAA queries from one socket to a Service: one is lost, and the lookup takes
five seconds. conntrack drops the packet at the end of POSTROUTING or INPUT and counts it as insert_failed.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import HookHop, RewriteHop, RuleHop, is_from_conntrack
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.node.node_questions import ConntrackCounters
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

EXITS = (Hook.POSTROUTING, Hook.INPUT)
BEFORE = "insert_failed before"
COUNTERS = ConntrackCounters()
ASKS = (COUNTERS,)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    if packet.protocol != "UDP":
        return None
    # The counter's value at the start, to compare with its value after a drop.
    before = context.since[BEFORE] if BEFORE in context.since else _counted(context)
    if before is not None:
        context.since[BEFORE] = before
    hooks = [h for h in packet.hops if isinstance(h, HookHop) and not h.clone]
    lost = any(h.verdict is Verdict.DROP and h.hook in EXITS for h in hooks)
    by_rule = any(isinstance(h, RuleHop) and h.verdict is Verdict.DROP for h in packet.hops)
    translated = any(isinstance(h, RewriteHop) and not is_from_conntrack(h) for h in packet.hops)
    if packet.outcome is not Outcome.DROPPED or not lost or by_rule or not translated or not packet.complete:
        return None
    now, ends = _counted(context), packet.endpoints
    grown = now is not None and before is not None and now > before
    counter = FindingEvidence("counter", f"insert_failed of conntrack is {now}, it was {before}", "/proc/net/stat/nf_conntrack")
    return Finding(
        name="",
        key=(ends.dst, ends.dport),
        cause=(
            f"{'Two' if grown else 'Most likely two'} datagrams from {format_endpoint(ends.src, ends.sport)} to"
            f" {format_endpoint(ends.dst, ends.dport)} arrived at the same time: the rules translated each of them, but"
            " conntrack could insert only one connection and dropped the other."
        ),
        proofs=(packet_proof(packet), counter) if now is not None and before is not None else (packet_proof(packet),),
        check="`conntrack -S`: insert_failed grows with each of them. A resolver's answers then take five seconds.",
        cure=(
            "For DNS: options use-vc, single-request-reopen or single-request in resolv.conf, or NodeLocal DNSCache, which"
            " uses TCP."
        ),
        certain=grown,
    )


def _counted(context: FindingContext) -> int | None:
    """Returns insert_failed since boot; None = it cannot be read, or the capture does not have it."""
    counted = value_of(context.ask(COUNTERS))
    return counted.get("insert_failed") if counted else None
