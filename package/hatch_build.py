# SPDX-License-Identifier: Apache-2.0
"""Writes the version into wheels and source archives, so that they know it without git."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class VersionFile(BuildHookInterface):  # type: ignore[type-arg]
    """Adds tracer/VERSION to what is built; the checkout stays as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._directory = tempfile.mkdtemp()
        file = Path(self._directory, "VERSION")
        file.write_text(f"{self.metadata.version}\n", encoding="ascii")
        build_data["force_include"][str(file)] = "tracer/VERSION"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._directory)
