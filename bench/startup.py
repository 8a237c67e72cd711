# SPDX-License-Identifier: Apache-2.0
"""The CPU seconds of each step of a start.

    python3 -m bench.startup WAY             on this kernel: all steps, also attaching (needs root and BTF)
    python3 -m bench.startup WAY DIRECTORY   with another machine's kernel, from the files of save(): all steps but attaching

Each prints one line of JSON, in a separate process, so that imports count. Processes that compile count, too. With programs in
the cache (K8SNET_TRACE_CACHE) nothing is compiled: the step is "cached programs" then.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracer.errors import NoProbe

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
        began = cpu_seconds()
        yield
        self.seconds[name] = cpu_seconds() - began


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(way: str, directory: Path | None) -> dict[str, float]:
    """way: as Session's `only`. directory: written by save(), None for this machine's own kernel."""
    steps = Steps()
    with steps.step("import"):
        import tracer.cli.main
        import tracer.commands.trace  # noqa: F401  (everything that the command imports)
        from tracer.kernel import attach_plan, bcc_library, cache_directory, generated_headers, program_source, xt_extensions
        from tracer.kernel.btf import KernelTypes
        from tracer.kernel.kallsyms import Symbols
        from tracer.kernel.loaded_programs import LoadedPrograms
        from tracer.kernel.program_cache import ProgramCache
        from tracer.kernel.symbol_cache import SymbolCache
    with steps.step("BTF"):
        types = KernelTypes(directory / "btf" if directory else SYS_BTF)
    with steps.step("symbols"):
        kept = SymbolCache(cache_directory.directory_of_environment()) if directory is None else None
        symbols = Symbols.running(directory / "kallsyms" if directory else KALLSYMS, cache=kept)
    with steps.step("plan and headers"):
        library, can = bcc_library.installed(), attach_plan.KernelAbilities(False, False)
        if not way:
            saved = directory and json.loads((directory / "abilities.json").read_text())
            can = attach_plan.KernelAbilities(**saved) if saved else attach_plan.abilities(library, symbols)
        planned, _ = attach_plan.plan(types, symbols, can, verbose=False)
        watched = xt_extensions.plan(types, symbols, can)
        texts = generated_headers.headers(types, symbols, planned, watched, RING_PAGES, os.cpu_count() or 1)
    with steps.step("cached programs"):
        cache = ProgramCache(cache_directory.directory_of_environment())
        source = program_source.ProgramSource(texts, types.digests(()), library, cache, print, lambda _: None)
        stored = source.stored()
        code = stored.code if stored else None
    if code is None:
        with steps.step("compile"):
            code = source.compiled()
            source.keep(code, frozenset())
    if not directory:
        with steps.step("attach"), suppress(NoProbe):  # a kernel without probes: the other steps count all the same
            programs = LoadedPrograms(code, types, symbols.variables)
            programs.attach(planned)
            programs.watch(watched)
        with steps.step("detach"):
            programs.close()
    steps.seconds["total"] = sum(steps.seconds.values())
    return steps.seconds


def save(directory: Path) -> None:
    """Copies the data of this machine's kernel that measure() needs: types, symbols, and what its bcc can attach."""
    from tracer.kernel.attach_plan import abilities
    from tracer.kernel.bcc_library import installed
    from tracer.kernel.kallsyms import Symbols

    shutil.rmtree(directory, ignore_errors=True)
    (directory / "btf").mkdir(parents=True)
    for name in ("vmlinux", *MODULES):
        if (SYS_BTF / name).exists():
            (directory / "btf" / name).write_bytes((SYS_BTF / name).read_bytes())
    (directory / "kallsyms").write_bytes(KALLSYMS.read_bytes())
    can: Any = abilities(installed(), Symbols.running(KALLSYMS))
    (directory / "abilities.json").write_text(json.dumps(asdict(can)))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None)))
