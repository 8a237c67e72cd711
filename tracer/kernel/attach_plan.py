# SPDX-License-Identifier: Apache-2.0
"""Chooses, for each row of the probe table, the symbol on this kernel, the way of attaching and the positions of the
arguments; or gives the reason why the row is not available.

Ways of attaching, cheapest first: raw tracepoint; fentry/fexit, which need BTF of the function's module, the kernel's
trampolines and a bcc that supports them (module functions since bcc 0.28); kprobe/kretprobe, which need nothing. A return
probe by fexit also has the arguments and costs about half of a kprobe with a kretprobe (docs/performance.md).
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tracer.kernel.bcc_library import BccLibrary
from tracer.kernel.btf import KernelTypes
from tracer.kernel.bytecode import call_number, load_constant
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.probes import ENTRY, PROBES, TRACEPOINT, Probe
from tracer.kernel.struct_layouts import LAYOUTS


@dataclass(frozen=True)
class KernelAbilities:
    """What the installed bcc and the kernel can attach.

    Attributes:
        fentry: fentry for functions of vmlinux.
        module_fentry: fentry also for functions of modules.
    """

    fentry: bool
    module_fentry: bool


TRAMPOLINES = "bpf_trampoline_link_prog"
"""The kernel function without which there is neither fentry nor fexit."""
FENTRY_MACHINES = ("x86_64",)
"""Machine types on which fentry is used; the kernel has trampolines for others, too, on which no test has run."""


def abilities(library: BccLibrary, symbols: Symbols) -> KernelAbilities:
    """What can be attached on this machine. fentry for modules is used where bcc can do it, too."""
    fentry = platform.machine() in FENTRY_MACHINES and symbols.module_of(TRAMPOLINES) is not None
    return KernelAbilities(fentry, fentry and library.module_fentry)


_NUMBERS = {probe.name: number for number, probe in enumerate(PROBES)}


@dataclass(frozen=True)
class PlannedProbe:
    """A row that can run on this kernel.

    Attributes:
        probe: The row of the probe table.
        symbol: The kernel function or tracepoint.
        module: Its module, "vmlinux" = the kernel itself.
        way: Way of attaching: RAWTP, BTFTP (a raw tracepoint with arguments of known type), FENTRY, FEXIT, KPROBE or KRETPROBE.
        positions: Positions of the row's arguments, from 1; 0 = this kernel has no such argument.
        parameters: Number of the function's parameters.
        program: Name of the program; rows with the same code share one.
        assumed: The positions are not from BTF, but the row's fallback.
    """

    probe: Probe
    symbol: str
    module: str
    way: str
    positions: tuple[int, ...]
    parameters: int
    program: str
    assumed: bool = False

    @property
    def programs(self) -> tuple[tuple[str, str], ...]:
        """(name, way) of each program of the row; a kretprobe comes with a kprobe that keeps the arguments."""
        entry = ((f"enter_{self.program}", "KPROBE"),) if self.way == "KRETPROBE" else ()
        return ((self.program, self.way), *entry)

    @property
    def is_direct(self) -> bool:
        """Whether fields are read by plain loads."""
        return self.way in DIRECT and self.probe.typed

    @property
    def number(self) -> int:
        return _NUMBERS[self.probe.name]


@dataclass(frozen=True)
class UnavailableProbe:
    """A row that cannot run on this kernel, and the reason."""

    probe: Probe
    why: str


DIRECT = ("BTFTP", "FENTRY", "FEXIT")
"""Ways of attaching with arguments of known type, so that fields are read by plain loads."""

_STRUCT_MODULE = {row.struct: row.module for row in LAYOUTS}


def can_run(probe: Probe, types: KernelTypes, symbols: Symbols) -> str:
    """The reason why a row cannot run on this kernel; "" = it can."""
    if probe.at == TRACEPOINT:
        found = types.vmlinux.tracepoint_parameters(probe.symbols[0])
        return "" if found else f"the kernel has no tracepoint {probe.symbols[0]}"
    if not any(symbols.module_of(s) for s in probe.symbols):
        if probe.module and probe.module not in symbols.loaded:
            return f"module {probe.module} is not loaded"
        return f"{probe.module or 'the kernel'} has no function {' nor '.join(probe.symbols)}"
    for struct in probe.requires:
        if not any(source.structure_size(struct) for source in types.layout_sources(_STRUCT_MODULE[struct])):
            return f"struct {struct} is not described by BTF (before 5.11 modules have none)"
    return ""


def plan(
    types: KernelTypes,
    symbols: Symbols,
    abilities: KernelAbilities,
    verbose: bool,
    rules: bool = True,
    lookups: bool = False,
    programs: bool = False,
) -> tuple[list[PlannedProbe], list[UnavailableProbe]]:
    """Splits the probe table into available and unavailable rows.

    Rows of a kind are included by verbose, rules, lookups and programs.
    """
    is_wanted = {"verbose": verbose, "rules": rules, "lookups": lookups, "programs": programs}
    planned: list[PlannedProbe] = []
    refused: list[UnavailableProbe] = []
    for probe in PROBES:
        if any(getattr(probe, kind) and not wanted for kind, wanted in is_wanted.items()):
            continue
        why = can_run(probe, types, symbols)
        row = None if why else _choose(probe, types, symbols, abilities)
        if row:
            planned.append(row)
        else:
            refused.append(UnavailableProbe(probe, why or "the positions of its arguments are not known"))
    return _with_shared_programs(planned), refused


def _with_shared_programs(planned: list[PlannedProbe]) -> list[PlannedProbe]:
    """The rows, each with the program of the row that it is like, if the compiled code would be the same."""
    by_name = {row.probe.name: row for row in planned}
    out = []
    for row in planned:
        other = by_name.get(row.probe.like, row)
        same = (other.way, other.positions, other.parameters) == (row.way, row.positions, row.parameters)
        out.append(replace(row, program=other.program) if same else row)
    return out


def _choose(probe: Probe, types: KernelTypes, symbols: Symbols, abilities: KernelAbilities) -> PlannedProbe | None:
    program = f"on_{probe.name}"
    if probe.at == TRACEPOINT:
        parameters = types.vmlinux.tracepoint_parameters(probe.symbols[0]) or []
        positions = _positions(probe, parameters)
        if positions is None:
            return None
        way = "BTFTP" if abilities.fentry else "RAWTP"
        return PlannedProbe(probe, probe.symbols[0], "vmlinux", way, positions, len(parameters), program)
    for symbol in probe.symbols:
        module = symbols.module_of(symbol)
        if module is None:
            continue
        btf = types.module(module)
        found = btf.parameters(symbol) if btf else None
        if found is None:
            if probe.fallback and types.builtin_layouts:
                return PlannedProbe(probe, symbol, module, _kprobe(probe), probe.fallback, 0, program, True)
            continue
        positions = _positions(probe, found)
        if positions is None:
            continue
        # Trampolines take six arguments; x86 has more since kernel commit 473e3150e30a (6.6). Kprobes do everywhere.
        fits = len(found) <= 6
        if fits and (abilities.module_fentry or (abilities.fentry and module == "vmlinux")):
            way = "FENTRY" if probe.at == ENTRY else "FEXIT"
            return PlannedProbe(probe, symbol, module, way, positions, len(found), program)
        return PlannedProbe(probe, symbol, module, _kprobe(probe), positions, len(found), program)
    return None


def _kprobe(probe: Probe) -> str:
    return "KPROBE" if probe.at == ENTRY else "KRETPROBE"


def _positions(probe: Probe, parameters: list[tuple[str, str]]) -> tuple[int, ...] | None:
    found = tuple(_position(wanted, parameters) for wanted in probe.args)
    return None if None in found else tuple(p for p in found if p is not None)


def _position(argument: str, parameters: list[tuple[str, str]]) -> int | None:
    """The position of an argument, from 1; 0 = absent, and it is optional ("TYPE|"); None = absent, but required."""
    for alternative in argument.split("|"):
        if not alternative:
            return 0
        kind, _, which = alternative.partition("#")
        places = [i for i, (_, t) in enumerate(parameters, 1) if t == kind]
        if len(places) >= int(which or 1):
            return places[int(which or 1) - 1]
    return None


NESTED, PAIRED = "nested", "paired"
"""Names of constants: MOST_ROWS in the second program of a pair, else 0; 1 in both programs of a pair, else 0
(bpf/core/nested_call.h)."""
FUNCTIONS = ("parse_header", "track_by_header")
"""Functions of the text that programs call, instead of containing a copy: FUNCTION of bpf/core/probe.h."""
QUEUE_CALLERS = {"queue_verdict", "queue_verdicts", "queue_emptied", "queue_device", "queue_unhooked"}
"""Rows of the functions that give packets back from a queue (NFQUEUE)."""
CALLING_NONE = ("synack4", "synack6", "accept4", "accept6")
"""Rows of programs that call no function, and that are attached by kprobe on kernels where all others have typed arguments."""
COPIES = {"direct": True, "copied": False}
"""Suffix of a function's copy -> whether it is for programs attached in one of the DIRECT ways."""


