# SPDX-License-Identifier: Apache-2.0
"""Writes docs/matrix.md from what the kernels of the matrix said (tests/kernel/matrix.py).

    python -m tests.support.matrix_table build/matrix docs/matrix.md 5.10 6.1 6.12 7.2

The last line says how many tests passed; the status is 1 when one failed, or when a kernel said nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HEAD = """# What is told on which kernel

Written by `make matrix`, which boots each kernel and goes through the same tests on it (`make test` does, too).
"""
TOLD = """
## What is told, and how it is known

`observed`: a probe saw it. `derived`: computed from what probes saw. (Which rule of
nftables acted is always seen; where the kernel does not tell of which generation it was, its text is that of the nearest one
that was read, and that is derived.)
"""
PROBES = """
## Probes

How each is attached. `*`: the kernel does not describe its modules (those before 5.11), so where the function's arguments
and the fields of its structures are is not read from it but known (`tracer/kernel/module_layouts_5_10.py`). `-`: not told.
"""
TESTS = """
## Tests

Passed, of how many; `-`: this kernel has nothing to test there, and why stands below.
"""
BACKENDS = {"legacy": "legacy iptables", "iptables-nft": "iptables-nft", "nftables": "nftables"}

Kernel = dict[str, Any]


def table(first: str, kernels: list[Kernel], rows: Iterable[tuple[str, Callable[[Kernel], object]]]) -> str:
    """A table in Markdown with a column for each kernel."""
    names = [str(k["kernel"]) for k in kernels]
    lines = [f"| {first} | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    lines += [f"| {name} | {' | '.join(str(cell(k)) for k in kernels)} |" for name, cell in rows]
    return "\n" + "\n".join(lines) + "\n"


def merged(kernels: list[Kernel], names: Callable[[Kernel], Iterable[str]]) -> list[str]:
    """All names, in the order of the newest kernel that has them."""
    return list(dict.fromkeys(name for kernel in reversed(kernels) for name in names(kernel)))


def counts(kernel: Kernel) -> list[int]:
    """Tests passed, failed and skipped."""
    return [sum(column) for column in zip(*kernel["tests"].values(), strict=True)] or [0, 0, 0]


def page(kernels: list[Kernel]) -> str:
    """docs/matrix.md."""
    parts = [HEAD, table("", kernels, [
        ("release", lambda k: k["release"]),
        ("bcc", lambda k: k["bcc"]),
        ("functions of rules watched", lambda k: k["facts"].get("watched", 0)),
        ("tests passed", lambda k: counts(k)[0]),
        ("tests failed", lambda k: counts(k)[1]),
        ("of those passed, at the second try", lambda k: len(k["again"])),
        ("minutes, in emulation", lambda k: f"{k['seconds'] / 60:.1f}"),
    ]), TOLD]  # fmt: skip
    for backend, words in BACKENDS.items():
        of = [k["told"].get(backend, {}) for k in kernels]
        parts.append(table(words, kernels, [(row, _told(backend, row)) for row in merged(of, list)]))
    probes = merged(kernels, lambda k: k["facts"].get("probes", ()))
    parts += [PROBES, table("", kernels, [(tells, _probe(tells)) for tells in probes])]
    refused = (f"{k['kernel']}: {tells}: {why}" for k in kernels for tells, why in k["facts"].get("refused", {}).items())
    parts.append(_list(refused))
    about = merged(kernels, lambda k: k["tests"])
    parts += [TESTS, table("", kernels, [(name, _passed(name)) for name in about])]
    parts.append(_list(f"{k['kernel']}: {what}: {why}" for k in kernels for what, why in k["skipped"].items()))
    parts.append(_list(f"{k['kernel']}: `{test}` failed" for k in kernels for test in k["failed"]))
    return "".join(parts)


def _list(lines: Iterable[str]) -> str:
    found = sorted(set(lines))
    return "\n" * bool(found) + "".join(f"- {line}\n" for line in found)


def _told(backend: str, row: str) -> Callable[[Kernel], object]:
    return lambda k: k["told"].get(backend, {}).get(row, "test failed")


def _probe(tells: str) -> Callable[[Kernel], object]:
    return lambda k: k["facts"].get("probes", {}).get(tells, "-").lower().replace("rawtp", "tracepoint")


def _passed(name: str) -> Callable[[Kernel], object]:
    def cell(kernel: Kernel) -> str:
        passed, failed, _ = kernel["tests"].get(name, (0, 0, 0))
        return f"{passed} of {passed + failed}" if passed + failed else "-"

    return cell


def main(argv: list[str]) -> int:
    """0, or 1 when something failed."""
    directory, out, *names = argv
    names.sort(key=lambda name: [int(part) for part in name.split(".")])
    found = {name: Path(directory) / f"{name}.json" for name in names}
    kernels = [json.loads(path.read_text()) for path in found.values() if path.exists()]
    silent = [name for name, path in found.items() if not path.exists()]
    if kernels:
        Path(out).write_text(page(kernels))
    for kernel in kernels:
        for test in kernel["failed"]:
            print(f"{kernel['kernel']}: {test} failed")
        for test in kernel["again"]:
            print(f"{kernel['kernel']}: {test} passed at the second try")
    for name in silent:
        print(f"{name}: the machine ended before the tests did")
    passed, failed, _ = (sum(column) for column in zip(*map(counts, kernels), strict=True)) if kernels else (0, 0, 0)
    print(f"kernels={len(kernels)} passed={passed} failed={failed + len(silent)}")
    return int(failed + len(silent) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
