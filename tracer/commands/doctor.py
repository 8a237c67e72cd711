# SPDX-License-Identifier: Apache-2.0
"""The command `k8snet-trace doctor`: checks what works on this machine, what does not, and why.

It compiles, attaches and changes nothing, and loads no module. A missing part raises no error but becomes a CheckResult.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from tracer import render
from tracer.errors import NoBcc, NoBtf, NoProbe, NotRoot
from tracer.kernel import cgroup_programs, socket_programs, struct_layouts
from tracer.kernel.attach_plan import KernelAbilities, PlannedProbe, UnavailableProbe, abilities, plan
from tracer.kernel.attached_programs import ProgramCatalog
from tracer.kernel.bcc_library import installed, load_bcc
from tracer.kernel.btf import KernelTypes
from tracer.kernel.cache_directory import OFF, VARIABLE, directory_of_environment
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.lookup_programs import links as lookup_links
from tracer.kernel.probes import PROBES
from tracer.kernel.program_cache import ProgramCache
from tracer.kernel.session import Kernel
from tracer.model.check import CheckResult, State
from tracer.node import namespaces
from tracer.node.capabilities import NEEDED, held, lockdown_mode, lost, mask
from tracer.node.machine import Machine
from tracer.render.base import hang_up
from tracer.rules import backends

ATTACH_NAMES = {
    "RAWTP": "raw tracepoint",
    "BTFTP": "raw tracepoint",
    "FENTRY": "fentry",
    "FEXIT": "fexit",
    "KPROBE": "kprobe",
    "KRETPROBE": "kretprobe",
}

MOST_PROGRAMS = 6
"""Most programs that one result names."""
_SLOWER = "kprobes are used there, at about twice the cost"


def gather(
    machine: Machine | None = None, load: Callable[[], ModuleType] | None = load_bcc, kernel: Kernel | None = None
) -> list[CheckResult]:
    """Returns all results, in the order in which a run would fail.

    Args:
        machine: The machine to check; None = this one.
        load: Returns the bcc module or raises NoBcc; None = bcc is only looked for, which takes less time.
        kernel: The kernel of this machine; None = it is read.
    """
    machine, uname = machine or Machine(), os.uname()
    symbols = kernel.symbols if kernel else _symbols(machine)
    types, btf = _types(machine, kernel)
    can, libraries = _libraries(load, symbols)
    results = [
        CheckResult("kernel", "ok", f"{uname.sysname} {uname.release} on {uname.machine}"),
        rights(machine, os.geteuid()),
        lockdown(machine),
        addresses(machine),
        btf,
        *libraries,
        program_cache(),
    ]
    if types:
        try:
            results.append(module_btf(types, machine.modules()))
            results += probes(types, symbols, can, machine.modules(), machine.has("proc/net/if_inet6"))
        except NoBtf as e:  # a module's BTF is damaged
            results.append(CheckResult("module BTF", "missing", str(e).rstrip("."), e.status))
    nft_loaded = symbols.module_of("nft_do_chain") is not None
    return [*results, *backends.gather(machine, nft_loaded), connect_programs(machine), lookup_programs(machine)]


def run(form: str, kubeconfig: str | None = None, verbose: bool = False) -> int:
    """The command `k8snet-trace doctor`; returns its exit status. verbose: text lists each result."""
    from tracer.kube import checks as kube_doctor  # with the client of the API, which a run may not need

    results = gather() + list(kube_doctor.gather(kubeconfig))
    code = exit_status(results)
    try:
        render.find(form)(verbose=verbose).doctor(results, code)
    except BrokenPipeError:
        hang_up(sys.stdout)
    return code


def exit_status(results: Iterable[CheckResult]) -> int:
    """Returns the exit status of `doctor`.

    0: a default run shows everything. 1: it cannot show everything. Else: the status with which a run would fail; of several
    causes, the first one to fail (tracer/errors.py).
    """
    statuses = {fact.status for fact in results}
    return min((s for s in statuses if s > 1), default=max(statuses, default=0))


def _held(machine: Machine) -> int:
    return held(machine.read_quietly("proc/self/status"))


def rights(machine: Machine, euid: int) -> CheckResult:
    """Checks for root and for the capabilities that root can lack in a container."""
    mine = _held(machine)
    if euid != 0:
        return CheckResult("rights", "missing", "not root: run this command with sudo", NotRoot.status)
    if not mine & mask((NEEDED,)):
        return CheckResult("rights", "missing", f"root without {NEEDED}: run the container privileged", NotRoot.status)
    return next(iter(lacking(mine, 1)), CheckResult("rights", "ok", "root"))


def lacking(mine: int, status: int = 0) -> list[CheckResult]:
    """Returns what a run with these capabilities cannot show.

    Args:
        mine: The capabilities, as a bit mask.
        status: The exit status of the result.

    Returns:
        One result, or none if nothing is lacking.
    """
    lacks = lost(mine)
    return [CheckResult("rights", "degraded", lacks, status)] if lacks else []


def lockdown(machine: Machine) -> CheckResult:
    """Lockdown mode `confidentiality` forbids kprobes and reading kernel memory from BPF; `integrity` forbids neither."""
    mode = lockdown_mode(machine.read_quietly("sys/kernel/security/lockdown"))
    if mode == "confidentiality":
        return CheckResult("lockdown", "missing", f"{mode}: forbids kprobes and reading kernel memory", NoProbe.status)
    return CheckResult("lockdown", "ok", mode)


def addresses(machine: Machine) -> CheckResult:
    """Checks whether /proc/kallsyms has addresses, or zeros. They are needed to name the function that dropped a packet."""
    try:
        with (machine.root / "proc/kallsyms").open(encoding="utf-8", errors="replace") as lines:
            shown = any(int(line.split()[0], 16) for line, _ in zip(lines, range(1000), strict=False))
    except OSError:
        shown = False
    if shown:
        return CheckResult("symbols", "ok", "drops are shown with the kernel function")
    why = "no CAP_SYSLOG" if not _held(machine) & mask(("CAP_SYSLOG",)) else "see kernel.kptr_restrict"
    return CheckResult("symbols", "degraded", f"addresses are hidden ({why}): drops are shown without the kernel function", 1)


def _symbols(machine: Machine) -> Symbols:
    try:
        return Symbols.running(machine.root / "proc/kallsyms")
    except OSError:
        return Symbols(())


def _types(machine: Machine, kernel: Kernel | None) -> tuple[KernelTypes | None, CheckResult]:
    try:
        types = kernel.types if kernel else KernelTypes(machine.root / "sys/kernel/btf")
        struct_layouts.header(types)  # raises NoBtf if a needed structure is missing
    except NoBtf as e:
        return None, CheckResult("BTF", "missing", str(e).rstrip("."), e.status)
    return types, CheckResult("BTF", "ok", "present for vmlinux")


def module_btf(types: KernelTypes, modules: set[str]) -> CheckResult:
    """Checks the BTF of the loaded modules. The result of each probe says what a lack of BTF costs."""
    names = sorted(({p.module for p in PROBES} | {row.module for row in struct_layouts.LAYOUTS}) & modules)
    missing = [name for name in names if types.module(name) is None]
    if missing:
        return CheckResult(
            "module BTF", "degraded", f"none for {', '.join(missing)} (kernels before 5.11 have none for modules)"
        )
    return CheckResult("module BTF", "ok", ", ".join(names) or "netfilter is built in or not loaded")


def _libraries(load: Callable[[], ModuleType] | None, symbols: Symbols) -> tuple[KernelAbilities | None, list[CheckResult]]:
    """Checks bcc, and fentry, which needs support in bcc and in the kernel."""
    unknown = CheckResult("fentry", "degraded", "unknown without bcc")
    try:
        bcc = load() if load else None
        library = installed()
        can = abilities(library, symbols)
    except NoBcc as e:
        return None, [CheckResult("bcc", "missing", str(e).rstrip("."), e.status), unknown]
    except Exception as e:  # a library that does not match its Python files can raise any exception
        return None, [CheckResult("bcc", "missing", f"broken installation: {e}", NoBcc.status), unknown]
    version = getattr(bcc, "__version__", "") or library.version or "unknown version"
    where = Path(bcc.__file__ or "").parent if bcc else library.directory
    found = CheckResult("bcc", "ok", f"{version} in {where}")
    if can.module_fentry:
        return can, [found, CheckResult("fentry", "ok", "available for the kernel and its modules")]
    if can.fentry:
        return can, [found, CheckResult("fentry", "degraded", f"not available for modules (bcc before 0.28): {_SLOWER}")]
    return can, [found, CheckResult("fentry", "degraded", f"not supported by this kernel or bcc: {_SLOWER}")]


def program_cache() -> CheckResult:
    """Checks whether compiled programs are kept for the next start. Without this each start compiles them."""
    directory = directory_of_environment()
    if directory is None:
        return CheckResult("program cache", "ok", f"off: {VARIABLE}={OFF}")
    why = ProgramCache(directory).problem()
    if why:
        return CheckResult("program cache", "degraded", f"not usable: {why}; each start compiles the programs")
    return CheckResult("program cache", "ok", f"in {directory}")


def connect_programs(machine: Machine) -> CheckResult:
    """Checks for eBPF programs that may replace the address that a socket asks for: packets do not show that."""
    try:
        root = cgroup_programs.hierarchy(machine.root / "proc")
        found = socket_programs.at_connect(ProgramCatalog(), root) if root else []
    except OSError as e:
        return CheckResult("connect()", "degraded", f"not known whether programs replace addresses: {e.strerror}")
    if not found:
        return CheckResult("connect()", "ok", "no eBPF program at a cgroup replaces addresses")
    names = _listed(f"{each.program.text} ({', '.join(each.points)} of {each.program.cgroup}{_origin(each)})" for each in found)
    return CheckResult(
        "connect()", "degraded",
        f"may replace a Service's address, which is then in no packet, by {names}; the first packets of a socket say what it"
        " asked for", 1,
    )  # fmt: skip


def lookup_programs(machine: Machine) -> CheckResult:
    """Checks for eBPF programs that choose the socket of a packet, or refuse it, in namespaces of the node or with a name."""
    files = (machine.root / "proc/1/ns/net", machine.root / "proc/self/ns/net", *namespaces.named_files())
    inodes: dict[int, Path] = {}
    for path in files:
        with suppress(OSError):
            inodes.setdefault(path.stat().st_ino, path)
    try:
        found = socket_programs.of_lookup(ProgramCatalog(), inodes.values())
    except OSError as e:
        return CheckResult("sk_lookup", "degraded", f"not known whether programs choose sockets: {e.strerror}")
    if not found:
        return CheckResult("sk_lookup", "ok", "no eBPF program chooses sockets")
    names = _listed(each.program.text + _origin(each) for each in found)
    return CheckResult(
        "sk_lookup", "degraded",
        f"may choose the socket of a packet, or refuse it as if no socket listened, by {names}; the probes"
        " lookup4 and lookup6 show what they decide", 1,
    )  # fmt: skip


def _origin(found: socket_programs.SocketProgram) -> str:
    return f", {found.program.origin}"


def _listed(names: Iterable[str]) -> str:
    """The first names of a list, and the number of the others."""
    known = list(names)
    rest = len(known) - MOST_PROGRAMS
    return ", ".join(known[:MOST_PROGRAMS]) + (f" and {rest} more" if rest > 0 else "")


def probes(
    types: KernelTypes, symbols: Symbols, can: KernelAbilities | None, modules: set[str], has_ipv6: bool
) -> list[CheckResult]:
    """Returns a result for each row of the probe table, in its order. can: None if the attach methods are unknown."""
    abilities = can or KernelAbilities(False, False)
    planned, refused = plan(types, symbols, abilities, verbose=True, lookups=bool(lookup_links()), programs=True)
    results = {row.probe.name: _unavailable_result(row, modules, has_ipv6) for row in refused}
    results |= {row.probe.name: _attached_result(row, is_method_known=can is not None) for row in planned}
    return [results[probe.name] for probe in PROBES if probe.name in results]


def _attached_result(row: PlannedProbe, is_method_known: bool) -> CheckResult:
    how = f" by {ATTACH_NAMES[row.way]}" if is_method_known else ""
    guess = " (no BTF: assumes the usual order of its arguments)" if row.assumed else ""
    state: State = "degraded" if row.assumed else "ok"
    return CheckResult(f"probe {row.probe.name}", state, f"{row.symbol}{how}: {row.probe.shows}{guess}")


def _unavailable_result(row: UnavailableProbe, modules: set[str], has_ipv6: bool) -> CheckResult:
    """The result of a probe that cannot attach. It is `ok` where the kernel does not have what the probe watches."""
    probe, subject = row.probe, f"probe {row.probe.name}"
    if probe.needed:
        return CheckResult(subject, "missing", f"{row.why}; tracing is impossible without this probe", NoProbe.status)
    unloaded = probe.module and probe.module not in modules and row.why.endswith("is not loaded")
    if unloaded or (probe.name.endswith("6") and not has_ipv6):
        return CheckResult(subject, "ok", f"not needed: {row.why}")
    return CheckResult(subject, "missing", f"{row.why}; not shown: {probe.shows}", 0 if probe.verbose or probe.programs else 1)
