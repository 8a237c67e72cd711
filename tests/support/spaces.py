# SPDX-License-Identifier: Apache-2.0
"""Namespaces that tests make, on machines and in containers that allow it."""

from __future__ import annotations

import os
import subprocess

import pytest


def need(*command: str) -> None:
    """Skips the test unless this is root and the command (unshare, setpriv with options) can run `true`."""
    if os.geteuid() != 0 or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip(f"not root, or {' '.join(command)} is not allowed here")
