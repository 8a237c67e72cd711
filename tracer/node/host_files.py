# SPDX-License-Identifier: Apache-2.0
"""Where the node's own files are: also for a tracer in a container, below what process 1 sees as /.

So a container needs no directory of the node mounted into it, and none is made on the node where it does not exist.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/proc/1/root")
MOUNTS = ("/proc/1/ns/mnt", "/proc/self/ns/mnt")


def of_node(path: str) -> Path:
    """A path that leads to the node's file of that name. (Links to absolute paths on the way would lead to our own files.)"""
    return ROOT / path.lstrip("/") if elsewhere() else Path(path)


def elsewhere() -> bool:
    """Whether process 1 has other files than this process. False where that cannot be seen."""
    try:
        first, own = (os.stat(name).st_ino for name in MOUNTS)
        return first != own
    except OSError:
        return False
