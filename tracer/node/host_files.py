# SPDX-License-Identifier: Apache-2.0
"""Paths of the node's files, also for a tracer in a container: below the root directory of process 1.

So a container needs no mounted directory of the node, and no missing directory is created on the node.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/proc/1/root")
MOUNTS = ("/proc/1/ns/mnt", "/proc/self/ns/mnt")


def of_node(path: str) -> Path:
    """The path of the node's file of that name. (Links to absolute paths would lead to our own files.)"""
    return ROOT / path.lstrip("/") if elsewhere() else Path(path)


def elsewhere() -> bool:
    """Whether process 1 has another mount namespace than this process; False if that cannot be read."""
    try:
        first, own = (os.stat(name).st_ino for name in MOUNTS)
        return first != own
    except OSError:
        return False
