# SPDX-License-Identifier: Apache-2.0
"""Rules of the source tree: each package states its purpose, imports follow one order, private names stay inside a package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACER = ROOT / "tracer"
MODULES = sorted(TRACER.rglob("*.py"))
FLAT = {"__init__.py", "__main__.py", "errors.py", "log.py"}
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_only_the_entry_and_the_errors_are_in_no_package() -> None:
    assert {path.name for path in TRACER.glob("*.py")} == FLAT


def test_every_package_states_what_it_must_not_know() -> None:
    packages = [path for path in MODULES if path.name == "__init__.py" and path.parent != TRACER]
    missing = [
        dotted(path) for path in packages if "Must not know:" not in (ast.get_docstring(ast.parse(path.read_text())) or "")
    ]
    assert len(packages) > 20 and not missing


def test_every_package_has_its_place_in_the_order() -> None:
    (layers,) = (contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    assert named == {path.parent.name for path in TRACER.glob("*/__init__.py")} | {"errors", "log"}


def foreign_private_names(path: Path) -> list[str]:
    """Private names and modules that a module imports from a foreign package."""
    found = []
    inside = dotted(path if path.name == "__init__.py" else path.parent)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tracer":
            for name in node.names:
                full = f"{node.module}.{name.name}"
                parts = full.split(".")
                private = next((n for n, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")), None)
                if private is None:
                    continue
                module = (ROOT / "/".join(parts[:private])).with_suffix(".py").exists()
                home = ".".join(parts[: private - module])
                if inside != home and not inside.startswith(home + "."):
                    found.append(f"{dotted(path)} imports {full}")
    return found


def test_private_names_stay_in_their_package() -> None:
    assert [line for path in MODULES for line in foreign_private_names(path)] == []


def test_an_upward_import_breaks_the_contract(tmp_path: Path) -> None:
    """The contract can fail: it does so in a copy of the tree with one import of a higher layer."""
    pytest.importorskip("importlinter")
    copy = tmp_path / "tracer"
    subprocess.run(["cp", "-r", TRACER, copy], check=True)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"]

    def status() -> int:
        run = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path), "PATH": ""})
        assert "Contracts:" in run.stdout, run.stdout + run.stderr
        return run.returncode

    assert status() == 0
    with (copy / "model" / "rule.py").open("a") as file:
        file.write("\nfrom tracer.packets import outcome  # noqa\n")
    assert status() == 1


ALIKE = (
    {"tracer/findings", "tracer/audit", "tracer/handshakes/causes"},
    {"tracer/rules/iptables", "tracer/rules/nftables", "tracer/rules/ipvs"},
    {"tracer/pipeline", "tracer/capture/record", "tracer/capture/replay"},
    {"tracer/render", "tracer/export"},
    {"tracer/analysis/stats", "tracer/analysis/tables", "tracer/metrics/families"},
)
"""Packages of one kind: files with the same name have the same subject in each (a fault, a verb, a part of a run, a format,
what is counted)."""


def test_a_file_name_is_used_once_or_by_packages_of_one_kind() -> None:
    places: dict[str, set[str]] = {}
    for path in MODULES:
        if not path.name.startswith("__"):
            places.setdefault(path.name, set()).add(path.parent.relative_to(ROOT).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1 and not any(found <= kind for kind in ALIKE)}
    assert twice == {} and sum(len(found) > 1 for found in places.values()) > 3


def test_a_public_class_has_a_unique_name() -> None:
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(dotted(path))
    assert len(found) > 150 and {name: modules for name, modules in found.items() if len(modules) > 1} == {}


PATH = re.compile(r"(?<![\w/.{])(?:tracer|bpf|tests|vagrant|bench|docs)(?:/[\w.-]+)+\.(?:py|c|h|md|json|yaml)\b")
PLACEHOLDER = "NAME"
"""Stands in a path for the name of a file that a reader adds."""


def test_every_path_in_a_text_exists() -> None:
    texts = [
        p
        for d in ("tracer", "bpf", "docs", "deploy", "bench")
        for p in (ROOT / d).rglob("*")
        if p.suffix in (".py", ".c", ".h", ".md")
    ]
    texts += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]
    named = {
        (path.relative_to(ROOT).as_posix(), name) for path in texts for name in PATH.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert sorted(f"{where}: {name}" for where, name in named if PLACEHOLDER not in name and not (ROOT / name).exists()) == []
