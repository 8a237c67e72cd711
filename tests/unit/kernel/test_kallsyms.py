# SPDX-License-Identifier: Apache-2.0
"""/proc/kallsyms: the functions, their modules, and the function that contains an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.kernel.kallsyms import Symbols

LINES = """\
ffffffff81000000 T _stext
ffffffff81a00000 T nf_hook_slow
ffffffff81a00100 t tcp_v4_rcv.part.0
ffffffff81a00200 W weak_one
ffffffff81a00300 D some_data
ffffffff81a00400 t twice
ffffffffc0100000 t ipt_do_table\t[ip_tables]
ffffffffc0200000 t twice\t[nf_nat]
ffffffffc0300000 d data_of_a_module\t[nf_nat]
"""


def test_variables_that_are_read_by_address() -> None:
    lines = ["ffffffffc0400000 d nf_tables_net_id\t[nf_tables]\n", "ffffffffc0400008 d other\t[nf_tables]\n"]
    assert Symbols(lines).variables == {"nf_tables_net_id": 0xFFFFFFFFC0400000}
    hidden = Symbols(["0000000000000000 d nf_tables_net_id\t[nf_tables]\n"])
    assert hidden.variables == {}, "no address without the right to see it"


@pytest.fixture
def symbols() -> Symbols:
    return Symbols(LINES.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("name", "module"),
    [("nf_hook_slow", "vmlinux"), ("weak_one", "vmlinux"), ("ipt_do_table", "ip_tables"), ("twice", "vmlinux"),
     ("no_such", None), ("some_data", None), ("data_of_a_module", None)],
)  # fmt: skip
def test_module_of(symbols: Symbols, name: str, module: str | None) -> None:
    assert symbols.module_of(name) == module


@pytest.mark.parametrize(
    ("address", "function"),
    [(0xFFFFFFFF81A00000, "nf_hook_slow"), (0xFFFFFFFF81A000FF, "nf_hook_slow"), (0xFFFFFFFF81A00123, "tcp_v4_rcv"),
     (0xFFFFFFFFC01000AB, "ipt_do_table"), (0xFFFFFFFF81A00350, "weak_one"), (0xFFFFFFFF80000000, ""), (0, "")],
)  # fmt: skip
def test_containing(symbols: Symbols, address: int, function: str) -> None:
    assert symbols.containing(address) == function


def test_addresses_are_zero_without_the_right_to_see_them() -> None:
    hidden = Symbols(["0000000000000000 T nf_hook_slow", "0000000000000000 t nf_nat_manip_pkt\t[nf_nat]"])
    assert hidden.module_of("nf_nat_manip_pkt") == "nf_nat"
    assert hidden.containing(0xFFFFFFFF81A00010) == ""


def test_lines_need_not_be_sorted() -> None:
    mixed = Symbols(["ffffffff81000200 T second", "ffffffff81000100 T first"])
    assert [mixed.containing(0xFFFFFFFF81000100 + i) for i in (0, 0xFF, 0x100)] == ["first", "first", "second"]


def test_running_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_bytes(LINES.encode() + b"ffffffffc0400000 t caf\xe9\t[odd]\n")
    assert Symbols.running(path).module_of("ipt_do_table") == "ip_tables"
    with pytest.raises(FileNotFoundError):
        Symbols.running(tmp_path / "missing")


def test_a_module_that_was_loaded_later(tmp_path: Path) -> None:
    kallsyms, modules = tmp_path / "kallsyms", tmp_path / "modules"
    kallsyms.write_text(LINES)
    modules.write_text("ip_tables 28672 1 - Live 0xffffffffc0100000\n")
    symbols = Symbols.running(kallsyms, modules)
    later = 0xFFFFFFFFC0180010
    assert symbols.containing(later) == "ipt_do_table", "no other function is known at that address"
    kallsyms.write_text(LINES + "ffffffffc0180000 t nft_do_chain\t[nf_tables]\n")
    modules.write_text(modules.read_text() + "nf_tables 28672 1 - Live 0xffffffffc0180000\n")
    symbols._checked_at = 0.0
    assert symbols.containing(later) == "nft_do_chain"
    assert symbols.module_of("nft_do_chain") is None, "the functions that can be watched were chosen at the start"


def test_freed_lines_are_read_again(tmp_path: Path) -> None:
    kallsyms, modules = tmp_path / "kallsyms", tmp_path / "modules"
    kallsyms.write_text(LINES)
    symbols = Symbols.running(kallsyms, modules)
    symbols.free()
    assert symbols._lines is None and symbols._by_address is None
    kallsyms.write_text(LINES + "ffffffffc0180000 t nft_do_chain\t[nf_tables]\n")
    assert symbols.containing(0xFFFFFFFFC0180010) == "nft_do_chain", "the addresses of now"
    assert symbols._lines is None, "names were not asked for"
    assert symbols.module_of("ipt_do_table") == "ip_tables"
    given = Symbols(LINES.splitlines())
    given.free()
    assert given.module_of("ipt_do_table") == "ip_tables", "lines that cannot be read again are kept"
