# SPDX-License-Identifier: Apache-2.0
"""Writes cpio archives (newc), the format of an initrd. Archives may be concatenated."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

TRAILER = "TRAILER!!!"


@dataclass(frozen=True)
class Entry:
    """One member, owned by root. The data of a symbolic link is its target; a directory has no data."""

    name: str
    mode: int
    data: bytes = b""


def directory(name: str) -> Entry:
    """A directory; parents must come first in the archive."""
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, mode: int = 0o644) -> Entry:
    """A regular file."""
    return Entry(name, stat.S_IFREG | mode, data)


def symlink(name: str, target: str) -> Entry:
    """A symbolic link."""
    return Entry(name, stat.S_IFLNK | 0o777, target.encode())


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive, padded to a multiple of 512 bytes so that another archive may follow."""
    out = bytearray()
    for inode, entry in enumerate([*entries, Entry(TRAILER, 0)], start=1):
        name = entry.name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(entry.mode) else 1
        # after the magic: inode mode uid gid links mtime size, 4 device numbers, length of name, checksum
        fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        _pad(out, 4)
        out += entry.data
        _pad(out, 4)
    _pad(out, 512)
    return bytes(out)


def _pad(out: bytearray, size: int) -> None:
    out += bytes(-len(out) % size)
