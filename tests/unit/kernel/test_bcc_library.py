# SPDX-License-Identifier: Apache-2.0
"""The installed bcc is found by its files; another project of that name is refused."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from tracer.errors import NoBcc
from tracer.kernel import bcc_library
from tracer.kernel.attach_plan import TRAMPOLINES, KernelAbilities, abilities
from tracer.kernel.bcc_library import BccLibrary, installed
from tracer.kernel.kallsyms import Symbols


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with bcc's package and libraries."""
    (tmp_path / "bcc").mkdir()
    for name, text in (("__init__.py", "class BPF: pass"), ("libbcc.py", ""), ("version.py", "__version__ = '0.31.0'\n")):
        (tmp_path / "bcc" / name).write_text(text)
    (tmp_path / bcc_library.LIBRARY).write_bytes(b"\x7fELF MODULE_KFUNC_PROBE\0libLLVM-test.so.9\0libLLVM-test.so.9\0")
    (tmp_path / "libLLVM-test.so.9").write_bytes(b"LLVM")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"relative:{tmp_path}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "bcc", raising=False)
    return tmp_path


def test_it_is_found_without_importing_it(root: Path) -> None:
    found = installed()
    assert (found.version, found.directory, found.module_fentry) == ("0.31.0", root / "bcc", True)
    assert [part.split()[0] for part in found.identity] == ["0.31.0", bcc_library.LIBRARY, "libLLVM-test.so.9"]
    assert "bcc" not in sys.modules


def test_an_old_one_does_not_know_functions_of_modules(root: Path) -> None:
    (root / bcc_library.LIBRARY).write_bytes(b"\x7fELF KFUNC_PROBE")
    assert not installed().module_fentry


@pytest.mark.parametrize("name", [bcc_library.LIBRARY, "libLLVM-test.so.9"])
def test_another_compiler_is_another_identity(root: Path, name: str) -> None:
    before = installed()
    os.utime(root / name, (1, 1))
    assert installed().identity != before.identity


def test_the_project_on_pypi_is_refused(root: Path) -> None:
    (root / "bcc/libbcc.py").unlink()
    (root / "bcc/__init__.py").write_text("")
    with pytest.raises(NoBcc, match="another project of that name from PyPI"):
        installed()


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcc", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoBcc, match="The bcc library is missing"):
        installed()


@pytest.mark.parametrize(
    ("machine", "symbol", "module_fentry", "expected"),
    [
        ("x86_64", TRAMPOLINES, True, KernelAbilities(True, True)),
        ("x86_64", TRAMPOLINES, False, KernelAbilities(True, False)),
        ("x86_64", "other", True, KernelAbilities(False, False)),
        ("aarch64", TRAMPOLINES, True, KernelAbilities(False, False)),
    ],
)
def test_abilities(
    machine: str, symbol: str, module_fentry: bool, expected: KernelAbilities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    library = BccLibrary("0.31.0", Path("/x"), (), module_fentry)
    assert abilities(library, Symbols([f"ffffffff81000000 T {symbol}"])) == expected
