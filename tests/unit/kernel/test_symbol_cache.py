# SPDX-License-Identifier: Apache-2.0
"""What a start asked of the kernel's symbols: a later start of the same boot has the same answers without reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.kernel.test_kallsyms import LINES
from tracer.kernel.cache_directory import BadEntry, CacheDirectory, key
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.symbol_cache import SYMBOLS, SymbolAnswers, SymbolCache

VARIABLE = "ffffffffc0400000 d nf_tables_net_id\t[nf_tables]\n"
IP_TABLES = "ip_tables 28672 1 - Live 0xffffffffc0100000\n"


class Machine(NamedTuple):
    """The files of a machine."""

    kallsyms: Path
    modules: Path
    boot_id: Path
    cache: Path

    def symbols(self) -> Symbols:
        return Symbols.running(self.kallsyms, self.modules, SymbolCache(self.cache, self.boot_id))

    def started(self, *names: str) -> list[tuple[str, ...]]:
        """The answers of one start."""
        symbols = self.symbols()
        answers = [symbols.modules_of(name) for name in names]
        assert symbols.loaded >= {"vmlinux"} and symbols.rejected == ""
        symbols.keep()
        return answers


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "kallsyms", tmp_path / "modules", tmp_path / "boot_id", tmp_path / "cache")
    machine.kallsyms.write_text(LINES + VARIABLE)
    machine.modules.write_text(IP_TABLES)
    machine.boot_id.write_text("7ff57ad7-801f-4e93-99f6-01913749dedc\n")
    return machine


NAMES = ("nf_hook_slow", "ipt_do_table", "twice", "no_such")
ANSWERS = [("vmlinux",), ("ip_tables",), ("vmlinux", "nf_nat"), ()]


def test_a_later_start_does_not_read_the_symbols(machine: Machine) -> None:
    first = machine.symbols()
    assert [first.modules_of(name) for name in NAMES] == ANSWERS
    first.keep()
    machine.kallsyms.unlink()
    assert machine.started(*NAMES) == ANSWERS
    later = machine.symbols()
    assert later.variables == first.variables == {"nf_tables_net_id": 0xFFFFFFFFC0400000}
    assert later.loaded == first.loaded == {"vmlinux", "ip_tables", "nf_nat", "nf_tables"}


def test_a_name_that_was_not_asked_is_looked_up_and_kept(machine: Machine) -> None:
    machine.started("nf_hook_slow")
    assert machine.started(*NAMES) == ANSWERS
    machine.kallsyms.unlink()
    assert machine.started(*NAMES) == ANSWERS
    with pytest.raises(FileNotFoundError):
        machine.started("tcp_v4_rcv")


def test_addresses_are_looked_up_in_the_symbols(machine: Machine) -> None:
    machine.started(*NAMES)
    assert machine.symbols().containing(0xFFFFFFFF81A000FF) == "nf_hook_slow"


@pytest.mark.parametrize("changed", ["modules", "boot_id"])
def test_another_boot_and_other_modules_have_other_answers(machine: Machine, changed: str) -> None:
    machine.started(*NAMES)
    machine.kallsyms.write_text(LINES.replace("[ip_tables]", "[other]"))
    assert machine.started("ipt_do_table") == [("ip_tables",)]
    Path(getattr(machine, changed)).write_text("other 28672 1 - Live 0xffffffffc0500000\n")
    assert machine.started("ipt_do_table") == [("other",)]


def test_the_same_modules_at_other_addresses_have_other_answers(machine: Machine) -> None:
    machine.started(*NAMES)
    machine.modules.write_text(IP_TABLES.replace("c01", "c02"))
    machine.kallsyms.write_text(LINES)
    assert machine.symbols().variables == {}


def test_nothing_is_kept_when_modules_change_meanwhile(machine: Machine) -> None:
    symbols = machine.symbols()
    symbols.modules_of("nf_hook_slow")
    machine.modules.write_text("")
    symbols.keep()
    assert not list(machine.cache.glob("*"))


@pytest.mark.parametrize("hidden", ["addresses", "boot_id"])
def test_nothing_is_kept_where_addresses_or_the_boot_are_unknown(machine: Machine, hidden: str) -> None:
    if hidden == "boot_id":
        machine.boot_id.unlink()
    else:
        machine.modules.write_text("ip_tables 28672 1 - Live 0x0000000000000000\n")
    assert machine.started(*NAMES) == ANSWERS and not list(machine.cache.glob("*"))


def entry(machine: Machine) -> Path:
    (path,) = machine.cache.glob("*.symbols")
    return path


def test_every_cut_and_every_flipped_bit_is_found(machine: Machine) -> None:
    machine.started("nf_hook_slow")
    path = entry(machine)
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]):
            path.write_bytes(damaged)
            symbols = machine.symbols()
            assert symbols.rejected and symbols.module_of("nf_hook_slow") == "vmlinux"
    symbols.keep()
    assert path.read_bytes() == data, "it is repaired"


def test_files_that_others_may_change_are_not_used(machine: Machine) -> None:
    machine.started("nf_hook_slow")
    entry(machine).chmod(0o666)
    symbols = machine.symbols()
    assert "others may write to" in symbols.rejected and symbols.module_of("nf_hook_slow") == "vmlinux"


def test_a_directory_that_cannot_be_used(machine: Machine) -> None:
    machine.cache.write_text("a file")
    symbols = machine.symbols()
    assert symbols.module_of("nf_hook_slow") == "vmlinux"
    symbols.keep()
    assert "is no directory" in symbols.rejected


GOOD = {"homes": {"a": ["vmlinux"]}, "variables": {"v": 1}, "loaded": ["vmlinux"]}


@pytest.mark.parametrize(
    "content",
    [
        [], {}, GOOD | {"more": 1}, GOOD | {"homes": []}, GOOD | {"homes": {"a": "vmlinux"}}, GOOD | {"homes": {"a": [1]}},
        GOOD | {"variables": {"v": 0}}, GOOD | {"variables": {"v": 1 << 64}}, GOOD | {"variables": {"v": True}},
        GOOD | {"variables": {"v": "1"}}, GOOD | {"loaded": "vmlinux"}, GOOD | {"loaded": {"vmlinux": 1}},
    ],
)  # fmt: skip
def test_content_with_a_right_checksum_is_checked(tmp_path: Path, content: object) -> None:
    (boot := tmp_path / "boot_id").write_text("boot")
    entries = CacheDirectory(tmp_path / "cache", SYMBOLS)
    cache, number = SymbolCache(tmp_path / "cache", boot), key((b"boot", "modules"))
    entries.write(number, json.dumps(GOOD).encode())
    assert cache.read("modules") == SymbolAnswers({"a": ("vmlinux",)}, {"v": 1}, frozenset({"vmlinux"}))
    for data in (json.dumps(content).encode(), b"[" * 100_000, b"\xff"):
        entries.write(number, data)
        with pytest.raises(BadEntry, match="is damaged"):
            cache.read("modules")
