# SPDX-License-Identifier: Apache-2.0
"""Packets for another link address, as the kernel says when it drops one."""

from __future__ import annotations

from tracer.model.packet import Drop


def for_another_host(drop: Drop | None) -> bool:
    """Whether a packet was dropped because its link address is another interface's."""
    return bool(drop and drop.reason == "OTHERHOST")
