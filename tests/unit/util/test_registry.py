# SPDX-License-Identifier: Apache-2.0
"""A registry has the files of its package, sorted; a file that does not fit is an error that names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracer.errors import BadOption
from tracer.util.registry import Registry

FILES = {
    "zebra": "find = 'z'", "apple": "find = 'a'", "other": "find_syn = 'o'", "_shared": "", "context": "raise RuntimeError",
    "parts/__init__": "", "parts/inner": "find = 'i'",
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "sampled"
    (folder / "parts").mkdir(parents=True)
    for name, text in {"__init__": "", **FILES}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("sampled")
    yield "sampled"
    for name in [n for n in sys.modules if n.partition(".")[0] == "sampled"]:
        del sys.modules[name]


def test_entries_are_the_files_without_helpers(package: str) -> None:
    found: Registry[str] = Registry(package, "find", helpers=("context",), instead=("find_syn",))
    assert found.names() == ("apple", "other", "zebra"), "sorted; neither helpers nor packages"
    assert "sampled.apple" not in sys.modules, "names() imports nothing"
    assert found.entries() == (("apple", "a"), ("zebra", "z"))
    assert [module.__name__ for module in found.modules()] == ["sampled.apple", "sampled.zebra"]
    assert found.find("zebra") == "z"


def test_a_file_without_its_attribute_is_an_error(package: str) -> None:
    with pytest.raises(LookupError, match=r"^sampled/other\.py does not define find$"):
        Registry[str](package, "find", helpers=("context",)).entries()


def test_an_unknown_name(package: str) -> None:
    found: Registry[str] = Registry(package, "find", ("context", "other"), kind="sample")
    with pytest.raises(BadOption, match=r"^There is no sample 'pear': choose one of apple, zebra\.$"):
        found.find("pear")
    with pytest.raises(BadOption):
        found.find("context")


def test_an_order_names_exactly_the_files(package: str) -> None:
    found: Registry[str] = Registry(package, "find", ("context", "other"))
    assert found.in_order(("zebra", "apple")) == (("zebra", "z"), ("apple", "a"))
    for order in (("zebra",), ("zebra", "apple", "pear")):
        with pytest.raises(LookupError, match="sampled: ORDER and files differ"):
            found.in_order(order)
