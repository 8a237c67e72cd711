# SPDX-License-Identifier: Apache-2.0
"""Programs from the cache or from the compiler: what a start does, and says, when the cache cannot be used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import recorded_kernels
from tests.support.compiling import compiled
from tracer.events import bpf_source
from tracer.kernel import attach_plan, bcc_compiler, generated_headers, program_source, xt_extensions
from tracer.kernel.attach_plan import KernelAbilities
from tracer.kernel.bcc_library import BccLibrary
from tracer.kernel.bpf_syscall import MapDefinition
from tracer.kernel.bytecode import Bytecode
from tracer.kernel.probes import PROBES
from tracer.kernel.program_cache import ProgramCache
from tracer.kernel.program_source import LARGE_ROWS, ProgramSource, split

CODE = Bytecode((MapDefinition("events", 27, 0, 0, 4096, 0),), {"on_hook": bytes(16)})
LIBRARY = BccLibrary("0.31", Path("/nowhere"), ("0.31", "libbcc.so 1 2"), True)
HEADERS = {"structs.h": "/* */", "plan.h": "#define WAY_hook FEXIT\n", "acts.h": "/* */"}


class Start:
    def __init__(self, cache: Path | None, **changed: Any) -> None:
        self.said: list[str] = []
        self.reported: list[str] = []
        given: dict[str, Any] = {"headers": HEADERS, "digests": [b"vmlinux", b"module"], "library": LIBRARY} | changed
        self.source = ProgramSource(
            given["headers"], given["digests"], given["library"], ProgramCache(cache), self.said.append, self.reported.append
        )


def test_kept_and_found_again(tmp_path: Path) -> None:
    first = Start(tmp_path / "cache")
    assert first.source.stored() is None
    first.source.keep(CODE, frozenset({"x"}))
    again = Start(tmp_path / "cache")
    found = again.source.stored()
    assert found and (found.code, found.refused) == (CODE, frozenset({"x"}))
    assert (first.said, again.said) == ([], [])


@pytest.mark.parametrize(
    "changed",
    [
        {"headers": HEADERS | {"plan.h": "#define WAY_hook KRETPROBE\n"}},
        {"digests": [b"vmlinux", b"other"]},
        {"digests": [b"vmlinux"]},
        {"library": BccLibrary("0.31", Path("/nowhere"), ("0.31", "libbcc.so 1 3"), True)},
    ],
    ids=["text", "BTF of a module", "without a module", "compiler"],
)
def test_anything_else_has_another_key(changed: dict[str, Any], tmp_path: Path) -> None:
    Start(tmp_path / "cache").source.keep(CODE, frozenset())
    other = Start(tmp_path / "cache", **changed)
    assert other.source.stored() is None and other.said == []


def test_another_kernel_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (notes := tmp_path / "notes").write_bytes(b"build id")
    monkeypatch.setattr(program_source, "NOTES", notes)
    Start(tmp_path / "cache").source.keep(CODE, frozenset())
    assert Start(tmp_path / "cache").source.stored() is not None
    notes.write_bytes(b"another build")
    assert Start(tmp_path / "cache").source.stored() is None


def test_one_sentence_for_a_cache_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    start = Start(tmp_path / "cache")
    assert start.source.stored() is None
    start.source.keep(CODE, frozenset())
    assert start.said == [f"The programs are compiled anew: others may write to {tmp_path / 'cache'}."]


def test_a_disk_that_takes_nothing_is_said_after_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(tmp_path / "cache")
    assert start.source.stored() is None
    monkeypatch.setattr("os.rename", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    start.source.keep(CODE, frozenset())
    (said,) = start.said
    assert said.startswith("The compiled programs cannot be kept for the next start: ") and "No space left" in said
    assert not list((tmp_path / "cache").iterdir())


def test_compiling_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_texts(texts: list[str], report: Any) -> Bytecode:
        for done in range(1, len(texts) + 1):
            report(done)
        return CODE

    monkeypatch.setattr(bcc_compiler, "compile_texts", compile_texts)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    start = Start(None, headers=HEADERS | {"plan.h": "#define WAY_hook FEXIT\n#define WAY_drop RAWTP\n"})
    assert start.source.compiled() == CODE
    assert start.reported == [f"compiling 2 programs, {done} of 2 parts" for done in range(3)]


def texts_of(kernel: str) -> dict[str, str]:
    k, can = recorded_kernels.kernel(recorded_kernels.load(kernel)), KernelAbilities(True, True)
    rows, _ = attach_plan.plan(k.types, k.symbols, can, verbose=True, programs=True)
    return generated_headers.headers(k.types, k.symbols, rows, xt_extensions.plan(k.types, k.symbols, can), 256, 2)


def ways(text: str) -> dict[str, str]:
    return dict(program_source._WAY.findall(text))


def test_two_parts_have_all_programs_once() -> None:
    text = bpf_source.whole("tracer.c", texts_of("6.12"))
    assert split(text, program_source.PROCESSORS_FOR_TWO - 1) == [text]
    first, second = split(text, 8)
    for name, way in ways(text).items():
        assert sorted((ways(first)[name], ways(second)[name])) == sorted(("OFF", way)), name
    assert "\nMATCH_FEXIT(on_match_by_fexit)" in first and "\nMATCH_FEXIT(on_match_by_fexit)" not in second
    large = [sum(ways(part)[name] != "OFF" for name in LARGE_ROWS) for part in (first, second)]
    assert large == [6, 6]


@pytest.mark.parametrize("kernel", ["6.12", "5.10"])
def test_the_number_of_programs(kernel: str) -> None:
    k, can = recorded_kernels.kernel(recorded_kernels.load(kernel)), KernelAbilities(kernel == "6.12", kernel == "6.12")
    rows, _ = attach_plan.plan(k.types, k.symbols, can, verbose=True, programs=True)
    extensions = xt_extensions.plan(k.types, k.symbols, can)
    texts = generated_headers.headers(k.types, k.symbols, rows, extensions, 256, 2)
    programs = [*(row.programs for row in rows), *(row.programs for row in extensions)]
    names = {name for each in programs for name, _ in each}
    assert program_source.program_count(bpf_source.whole("tracer.c", texts)) == len(names) > 20


def test_large_rows_are_rows() -> None:
    assert set(LARGE_ROWS) <= {probe.name for probe in PROBES}


def test_a_small_text_is_compiled_in_one_part() -> None:
    assert split("#define WAY_hook FEXIT\n#define WAY_clone FEXIT\n", 8) == [
        "#define WAY_hook FEXIT\n#define WAY_clone FEXIT\n"
    ]


def test_parts_give_the_same_programs_as_one() -> None:
    texts = texts_of("6.12")
    whole = bpf_source.whole("tracer.c", texts)
    names = sorted({name for name in re.findall(r"#define PROGRAM_\w+ (\w+)", whole)})
    assert compiled(texts, "x86", *names) == compiled(texts, "x86", *names, processors=program_source.PROCESSORS_FOR_TWO)
