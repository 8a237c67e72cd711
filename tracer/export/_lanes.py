# SPDX-License-Identifier: Apache-2.0
"""The lanes of a packet in the ladder of its connection: the network namespaces that it passed, in order.

What lies behind an interface at which the tracer saw the packet arrive or leave is a lane of its own: `beyond eth0`. It is not
known which host or namespace that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer.model.hop import HopBase
from tracer.model.netfilter import Hook
from tracer.model.packet import Outcome, Packet

_LEAVES = (Outcome.FORWARDED, Outcome.SENT)
"""Outcomes of a packet that left the machine, or at least the namespaces that were traced."""
_ARRIVES = (Hook.PREROUTING, Hook.INGRESS, Hook.BROUTING)
"""Hooks at which a packet that no process of the namespace sent is seen first."""


@dataclass(frozen=True)
class Lane:
    """A lane.

    Attributes:
        netns: The namespace.
        beyond: The interface of that namespace behind which the lane lies; "" = the namespace itself.
    """

    netns: str
    beyond: str = ""


def lanes_of(packet: Packet) -> list[Lane]:
    """The lanes that the packet passed, in order; neighbours differ. Copies of the packet are left out."""
    hops = [hop for hop in packet.hops if not hop.clone]
    names = [packet.netns, *(hop.netns for hop in hops)] if packet.netns else [hop.netns for hop in hops]
    found = [Lane(name) for at, name in enumerate(names) if at == 0 or name != names[at - 1]] or [Lane("")]
    if first := _way_in(hops):
        found.insert(0, first)
    if packet.outcome in _LEAVES and (last := _way_out(hops)):
        found.append(last)
    return found


def _way_in(hops: Sequence[HopBase]) -> Lane | None:
    """What lies behind the interface that the packet came in by; None = a process sent it, or not known."""
    if not hops or hops[0].hook not in _ARRIVES:
        return None
    # Not every kind of hop has the interface.
    first = next((hop for hop in hops if hop.in_iface), None)
    if first is None or first.in_iface == "lo" or (first.netns, first.hook) != (hops[0].netns, hops[0].hook):
        return None
    return Lane(first.netns, first.in_iface)


def _way_out(hops: Sequence[HopBase]) -> Lane | None:
    """What lies behind the interface that the packet left by; None = not known."""
    last = next((hop for hop in reversed(hops) if hop.out_iface), None)
    if last is None or last.out_iface == "lo" or last.netns != hops[-1].netns:
        return None
    return Lane(last.netns, last.out_iface)
