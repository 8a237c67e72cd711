# SPDX-License-Identifier: Apache-2.0
"""Tests of the lab runner, without booting: tables, image names, formats, command lines, a fake QEMU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "vagrant")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty image cache for each test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("K8SNET_LAB_CACHE", str(path))
    return path
