# SPDX-License-Identifier: Apache-2.0
"""The conntrack table is full: the first packet of each new connection is dropped before any rule is evaluated."""

from __future__ import annotations

from dataclasses import replace

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DetailHop, HookHop, RuleHop
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.node.node_questions import ConntrackCounters, Setting
from tracer.util.questions import value_of

COUNT, LIMIT = (Setting(f"net/netfilter/nf_conntrack_{name}", is_volatile=True) for name in ("count", "max"))
COUNTERS = ConntrackCounters()
ASKS = (COUNT, LIMIT, COUNTERS)
FULL_SHARE = 0.95
"""Share of the limit from which the table counts as full. Entries may have expired between the packet and the reading."""
ENTRANCES = (Hook.PREROUTING, Hook.OUTPUT)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    """Finds packets that were dropped because the conntrack table was full.

    A probe observes this in the kernel. Without that probe it is derived: conntrack drops the packet in its first hook, no
    table drops it, and the packet has no connection.
    """
    if packet.outcome is not Outcome.DROPPED:
        return None
    if packet.detail("table-full"):
        seen = FindingEvidence("packet", "conntrack found no entry that it could evict for this one (early_drop)", "observed")
        # The figures are from the node's own namespace.
        here = any(isinstance(h, DetailHop) and h.detail.what == "table-full" and is_host(h.netns) for h in packet.hops)
        return replace(make_finding(*(full(context) if here else (0, 0)), context, [packet_proof(packet), seen]), certain=True)
    if packet.flow or not packet.complete:
        return None
    if any(isinstance(h, RuleHop) and h.verdict is Verdict.DROP for h in packet.hops):
        return None
    hooks = [h for h in packet.hops if isinstance(h, HookHop) and not h.clone]
    if not any(h.verdict is Verdict.DROP and h.hook in ENTRANCES for h in hooks):
        return None
    count, most = full(context)
    if not most or count < FULL_SHARE * most:
        return None
    return make_finding(count, most, context, [packet_proof(packet)])


def full(context: FindingContext) -> tuple[int, int]:
    """Returns (entries, limit) of the conntrack table; (0, 0) = they cannot be read, or the capture does not have them."""
    count, most = (value_of(context.ask(question)) or "" for question in (COUNT, LIMIT))
    return (int(count), int(most)) if count.isdigit() and most.isdigit() else (0, 0)


def make_finding(count: int, most: int, context: FindingContext, shown: list[FindingEvidence]) -> Finding:
    """Makes the finding. shown: the packet that shows it, or empty. The figures were read after that packet."""
    counted = value_of(context.ask(COUNTERS)) or {}
    grown = ", ".join(f"{name} {counted[name]}" for name in ("drop", "early_drop") if counted.get(name))
    numbers = f" ({count} entries, {most} are allowed)" if most and count >= FULL_SHARE * most else ""
    figures = f"nf_conntrack_count = {count}, nf_conntrack_max = {most}" + ", read after the packet" * bool(shown)
    return Finding(
        name="",
        key=("full",),
        cause=(
            f"The conntrack table is full{numbers}: the kernel drops the first packet of every"
            " new connection that this node sends, receives or forwards, before any rule is evaluated."
        ),
        proofs=(
            *shown,
            *([FindingEvidence("setting", figures, "/proc/sys")] if most else []),
            *(
                [FindingEvidence("counter", f"of conntrack, since boot: {grown}", "/proc/net/stat/nf_conntrack")]
                if grown
                else []
            ),
        ),
        check="`dmesg | grep 'nf_conntrack: table full'`; `conntrack -C` counts the entries, `conntrack -L` lists them.",
        cure=(
            f"`sysctl -w net.netfilter.nf_conntrack_max={2 * max(count, most) or 'MORE'}` (kube-proxy sets it:"
            " --conntrack-max-per-core), and find the client that opens too many connections or does not close them."
        ),
        certain=bool(most) and count >= FULL_SHARE * most,
    )
