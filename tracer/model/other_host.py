# SPDX-License-Identifier: Apache-2.0
"""Packets for the link address of another host, by the kernel's drop reason."""

from __future__ import annotations

from tracer.model.packet import Drop


def for_another_host(drop: Drop | None) -> bool:
    """Whether a packet was dropped because its link address belongs to another interface."""
    return bool(drop and drop.reason == "OTHERHOST")
