# SPDX-License-Identifier: Apache-2.0
"""docs/bounds.md lists each container that objects of the tracer hold, with its bound, or with what limits it otherwise."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.containers import BOUNDED, CACHES, ROOT, Container, called, containers

PAGE = (ROOT / "docs/bounds.md").read_text(encoding="utf-8")
EVICTED = dict(re.findall(r"^\| ([^|`]+?) \| ([\d,]+[^|]*?) \| [^|]+ \|$", PAGE, re.M))
"""The bound by name, as text."""
LIMITED = Counter(re.findall(r"`(\w+\.\w+)`", PAGE.partition("## What cannot grow")[2]))
PURE = {
    "names",
    "checks",
    "finders",
    "syn_finders",
    "causes",
    "marks",
    "_modules",
    "dtype",
    "define",
    "docs",
    "members",
    "metrics",
    "tables",
}
"""Functions with an unlimited cache: their arguments are names of the source, or they have none."""
FOUND = list(containers())
IGNORED = {"LruDict._entries"}


def sources() -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "tracer").rglob("*.py"))]


def names_that_are_counted() -> set[str]:
    """The names given to `evictions.add` or to a container that evicts, without those that are formatted."""
    calls = [node for tree in sources() for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    names = [call.args[0] for call in calls if ast.unparse(call.func) == "evictions.add"]
    names += [call.args[1] for call in calls if called(call) in BOUNDED | {"__init__"} and len(call.args) > 1]
    return {str(name.value) for name in names if isinstance(name, ast.Constant)}


@pytest.mark.parametrize("container", [c for c in FOUND if c.kind in BOUNDED], ids=lambda c: c.where)
def test_a_container_that_evicts_is_listed_with_its_bound(container: Container) -> None:
    assert container.name, f"{container.where} needs a name"
    assert container.name in EVICTED, f"{container.name} is not in the first table of docs/bounds.md"
    if container.most is not None:
        assert int(EVICTED[container.name].split()[0].replace(",", "")) == container.most


def test_every_other_container_is_limited() -> None:
    others = {c.where for c in FOUND if c.kind not in BOUNDED | CACHES} - IGNORED
    assert sorted(others - set(LIMITED)) == [], "not in the second table of docs/bounds.md: what limits them?"
    assert sorted(set(LIMITED) - others) == [], "no longer in the source"
    assert not [where for where, count in LIMITED.items() if count > 1]


def test_caches_of_functions_have_a_size() -> None:
    unlimited = {c.where.rpartition(".")[2] for c in FOUND if c.kind in CACHES and c.most is None and "." in c.where}
    assert unlimited - {"_address", "_text"} <= PURE


def test_every_name_is_listed_and_counted() -> None:
    formatted = {f"generations of tables ({what})" for what in ("in force", "rules in force", "replaced")}
    assert set(EVICTED) == names_that_are_counted() | formatted


def test_containers_of_a_sample_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of the source sees each way to make a container."""
    (tmp_path / "tracer").mkdir()
    (tmp_path / "tracer/sample.py").write_text(
        "class A:\n    at: list[int] = field(default_factory=list)\n    def __init__(self):\n"
        "        self.b, self.c = {}, 1\n        self.d: deque[int] = deque()\n        self.e = Counter[str]()\n"
        "        self.f = LruDict(3, 'names') if self.c else None\n        self.g = lru_cache(4)(self.h)\n        local = {}\n"
    )
    monkeypatch.setattr("tests.support.containers.ROOT", tmp_path)
    monkeypatch.setattr("tests.support.containers.import_module", lambda name: ast)
    found = {c.where: (c.kind, c.name, c.most) for c in containers()}
    assert found == {
        "A.at": ("list", "", None), "A.b": ("dict", "", None), "A.d": ("deque", "", None), "A.e": ("Counter", "", None),
        "A.f": ("LruDict", "names", 3), "A.g": ("lru_cache", "", None),
    }  # fmt: skip