def functions(planned: list[PlannedProbe]) -> str:
    """A part of plan.h: the copies of FUNCTIONS that the rows need, and the numbers in calls of them."""
    needed = {p.is_direct for p in planned if p.probe.name not in CALLING_NONE}
    lines = [f"#define {copy.upper()}_FUNCTIONS" for copy, is_direct in COPIES.items() if is_direct in needed]
    names = [f"{name}_{copy}" for name in FUNCTIONS for copy in COPIES]
    return "".join(f"{line}\n" for line in lines + [f"#define CALL_{name} {call_number(name):#x}ULL" for name in names])


def addresses(variables: Mapping[str, int]) -> str:
    """A part of plan.h: ADDRESS_name for each kernel variable that is read by its address.

    The addresses differ at each boot, so the programs get them when they are loaded (tracer/kernel/bytecode.py).
    """
    constants = {name: load_constant(f"address of {name}") for name in sorted(variables)}
    return "".join(f"#define ADDRESS_{name} load_constant({constant:#x}ULL)\n" for name, constant in constants.items())


def _get(argument: str, position: int) -> str:
    """The macro of bpf/core/probe.h that reads an argument; pointers to numbers have their own macro."""
    of_number = "##_OF_NUMBER" if argument.startswith("_Bool *") else ""
    return f"GET{of_number}(ctx, {position})" if position else "0"


