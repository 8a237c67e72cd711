# SPDX-License-Identifier: Apache-2.0
"""Gives memory back to the kernel that the C library keeps after it was freed."""

from __future__ import annotations

import ctypes
import gc
import mmap
from contextlib import suppress
from pathlib import Path


def trim() -> None:
    """Frees unreachable objects, and returns the free pages of the heap."""
    gc.collect()
    return_free_pages()


def return_free_pages() -> None:
    """Returns the free pages of the heap, also those between used ones. Elsewhere than with glibc the heap stays as it is."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Resident memory of this process, bytes; 0 = procfs cannot be read."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * mmap.PAGESIZE
