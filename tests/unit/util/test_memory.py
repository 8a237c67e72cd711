# SPDX-License-Identifier: Apache-2.0
"""Memory that was freed goes back to the kernel."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tracer.util import memory

ROOT = Path(__file__).resolve().parents[3]
KEPT = """
import os
from tracer.util import memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

blocks = [bytes(100_000) for _ in range(600)]
last = bytes(100_000)  # keeps the end of the heap where it is
before = resident()
del blocks
kept = resident()
memory.trim()
print(before - kept, before - resident())
"""

REUSED = """
import resource
from contextlib import nullcontext
from tracer.util import memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        blocks = [bytearray(6_000_000) for _ in range(3)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return memory.resident_bytes()

first = faults()
before = resident()
with memory.reused_heap():
    faults()
    print(first, faults(), resident() - before)
print(resident() - before)
"""


def test_freed_blocks_go_back() -> None:
    ran = subprocess.run([sys.executable, "-c", KEPT], cwd=ROOT, capture_output=True, text=True, check=True)
    _, given_back = map(int, ran.stdout.split())
    assert given_back > 30_000_000


def test_a_reused_heap_is_not_fetched_page_by_page() -> None:
    ran = subprocess.run([sys.executable, "-c", REUSED], cwd=ROOT, capture_output=True, text=True, check=True)
    without, reused, kept, kept_afterwards = map(int, ran.stdout.split())
    assert without > 20_000 and reused < without // 20
    assert kept > 8_000_000 and kept_afterwards < 2_000_000, "at the end of the block it goes back"


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    memory.trim()
    with memory.reused_heap():
        pass


def test_collections_are_few_in_a_block() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), memory.few_collections():
        assert gc.get_threshold() == (memory.MANY_OBJECTS, *before[1:]) and before[0] < memory.MANY_OBJECTS
        raise KeyError
    assert gc.get_threshold() == before
