# SPDX-License-Identifier: Apache-2.0
"""Which machine this is: its name as Kubernetes knows it, and its boot."""

from __future__ import annotations

import os

from tracer.node.machine import Machine


def node_name() -> str:
    """$NODE_NAME, which the DaemonSet sets; else the host name."""
    return os.environ.get("NODE_NAME") or os.uname().nodename


def boot_id(machine: Machine = Machine()) -> str:  # noqa: B008
    """The kernel's random number of this boot, equal in all containers; "" = it cannot be read."""
    return machine.read_quietly("proc/sys/kernel/random/boot_id").strip()
