# SPDX-License-Identifier: Apache-2.0
"""Packets for the link address of another host, by the kernel's drop reason."""

from __future__ import annotations

from tracer.model.hop import DropHop, Hop


def for_another_host(hop: Hop) -> bool:
    """Whether a packet was dropped at this hop because its link address belongs to another interface."""
    return isinstance(hop, DropHop) and hop.drop.reason == "OTHERHOST"
