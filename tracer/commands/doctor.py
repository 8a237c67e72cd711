# SPDX-License-Identifier: Apache-2.0
"""Says what will and will not work on this machine, and why, before anything is attached.

Nothing is compiled, attached or changed, no module is loaded, and nothing is raised for what is missing: each becomes a
Fact.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from tracer import render
from tracer.errors import NoBcc, NoBtf, NoProbe, NotRoot
from tracer.kernel import struct_layouts
from tracer.kernel.attach_plan import KernelAbilities, PlannedProbe, UnavailableProbe, plan
from tracer.kernel.bcc_program import abilities, load_bcc
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.probes import PROBES
from tracer.kube import checks as kube_doctor
from tracer.model.check import CheckResult, State
from tracer.node.capabilities import NEEDED, held, lockdown_mode, lost, mask
from tracer.node.machine import Machine
from tracer.render.base import hang_up
from tracer.rules import backends

WAYS = {"RAWTP": "raw tracepoint", "FENTRY": "fentry", "FEXIT": "fexit", "KPROBE": "kprobe", "KRETPROBE": "kretprobe"}

_SLOWER = "kprobes there, at about twice the cost"


def gather(machine: Machine | None = None, load: Callable[[], ModuleType] = load_bcc) -> list[CheckResult]:
    """Everything worth knowing, in the order in which a run would fail over it. load: gives bcc or raises NoBcc."""
    machine, uname = machine or Machine(), os.uname()
    symbols = _symbols(machine)
    types, btf = _types(machine)
    can, libraries = _libraries(load)
    facts = [
        CheckResult("kernel", "ok", f"{uname.sysname} {uname.release} on {uname.machine}"),
        rights(machine, os.geteuid()),
        lockdown(machine),
        addresses(machine),
        btf,
        *libraries,
    ]
    if types:
        try:
            facts.append(module_btf(types, machine.modules()))
            facts += probes(types, symbols, can, machine.modules(), machine.has("proc/net/if_inet6"))
        except NoBtf as e:  # a module's BTF is damaged
            facts.append(CheckResult("module BTF", "missing", str(e).rstrip("."), e.status))
    nft_loaded = symbols.module_of("nft_do_chain") is not None
    return facts + list(backends.gather(machine, nft_loaded))


def run(form: str, kubeconfig: str | None = None) -> int:
    """The command `k8snet-trace doctor`; returns its exit status."""
    facts = gather() + list(kube_doctor.gather(kubeconfig))
    code = exit_status(facts)
    try:
        render.find(form)().doctor(facts, code)
    except BrokenPipeError:
        hang_up(sys.stdout)
    return code


def exit_status(results: Iterable[CheckResult]) -> int:
    """0: a default run loses nothing; 1: it loses something; else the status with which a run would fail, first cause
    first (tracer/errors.py)."""
    found = {fact.status for fact in results}
    return min((s for s in found if s > 1), default=max(found, default=0))


def _held(machine: Machine) -> int:
    return held(machine.read_quietly("proc/self/status"))


def rights(machine: Machine, euid: int) -> CheckResult:
    """Root, and the capabilities that root may have lost in a container."""
    mine = _held(machine)
    if euid != 0:
        return CheckResult("rights", "missing", "not root: run it with sudo", NotRoot.status)
    if not mine & mask((NEEDED,)):
        return CheckResult("rights", "missing", f"root without {NEEDED}: run the container privileged", NotRoot.status)
    return next(iter(lacking(mine, 1)), CheckResult("rights", "ok", "root"))


def lacking(mine: int, status: int = 0) -> list[CheckResult]:
    """What a run with these capabilities (a mask) does not tell, as one fact of that status; none when it tells everything."""
    lacks = lost(mine)
    return [CheckResult("rights", "degraded", lacks, status)] if lacks else []


def lockdown(machine: Machine) -> CheckResult:
    """Lockdown's confidentiality forbids kprobes and reading kernel memory from BPF; integrity forbids neither."""
    mode = lockdown_mode(machine.read_quietly("sys/kernel/security/lockdown"))
    if mode == "confidentiality":
        return CheckResult("lockdown", "missing", f"{mode}: forbids kprobes and reading kernel memory", NoProbe.status)
    return CheckResult("lockdown", "ok", mode)


