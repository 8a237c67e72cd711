# SPDX-License-Identifier: Apache-2.0
"""The CPU seconds of each step of a start.

    python3 -m bench.startup WAY             on this kernel: all steps, also attaching (needs root and BTF)
    python3 -m bench.startup WAY DIRECTORY   with another machine's kernel, from the files of save(): all steps but attaching

Each prints one line of JSON, in a separate process, so that imports count and no cache is warm.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

SYS_BTF, KALLSYMS = Path("/sys/kernel/btf"), Path("/proc/kallsyms")
RING_PAGES = 4096
MODULES = (
    *("ip_tables", "ip6_tables", "x_tables", "nf_tables"),
    *("nf_conntrack", "nf_nat", "nf_reject_ipv4", "nf_reject_ipv6"),
)


class Steps:
    """CPU seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name] = time.process_time() - began


def measure(way: str, directory: Path | None) -> dict[str, float]:
    """way: as Session's `only`. directory: written by save(), None for this machine's own kernel."""
    steps = Steps()
    with steps.step("import"):
        from tracer.kernel import attach_plan, bcc_program, generated_headers, xt_extensions
        from tracer.kernel.btf import KernelTypes
        from tracer.kernel.kallsyms import Symbols

        bcc = bcc_program.load_bcc()
        if not directory:  # needs numpy, which the host's Python with bcc may not have
            import tracer.kernel.session  # noqa: F401
    with steps.step("BTF"):
        types = KernelTypes(directory / "btf" if directory else SYS_BTF)
    with steps.step("symbols"):
        symbols = Symbols.running(directory / "kallsyms" if directory else KALLSYMS)
    can = attach_plan.KernelAbilities(False, False)
    if not way:
        saved = directory and json.loads((directory / "abilities.json").read_text())
        can = attach_plan.KernelAbilities(**saved) if saved else bcc_program.abilities(bcc)
    with steps.step("plan and headers"):
        planned, _ = attach_plan.plan(types, symbols, can, verbose=False)
        watched = xt_extensions.plan(types, symbols, can)
        texts = generated_headers.headers(types, symbols, planned, watched, RING_PAGES, os.cpu_count() or 1)
    with steps.step("compile"):
        compiled = bcc_program.BccProgram(bcc, texts)
    if not directory:
        with steps.step("attach"):
            compiled.attach(planned)
        with steps.step("detach"):
            compiled.close()
    steps.seconds["total"] = sum(steps.seconds.values())
    return steps.seconds


def save(directory: Path) -> None:
    """Copies the data of this machine's kernel that measure() needs: types, symbols, and what its bcc can attach."""
    from tracer.kernel.bcc_program import abilities, load_bcc

    shutil.rmtree(directory, ignore_errors=True)
    (directory / "btf").mkdir(parents=True)
    for name in ("vmlinux", *MODULES):
        if (SYS_BTF / name).exists():
            (directory / "btf" / name).write_bytes((SYS_BTF / name).read_bytes())
    (directory / "kallsyms").write_bytes(KALLSYMS.read_bytes())
    can: Any = abilities(load_bcc())
    (directory / "abilities.json").write_text(json.dumps(asdict(can)))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None)))
