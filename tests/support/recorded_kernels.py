# SPDX-License-Identifier: Apache-2.0
"""Real kernels as the planner sees them: their functions, prototypes and structures, recorded in data/kernels.

    python3 -m tests.support.recorded_kernels DIRECTORY RELEASE > tests/data/kernels/6.12.json

records a kernel from its BTF and its kallsyms (DIRECTORY/btf, DIRECTORY/kallsyms, as bench.startup's save() writes them): only
what the probe table, the xtables extensions and the structure layouts need.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tracer.kernel import kernel_memory, module_layouts_5_10, struct_layouts, xt_extensions
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import VARIABLES, Symbols
from tracer.kernel.module_layouts_5_10 import Field
from tracer.kernel.probes import PROBES, TRACEPOINT
from tracer.kernel.session import Kernel

DATA = Path(__file__).parents[1] / "data/kernels"
ENUMS = tuple(dict.fromkeys(("skb_drop_reason", *(enum for enum, _, _ in struct_layouts.ENUMERATORS))))
MEMBERS = frozenset(name for _, name, _ in struct_layouts.ENUMERATORS)
FUNCTIONS = sorted(
    {s for p in PROBES if p.at != TRACEPOINT for s in p.symbols}
    | {kernel_memory.CAST}
    | {
        s
        for s, _ in (*xt_extensions.rows("match", xt_extensions.MATCHES), *xt_extensions.rows("target", xt_extensions.TARGETS))
    }
)
INSIDE = sorted({name for row in module_layouts_5_10.STRUCTURES.values() for name in row.given})

Data = dict[str, Any]


def record(types: KernelTypes, symbols: Symbols, release: str) -> Data:
    """The data of this kernel that tests need, as a JSON value."""
    functions: dict[str, dict[str, list[str] | None]] = {}
    for name in FUNCTIONS:
        for module in symbols.modules_of(name):
            btf = types.module(module)
            found = btf.parameters(name) if btf else None
            functions.setdefault(name, {})[module] = [kind for _, kind in found] if found is not None else None
    structures: dict[str, Any] = {}
    for row in struct_layouts.LAYOUTS:
        for btf in (types.module(row.module), types.vmlinux):
            size = btf.structure_size(row.struct) if btf else None
            if btf and size:
                fields = {path: btf.field(row.struct, path) for path in row.fields.split()}
                offsets = {p: [f.offset, f.size, f.kind, f.target, f.shift, f.width, f.element] for p, f in fields.items() if f}
                structures[row.struct] = [row.module if btf is not types.vmlinux else "vmlinux", size, offsets]
                break
    structures |= {name: ["vmlinux", size, {}] for name in INSIDE if (size := types.vmlinux.structure_size(name))}
    enums = {name: {k: v for k, v in types.vmlinux.enumerators(name).items() if v < 3 or k in MEMBERS} for name in ENUMS}
    modules = {m for m in {p.module for p in PROBES} if m and types.module(m)}
    for name in ENUMS:
        enums[name] = enums[name] or next((e for m in modules if (b := types.module(m)) and (e := b.enumerators(name))), {})
    return {
        "release": release,
        "modules described": types.modules_described,
        "variables": sorted(symbols.variables),
        "tracepoints": {
            name: [kind for _, kind in types.vmlinux.tracepoint_parameters(name) or ()]
            for p in PROBES if p.at == TRACEPOINT for name in p.symbols
        },
        "enums": enums,
        "structures": structures,
        "functions": functions,
    }  # fmt: skip


class RecordedBtf:
    """Answers as tracer.kernel.btf.Btf does, for one module or vmlinux."""

    def __init__(self, data: Data, module: str) -> None:
        self._data, self._module = data, module

    def _structure(self, name: str) -> Any:
        found = self._data["structures"].get(name)
        return found if found and found[0] in (self._module, "vmlinux") else None

    def structure_size(self, name: str) -> int | None:
        found = self._structure(name)
        return int(found[1]) if found else None

    def field(self, name: str, path: str) -> Field | None:
        found = self._structure(name)
        return Field(*found[2][path]) if found and path in found[2] else None

    def parameters(self, function: str) -> list[tuple[str, str]] | None:
        found = self._data["functions"].get(function, {}).get(self._module)
        return None if found is None else [("", kind) for kind in found]

    def tracepoint_parameters(self, name: str) -> list[tuple[str, str]] | None:
        found = self._data["tracepoints"].get(name)
        return [("", kind) for kind in found] if found else None

    def enumerators(self, name: str) -> dict[str, int]:
        return dict(self._data["enums"].get(name, {}))


class RecordedTypes(KernelTypes):
    """A kernel's recorded types."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self.vmlinux: Any = RecordedBtf(data, "vmlinux")

    @property
    def modules_described(self) -> bool:
        return bool(self._data["modules described"])

    def module(self, name: str) -> Any:
        if name in ("", "vmlinux"):
            return self.vmlinux
        return RecordedBtf(self._data, name) if self.modules_described else None


def load(name: str) -> Data:
    """The recorded kernel with this name."""
    data: Data = json.loads((DATA / f"{name}.json").read_text())
    return data


def without(data: Data, *names: str) -> Data:
    """The same kernel without these functions and structures, and without all of these modules."""
    functions = {
        function: {module: found for module, found in homes.items() if module not in names}
        for function, homes in data["functions"].items() if function not in names
    }  # fmt: skip
    structures = {name: row for name, row in data["structures"].items() if not {name, row[0]} & {*names}}
    return {**data, "functions": functions, "structures": structures}


def kernel(data: Data) -> Kernel:
    """A Kernel made from its record, with all modules loaded."""
    lines = [
        f"ffffffff81000000 T {name}" + f"\t[{module}]" * (module != "vmlinux")
        for name, modules in data["functions"].items() for module in modules
    ]  # fmt: skip
    lines += [f"ffffffffc0000000 d {name}\t[nf_tables]" for name in data["variables"]]
    return Kernel(RecordedTypes(data), Symbols(lines), data["release"])


if __name__ == "__main__":
    where = Path(sys.argv[1])
    recorded = record(KernelTypes(where / "btf"), Symbols.running(where / "kallsyms"), sys.argv[2])
    assert set(VARIABLES) >= set(recorded["variables"])
    for name, value in recorded.items():
        rows = value.items() if isinstance(value, dict) else ()
        inside = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows)
        print("{" if name == "release" else ",", f"{json.dumps(name)}:", f"{{\n{inside}\n }}" if inside else json.dumps(value))
    print("}")