def addresses(machine: Machine) -> CheckResult:
    """A drop's function is found by its address; the kernel may give zeros instead."""
    try:
        with (machine.root / "proc/kallsyms").open(encoding="utf-8", errors="replace") as lines:
            shown = any(int(line.split()[0], 16) for line, _ in zip(lines, range(1000), strict=False))
    except OSError:
        shown = False
    if shown:
        return CheckResult("symbols", "ok", "a drop is named by its function")
    why = "no CAP_SYSLOG" if not _held(machine) & mask(("CAP_SYSLOG",)) else "see kernel.kptr_restrict"
    return CheckResult("symbols", "degraded", f"addresses are hidden ({why}): a drop's function has no name", 1)


def _symbols(machine: Machine) -> Symbols:
    try:
        return Symbols.running(machine.root / "proc/kallsyms")
    except OSError:
        return Symbols(())


def _types(machine: Machine) -> tuple[KernelTypes | None, CheckResult]:
    try:
        types = KernelTypes(machine.root / "sys/kernel/btf")
        struct_layouts.header(types)  # only its refusal is of interest here
    except NoBtf as e:
        return None, CheckResult("BTF", "missing", str(e).rstrip("."), e.status)
    return types, CheckResult("BTF", "ok", "vmlinux describes its types")


def module_btf(types: KernelTypes, modules: set[str]) -> CheckResult:
    """modules: those that are loaded. What the lack costs is said at each probe."""
    wanted = sorted(({p.module for p in PROBES} | {row.module for row in struct_layouts.LAYOUTS}) & modules)
    lack = [name for name in wanted if types.module(name) is None]
    if lack:
        return CheckResult("module BTF", "degraded", f"none for {', '.join(lack)} (kernels before 5.11 give modules none)")
    return CheckResult("module BTF", "ok", ", ".join(wanted) or "netfilter is built in or not loaded")


def _libraries(load: Callable[[], ModuleType]) -> tuple[KernelAbilities | None, list[CheckResult]]:
    """bcc, and the better ways to attach, which depend on it and on the kernel."""
    unknown = CheckResult("fentry", "degraded", "not known without bcc")
    try:
        bcc = load()
        can = abilities(bcc)
    except NoBcc as e:
        return None, [CheckResult("bcc", "missing", str(e).rstrip("."), e.status), unknown]
    except Exception as e:  # a library that does not fit the Python files fails in its own ways
        return None, [CheckResult("bcc", "missing", f"it is broken: {e}", NoBcc.status), unknown]
    where = Path(bcc.__file__ or "").parent
    found = CheckResult("bcc", "ok", f"{getattr(bcc, '__version__', 'unknown version')} in {where}")
    if can.module_fentry:
        return can, [found, CheckResult("fentry", "ok", "for the kernel and its modules")]
    if can.fentry:
        return can, [found, CheckResult("fentry", "degraded", f"not for modules (bcc before 0.28): {_SLOWER}")]
    return can, [found, CheckResult("fentry", "degraded", f"this kernel or bcc has none: {_SLOWER}")]


def probes(
    types: KernelTypes, symbols: Symbols, can: KernelAbilities | None, modules: set[str], has_ipv6: bool
) -> list[CheckResult]:
    """A fact for each row of the probe table, in its order. can: None when it is not known how to attach."""
    planned, refused = plan(types, symbols, can or KernelAbilities(False, False), verbose=True)
    facts = {row.probe.name: _without(row, modules, has_ipv6) for row in refused}
    facts |= {row.probe.name: _with(row, known=can is not None) for row in planned}
    return [facts[probe.name] for probe in PROBES]


def _with(row: PlannedProbe, known: bool) -> CheckResult:
    how = f" by {WAYS[row.way]}" if known else ""
    guess = " (no BTF: its arguments are taken to be where they always were)" if row.assumed else ""
    state: State = "degraded" if row.assumed else "ok"
    return CheckResult(f"probe {row.probe.name}", state, f"{row.symbol}{how}: {row.probe.tells}{guess}")


def _without(row: UnavailableProbe, modules: set[str], has_ipv6: bool) -> CheckResult:
    """What it means that a row cannot run: nothing, where this kernel does not do what it watches."""
    probe, subject = row.probe, f"probe {row.probe.name}"
    if probe.needed:
        return CheckResult(subject, "missing", f"{row.why}, and nothing can be traced without it", NoProbe.status)
    unloaded = probe.module and probe.module not in modules and row.why.endswith("is not loaded")
    if unloaded or (probe.name.endswith("6") and not has_ipv6):
        return CheckResult(subject, "ok", f"nothing to watch: {row.why}")
    return CheckResult(subject, "missing", f"{row.why}; not shown: {probe.tells}", 0 if probe.verbose else 1)
