# SPDX-License-Identifier: Apache-2.0
"""KVM or emulation: determined by booting a guest, once per boot of this machine, because /dev/kvm may open and not work."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import boot, cache
from .host import LabError
from .kernels import Kernel
from .qemu import Accel

KVM_PATIENCE = 20.0
"""Limit for a machine with KVM to boot, s; it takes one or two."""

RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret"""


def choose(kernel: Kernel) -> Accel:
    """KVM or emulation. `kernel`, with its images built, is booted for the trial; LAB_ACCEL=tcg|kvm skips the trial.

    LabError if this machine is not x86-64, or LAB_ACCEL has another value.
    """
    if platform.machine() != "x86_64":
        raise LabError(f"the guests are x86-64, this machine is {platform.machine()}")
    requested = os.environ.get("LAB_ACCEL", "")
    if requested not in ("", "tcg", "kvm"):
        raise LabError(f"LAB_ACCEL={requested}: tcg or kvm")
    if requested == "kvm":
        return Accel("kvm")
    with cache.locked("host"):  # a second run waits for the answer, and does not try itself
        usable = not requested and os.access("/dev/kvm", os.R_OK | os.W_OK)
        if usable and _remembered("kvm", lambda: int(kvm_works(kernel))):
            return Accel("kvm")
        return Accel("tcg", _remembered("tsc_khz", measure_tsc))


def kvm_works(kernel: Kernel) -> bool:
    """Whether a machine with KVM boots and runs a command."""
    print(f"lab: trying KVM (at most {KVM_PATIENCE:g} s, once per boot of this machine)", file=sys.stderr)
    outcome = boot.run(boot.Request(kernel, ("true",), Accel("kvm"), timeout=KVM_PATIENCE))
    return outcome.status == 0


def measure_tsc() -> int:
    """The rate of this machine's time stamp counter, kHz; an emulated one has the same rate."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(RDTSC)
    rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    first, began = rdtsc(), time.monotonic_ns()
    time.sleep(0.3)
    last, ended = rdtsc(), time.monotonic_ns()
    return int((last - first) * 1_000_000 // (ended - began))


def _remembered(name: str, determine: Callable[[], int]) -> int:
    """A value that holds for this boot of the machine: from the cache, else determined and cached."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path = cache.directory() / f"host-{boot_id}.json"
    facts: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    if name not in facts:
        facts[name] = determine()
        for old in cache.directory().glob("host-*.json"):
            if old != path:
                cache.remove(old)
        fresh = path.with_suffix(".tmp")
        fresh.write_text(json.dumps(facts) + "\n")
        fresh.rename(path)
    return facts[name]
