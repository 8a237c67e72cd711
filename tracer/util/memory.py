# SPDX-License-Identifier: Apache-2.0
"""How memory is freed: when Python looks for unreachable objects, and what goes back to the kernel."""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MANY_OBJECTS = 20_000
"""Number of new containers after which Python looks for unreachable ones in a block of `few_collections`; else 700."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
KEPT_BYTES, MAPPED_BYTES = 256 << 20, 32 << 20
"""In a block of `reused_heap`: freed bytes that the end of the heap keeps, and size from which memory is mapped for itself, of
which 32 MB is the largest that glibc takes."""


@contextmanager
def few_collections() -> Iterator[None]:
    """A block that makes many objects and few cycles: looking for unreachable ones takes a tenth of its time otherwise."""
    before = gc.get_threshold()
    gc.set_threshold(MANY_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def reused_heap() -> Iterator[None]:
    """A block that makes and frees blocks of megabytes: freed memory stays in the heap until its end.

    glibc would give it back to the kernel, and would get it again page by page. Elsewhere than with glibc nothing changes. The
    parameters stay as they are after the first block, because glibc cannot say what they were; only free pages go back.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    try:
        yield
    finally:
        return_free_pages()


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
