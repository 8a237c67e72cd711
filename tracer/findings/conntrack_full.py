# SPDX-License-Identifier: Apache-2.0
"""The table of connections is full: packets of new ones are dropped before any rule is asked."""

from __future__ import annotations

from dataclasses import replace

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.packet import Packet
from tracer.util.asking import answered

COUNT, MOST = "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"
NEARLY = 0.95
"""A table may have lost an entry or two between the packet and the reading."""
ENTRANCES = ("PREROUTING", "OUTPUT")


def find(packet: Packet, context: FindingContext) -> Finding | None:
    """The kernel was seen to find no room for it. Where that is not watched: conntrack itself drops in the hook by which the
    packet comes in, and no table does; the packet has no connection then.
    """
    if packet.outcome != "dropped":
        return None
    if packet.detail("table-full"):
        seen = FindingEvidence("packet", "conntrack found no entry that it might give up for this one (early_drop)", "observed")
        # The figures are those of the node's own namespace.
        here = any(h.detail and h.detail.what == "table-full" and h.netns == "node" for h in packet.hops)
        return replace(tell(*(full(context) if here else (0, 0)), context, [packet_proof(packet), seen]), certain=True)
    if packet.flow or not packet.complete:
        return None
    if any(h.what in ("table", "chain") and h.verdict == "DROP" for h in packet.hops):
        return None
    if not any(h.what == "hook" and h.verdict == "DROP" and h.hook in ENTRANCES and not h.clone for h in packet.hops):
        return None
    count, most = full(context)
    if not most or count < NEARLY * most:
        return None
    return tell(count, most, context, [packet_proof(packet)])


def full(context: FindingContext) -> tuple[int, int]:
    """(entries, limit) of the conntrack table; 0 where they cannot be read."""
    values = [_setting(name, context) for name in (COUNT, MOST)]
    count, most = (int(v) if v.isdigit() else 0 for v in values)
    return count, most


def _setting(name: str, context: FindingContext) -> str:
    return answered(lambda: context.node.setting(name), "")


def tell(count: int, most: int, context: FindingContext, shown: list[FindingEvidence]) -> Finding:
    """That the table is full. shown: by which packet, if by any; the figures were read after it."""
    counted: dict[str, int] = answered(context.node.conntrack_counters, {})
    grown = ", ".join(f"{name} {counted[name]}" for name in ("drop", "early_drop") if counted.get(name))
    numbers = f" ({count} entries, {most} are allowed)" if most and count >= NEARLY * most else ""
    figures = f"nf_conntrack_count = {count}, nf_conntrack_max = {most}" + ", read after the packet" * bool(shown)
    return Finding(
        name="",
        key=("full",),
        cause=(
            f"The table of connections is full{numbers}: the kernel drops the packets of every"
            " new connection that this node sends, takes or forwards, and no rule is asked."
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
        check="`dmesg | grep 'nf_conntrack: table full'`; `conntrack -C` counts; `conntrack -L` shows who fills it.",
        cure=(
            f"`sysctl -w net.netfilter.nf_conntrack_max={2 * max(count, most) or 'MORE'}` (kube-proxy sets it:"
            " --conntrack-max-per-core), and see which client opens so many, or leaves them to time out."
        ),
        certain=bool(most) and count >= NEARLY * most,
    )