def header(planned: list[PlannedProbe], ring_pages: int, cpus: int) -> str:
    """The text of plan.h: the macros of each row for bpf/core/probe.h. cpus: number of possible CPUs."""
    rows = {p.probe.name: p for p in planned}
    programs = Counter(p.program for p in planned)
    lines = [f"#define RING_PAGES {ring_pages}", f"#define CPUS {cpus}"]
    for number, probe in enumerate(PROBES):
        name, row = probe.name, rows.get(probe.name)
        lines.append(f"#define ROW_{name} {number}")
        is_compiled = row is not None and row.program == f"on_{name}"
        lines.append(f"#define WAY_{name} {row.way if row and is_compiled else 'OFF'}")
        if row and is_compiled:
            # A program of several rows gets the row's number when it is loaded.
            given = number if programs[row.program] == 1 else f"load_constant({load_constant('row'):#x}ULL)"
            args = ", ".join(_get(wanted, p) for wanted, p in zip(probe.args, row.positions, strict=True))
            lines.append(f"#define NUMBER_{name} {given}\n#define PROGRAM_{name} {row.program}")
            lines.append(f"#define ARGS_{name}(GET, ctx) {{ {args} }}")
            lines.append(f"#define RETURN_{name} {row.parameters + 1}\n#define DIRECT_{name} {int(row.is_direct)}")
    lines.append(f"#define NESTED_ROWS load_constant({load_constant(NESTED):#x}ULL)")
    lines.append(f"#define IS_PAIRED load_constant({load_constant(PAIRED):#x}ULL)")
    lines.append(f"#define RULE_STEPS {int('table4_begin' in rows or 'table6_begin' in rows)}")
    lines.append(f"#define SYNACK_SEEN {int('synack4' in rows)}")
    lines.append(f"#define QUEUE_CALLERS_SEEN {int(rows.keys() >= QUEUE_CALLERS)}")
    if any(row.probe.programs for row in planned):
        lines.append("#define WATCHES_PROGRAMS")
    if "drop" in rows and rows["drop"].positions[2]:
        lines.append("#define DROP_REASONS")
    return "\n".join(lines) + "\n" + functions(planned)
