# SPDX-License-Identifier: Apache-2.0
"""The licence of each file, and the licence that the package declares."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EITHER = "Apache-2.0 OR GPL-2.0-only"
SOURCES = frozenset({".py", ".c", ".h", ".sh", ".yaml", ".yml", ".html", ".toml"})
NAMES = frozenset({"Makefile", "Containerfile", "Vagrantfile"})
_SPDX = re.compile(r"SPDX-License-Identifier: ([\w. -]+?)(?: \*/| -->)?$", re.M)


def tracked() -> list[Path]:
    """Files of the repository; skips the test outside a git repository."""
    ran = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        pytest.skip("not a git repository")
    return [ROOT / name for name in ran.stdout.split("\0") if name and (ROOT / name).is_file()]


def is_source(path: Path) -> bool:
    """Whether the file is source code, and not data, a document or a licence."""
    if path.is_relative_to(ROOT / "tests/data"):
        return False
    if path.suffix in SOURCES or path.name in NAMES:
        return True
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def in_kernel(path: Path) -> bool:
    """Whether the file is compiled for the kernel."""
    return path.is_relative_to(ROOT / "bpf") or path.suffix in (".c", ".h")


def test_every_source_file_names_its_licence() -> None:
    sources = [path for path in tracked() if is_source(path)]
    assert len(sources) > 600
    wrong = {}
    for path in sources:
        first = "\n".join(path.read_text(encoding="utf-8").splitlines()[:3])
        if _SPDX.findall(first) != [EITHER if in_kernel(path) else "Apache-2.0"]:
            wrong[str(path.relative_to(ROOT))] = _SPDX.findall(first)
    assert not wrong


def test_the_package_declares_the_same_licences() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == f"Apache-2.0 AND ({EITHER})"
    found = {path.relative_to(ROOT).as_posix() for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert found == {"LICENSE", "LICENSES/Apache-2.0.txt", "LICENSES/GPL-2.0-only.txt"}
    assert (ROOT / "LICENSE").read_text() == (ROOT / "LICENSES/Apache-2.0.txt").read_text()
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    assert "Version 2, June 1991" in (ROOT / "LICENSES/GPL-2.0-only.txt").read_text()


def test_the_licence_declared_to_the_kernel() -> None:
    """include/linux/license.h has no name for Apache-2.0 OR GPL: with an unknown name the kernel refuses its helpers."""
    assert re.findall(r"^#define BPF_LICENSE (.+)$", (ROOT / "bpf/tracer.c").read_text(), re.M) == ["GPL"]


def test_no_text_installs_from_a_package_name_that_is_not_ours() -> None:
    """Another owner of the name on PyPI could run code as root."""
    installs = re.compile(r"(?:pip|pipx|uv|uvx)\b[^\n`]*\sinstall[^\n`]*\bk8snet[-_]trace\b|k8snet-trace\[\w+\]")
    for path in tracked():
        if path.suffix in (".py", ".md", ".sh", ".toml", ".yaml", "") and path != Path(__file__):
            found = installs.search(path.read_text(encoding="utf-8", errors="replace"))
            assert not found, f"{path.relative_to(ROOT)}: {found[0]}"


def test_no_message_installs_a_package_of_an_index_by_name() -> None:
    """A message is read by root on a node: it names packages of the distribution, or the checkout itself."""
    installs = re.compile(r"\b(?:pipx?|uvx?|npm|gem)\s+install\s+(?!'?\.)\S+")
    printed = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tracer").rglob("*.py"))
    assert installs.findall(printed) == []
    assert installs.search("pip install bcc") and not installs.search("pip install '.[analysis]'")
