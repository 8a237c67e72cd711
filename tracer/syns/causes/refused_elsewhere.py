"""Sent on, and refused behind this node: a reset or an ICMP error came back. Observed: the answer."""

from __future__ import annotations

from tracer.hops import ICMP_UNREACHABLE
from tracer.syns.model import Attempt, Cause, end
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    following = (attempt.syn.seq + 1) & 0xFFFFFFFF
    for packet in attempt.resets:
        if packet.ack == following:
            start = f" (from {packet.netns})" if not packet.hops[0].in_iface else ""
            return Cause(
                "refused elsewhere", f"answered with a reset by {end(packet.endpoints.src, packet.endpoints.sport)}{start}"
            )
    for packet in attempt.errors:
        kind, code = packet.endpoints.dport >> 8, packet.endpoints.dport & 255
        name = ICMP_UNREACHABLE.get(code, f"code {code}") if packet.protocol == "ICMP" and kind == 3 else "an error"
        return Cause("refused elsewhere", f"answered with {packet.protocol} {name} by {packet.endpoints.src}")
    return None
