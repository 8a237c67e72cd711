# SPDX-License-Identifier: Apache-2.0
"""The "kernel source" that bcc requires: a directory of almost empty headers, so that no kernel headers are needed.

bcc's loader looks for include/linux/kconfig.h under $BCC_KERNEL_SOURCE, and its own helpers include a few headers by name, some
from the directory of the target architecture. Nodes have no kernel headers, and compiling against them fails on new kernels
(bcc issues 5231, 5451, 5525). The required headers are in bpf/stub/, where bcc finds them. They are only read: a run writes
no temporary files, which would remain after `kill -9` and fail on a read-only file system.
"""

from __future__ import annotations

from pathlib import Path

from tracer.events import bpf_source


def directory() -> Path:
    """The value of $BCC_KERNEL_SOURCE."""
    return bpf_source.directory() / "stub"
