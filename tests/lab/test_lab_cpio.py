# SPDX-License-Identifier: Apache-2.0
"""An archive as the kernel unpacks it."""

from __future__ import annotations

import stat

from lab import cpio
from tests.lab.archive import members


def test_cpio_archive() -> None:
    archive = cpio.archive(
        [
            cpio.directory("bin"),
            cpio.file("bin/x", b"12345", 0o755),
            cpio.symlink("bin/sh", "x"),
            cpio.file("e", b""),
        ]
    )
    assert len(archive) % 512 == 0
    assert members(archive) == {
        "bin": (stat.S_IFDIR | 0o755, b""),
        "bin/x": (stat.S_IFREG | 0o755, b"12345"),
        "bin/sh": (stat.S_IFLNK | 0o777, b"x"),
        "e": (stat.S_IFREG | 0o644, b""),
    }
