# SPDX-License-Identifier: Apache-2.0
"""Writes docs/matrix.md from the results of the kernels of the matrix (tests/kernel/matrix.py).

    python -m tests.support.matrix_table build/matrix docs/matrix.md 5.10 6.1 6.12 7.2

The last line has the number of tests that passed. The status is 1 when one failed, or when the tests of a kernel did not end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HEAD = """# What is reported on which kernel

Written by `make matrix`, which boots each kernel and runs the same tests on it; `make test` does so on 5.10, 6.1 and 6.12.
"""
REPORTED = """
## What is reported, and how it is known

`observed`: a probe saw it. `derived`: computed from what probes saw. (The probes always see which rule of nftables acted. Where
the kernel does not show the generation of that rule, its text is taken from the nearest generation that was read: derived.)
"""
PROBES = """
## Probes

How each probe is attached. `*`: this kernel (before 5.11) has no type information for its modules, so the places of the
function's arguments and of the structures' fields come from a table (`tracer/kernel/module_layouts_5_10.py`). `-`: not
available.
"""
TESTS = """
## Tests

Tests that passed, of all tests. `-`: this kernel has nothing to test there; the reason is below.
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
    ]), REPORTED]  # fmt: skip
    for backend, words in BACKENDS.items():
        of = [k["reported"].get(backend, {}) for k in kernels]
        parts.append(table(words, kernels, [(row, _reported(backend, row)) for row in merged(of, list)]))
    probes = merged(kernels, lambda k: k["facts"].get("probes", ()))
    parts += [PROBES, table("", kernels, [(name, _probe(name)) for name in probes])]
    refused = (f"{k['kernel']}: {name}: {why}" for k in kernels for name, why in k["facts"].get("refused", {}).items())
    parts.append(_list(refused))
    about = merged(kernels, lambda k: k["tests"])
    parts += [TESTS, table("", kernels, [(name, _passed(name)) for name in about])]
    parts.append(_list(f"{k['kernel']}: {what}: {why}" for k in kernels for what, why in k["skipped"].items()))
    parts.append(_list(f"{k['kernel']}: `{test}` failed" for k in kernels for test in k["failed"]))
    return "".join(parts)


def _list(lines: Iterable[str]) -> str:
    found = sorted(set(lines))
    return "\n" * bool(found) + "".join(f"- {line}\n" for line in found)


def _reported(backend: str, row: str) -> Callable[[Kernel], object]:
    return lambda k: k["reported"].get(backend, {}).get(row, "test failed")


WAY_WORDS = {"RAWTP": "tracepoint", "BTFTP": "tracepoint"}
"""Words for ways of attaching; of all others, their names in small letters."""


def _probe(name: str) -> Callable[[Kernel], object]:
    def value(kernel: Kernel) -> str:
        way: str = kernel["facts"].get("probes", {}).get(name, "-")
        return WAY_WORDS.get(way, way.lower())

    return value


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
    ended = {kernel["kernel"] for kernel in kernels if kernel["ended"]}
    unfinished = [name for name in found if name not in ended]
    if kernels:
        Path(out).write_text(page(kernels))
    for kernel in kernels:
        for test in kernel["failed"]:
            print(f"{kernel['kernel']}: {test} failed")
        for test in kernel["again"]:
            print(f"{kernel['kernel']}: {test} passed at the second try")
        for test in kernel["died_during"]:
            print(f"{kernel['kernel']}: the machine died during {test} and was started once more")
    for name in unfinished:
        print(f"{name}: the machine ended before the tests did")
    passed, failed, _ = (sum(column) for column in zip(*map(counts, kernels), strict=True)) if kernels else (0, 0, 0)
    print(f"kernels={len(kernels)} passed={passed} failed={failed + len(unfinished)}")
    return int(failed + len(unfinished) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
