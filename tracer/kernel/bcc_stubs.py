# SPDX-License-Identifier: Apache-2.0
"""The "kernel source" that bcc insists on: a directory of almost empty headers, so that no kernel header is needed.

bcc's loader looks for include/linux/kconfig.h under $BCC_KERNEL_SOURCE, and its own helpers include a few headers by name, some
from the directory of the architecture that it compiles for. Nodes have no kernel headers, and compiling against them breaks on
new kernels (bcc issues 5231, 5451, 5525). The few headers asked for lie in bpf/stub/ where bcc looks for them. It only reads
them: a run writes no temporary file, which would stay behind after `kill -9` and fail where nothing can be written.
"""

from __future__ import annotations

from pathlib import Path

from tracer.events import bpf_source


def directory() -> Path:
    """What $BCC_KERNEL_SOURCE has to name."""
    return bpf_source.directory() / "stub"
