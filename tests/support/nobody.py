# SPDX-License-Identifier: Apache-2.0
"""Runs the program as user nobody, with a copy of the program and a Python without bcc: the user may have no access to the
tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
LIBRARIES = ("click", "numpy", "rich")
"""Libraries that reading a capture needs."""
NO_BCC = 'raise ImportError("there is no bcc where captures are read")\n'
REPORT = """
import os, platform
try:
    import bcc
    found = "bcc"
except ImportError:
    found = "no bcc"
print(f"uid {os.geteuid()}, Python {platform.python_version()}, {found}", end="")
"""
PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")


class Nobody:
    """Runs the program as user nobody, in another time zone; as the current user when that is not root. A context manager.

    Raises SystemExit when the user can run no Python.
    """

    def __init__(self) -> None:
        self._user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self._scratch = tempfile.TemporaryDirectory(prefix="k8snet-nobody-")
        self._place = Path(self._scratch.name)
        self._place.chmod(0o755)
        for part in ("tracer", "bpf"):
            shutil.copytree(ROOT / part, self._place / part, ignore=shutil.ignore_patterns("__pycache__"))
        (self._place / "bcc.py").write_text(NO_BCC)
        self._python = next((p for p in PYTHONS if self._runs(p, "import sys; sys.exit(sys.version_info < (3, 11))")), "")
        if not self._python:
            raise SystemExit(f"User nobody can run none of {', '.join(PYTHONS)} (3.11 or later).")
        if not self._runs(self._python, f"import {', '.join(LIBRARIES)}"):
            to = ["--target", str(self._place), "--disable-pip-version-check"]
            subprocess.run(
                [sys.executable, "-m", "pip", "--python", self._python, "install", "-qqq", *to, *LIBRARIES], check=True
            )

    @property
    def description(self) -> str:
        """The user, the Python version, and whether bcc is there, as the Python reports them."""
        return self._run([self._python, "-c", REPORT]).stdout.decode()

    def _runs(self, python: str, text: str) -> bool:
        try:
            return self._run([python, "-c", text]).returncode == 0
        except OSError:
            return False

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        environment = {
            "PYTHONPATH": str(self._place), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"], "TZ": "Pacific/Apia",
        }  # fmt: skip
        return subprocess.run(command, capture_output=True, env=environment, cwd="/", check=False, **self._user)

    def read(self, capture: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
        """Runs `k8snet-trace -r` on a copy of the capture that the user may read."""
        copy = self._place / capture.name
        shutil.copyfile(capture, copy)
        copy.chmod(0o644)
        try:
            return self._run([self._python, "-m", "tracer", "-r", str(copy), *options])
        finally:
            copy.unlink()

    def __enter__(self) -> Nobody:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._scratch.cleanup()
