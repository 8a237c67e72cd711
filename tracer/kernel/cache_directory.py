# SPDX-License-Identifier: Apache-2.0
"""Files that a start keeps for later ones, in one directory.

Each is one entry. Its name is a key, the hash of everything that its content depends on. The content is not trusted before it
is checked: directory and file belong to this user and are closed to others, neither is a link, the size is bounded, and key
and checksum are right. Anything else is a miss with a reason. A new entry is written beside its name and renamed, so it
appears complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracer.util import new_file

VARIABLE = "K8SNET_TRACE_CACHE"
"""Environment variable with the directory; OFF = no cache."""
OFF = "off"
DIRECTORY = Path("/var/cache/k8snet-trace")

LEFTOVER_SECONDS = 600.0
"""Age at which an unfinished file is one of a writer that was killed, s."""

_UNFINISHED = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}")


class BadEntry(Exception):
    """An entry, or its directory, that must not be used. The text is a clause."""


def key(parts: Iterable[str | bytes]) -> bytes:
    """The key of an entry. parts: everything that its content depends on."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(struct.pack("<Q", len(data)) + data)
    return total.digest()


def directory_of_environment() -> Path | None:
    """The directory that VARIABLE names; None = no cache is wanted."""
    text = os.environ.get(VARIABLE, "")
    return DIRECTORY if not text else None if text == OFF else Path(text)


@dataclass(frozen=True)
class EntryKind:
    """One kind of entries.

    Attributes:
        suffix: End of the names of its files, with the dot.
        magic: First bytes of its files, with the version of the content.
        most: Bound of the number of files; those that were not used for the longest time are removed.
        most_bytes: Bound of all files together, bytes.
        entry_bytes: Bound of one file, bytes.
    """

    suffix: str
    magic: bytes
    most: int
    most_bytes: int
    entry_bytes: int


class CacheDirectory:
    """The entries of one kind in a directory.

    Args:
        directory: The directory; None = nothing is kept. It is made on the first use; its parent must exist.
        kind: The kind.
    """

    def __init__(self, directory: Path | None, kind: EntryKind) -> None:
        self._directory, self._kind = directory, kind
        self._head = struct.Struct(f"<{len(kind.magic)}s32s32s")

    def read(self, key: bytes) -> bytes | None:
        """The content of the entry of a key; None = there is none.

        Raises:
            BadEntry: It must not be used.
        """
        if self._directory is None:
            return None
        with _Directory(self._directory) as directory:
            data = directory.read(self._name(key), self._kind.entry_bytes)
        if data is None:
            return None
        magic, stored, checksum = self._head.unpack_from(data) if len(data) >= self._head.size else (b"", b"", b"")
        content = data[self._head.size :]
        if magic != self._kind.magic or hashlib.sha256(content).digest() != checksum:
            raise BadEntry(f"{self.path(key)} is damaged")
        if stored != key:
            raise BadEntry(f"{self.path(key)} belongs to another kernel or another version")
        return content

    def write(self, key: bytes, content: bytes) -> None:
        """Writes an entry, and removes the oldest ones beyond the bounds.

        Raises:
            BadEntry: It cannot be written.
        """
        if self._directory is None:
            return
        data = self._head.pack(self._kind.magic, key, hashlib.sha256(content).digest()) + content
        with _Directory(self._directory) as directory:
            directory.write(self._name(key), data)
            directory.trim(self._kind)

    def path(self, key: bytes) -> Path:
        """The path of an entry, for messages."""
        return (self._directory or Path()) / self._name(key)

    def problem(self) -> str:
        """Why entries cannot be kept, as a clause; "" = they can, or none are wanted. The directory is not made."""
        if self._directory is None:
            return ""
        try:
            made = self._directory.exists() or self._directory.is_symlink()
            with _Directory(self._directory if made else self._directory.parent, make=False) as directory:
                return directory.problem()
        except (BadEntry, OSError) as e:
            return str(e)

    def _name(self, key: bytes) -> str:
        return f"{key.hex()}{self._kind.suffix}"


class _Directory:
    """The open directory of the entries; a context manager. Every file is opened relative to it, so its path cannot change."""

    def __init__(self, path: Path, make: bool = True) -> None:
        """Opens the directory and checks it.

        Args:
            path: Its path.
            make: Make it if it does not exist.

        Raises:
            BadEntry: It does not exist and cannot be made, or others may change it.
        """
        if not path.is_absolute():
            raise BadEntry(f"{path} is no absolute path")
        self._path, self._fd = path, -1
        try:
            others = new_file.intruder(path.parent)
            if others:
                raise BadEntry(others)
            if make:
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            found = os.fstat(self._fd)
        except OSError as e:
            self._close()
            link = e.errno in (errno.ELOOP, errno.ENOTDIR)
            raise BadEntry(f"{path} is no directory" if link else f"{e.filename or path}: {e.strerror}") from e
        others = _others(path, found)
        if others:
            self._close()
            raise BadEntry(others)

    def read(self, name: str, most: int) -> bytes | None:
        """The content of a file of at most so many bytes; None = it does not exist.

        Raises:
            BadEntry: It cannot be read, or must not be used.
        """
        path = self._path / name
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise BadEntry(f"{path} is a link" if e.errno == errno.ELOOP else f"{path}: {e.strerror}") from e
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise BadEntry(f"{path} is no plain file with one name")
            others = _others(path, found)
            if others:
                raise BadEntry(others)
            if found.st_size > most:
                raise BadEntry(f"{path} is larger than any entry")
            with suppress(OSError):
                os.utime(fd)
            try:
                return file.read(most)
            except OSError as e:
                raise BadEntry(f"{path}: {e.strerror}") from e

    def write(self, name: str, data: bytes) -> None:
        """Creates or replaces a file.

        Raises:
            BadEntry: It cannot be written.
        """
        unfinished = f".{name[:64]}.{os.urandom(8).hex()}"
        try:
            with open(new_file.fresh(unfinished, self._fd), "wb") as file:
                file.write(data)
            os.rename(unfinished, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as e:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=self._fd)
            raise BadEntry(f"{self._path}: {e.strerror}") from e

    def trim(self, kind: EntryKind) -> None:
        """Removes unfinished files of killed writers, and the oldest entries of a kind beyond its bounds. Other files stay."""
        is_entry = re.compile(rf"[0-9a-f]{{64}}{re.escape(kind.suffix)}").fullmatch
        with suppress(OSError):
            entries = []
            for name in os.listdir(self._fd):
                found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                if _UNFINISHED.fullmatch(name) and found.st_mtime < time.time() - LEFTOVER_SECONDS:
                    os.unlink(name, dir_fd=self._fd)
                elif is_entry(name):
                    entries.append((found.st_mtime_ns, found.st_size, name))
            total = 0
            for count, (_, size, name) in enumerate(sorted(entries, reverse=True)):
                total += size
                if count >= kind.most or total > kind.most_bytes:
                    os.unlink(name, dir_fd=self._fd)

    def problem(self) -> str:
        """Why nothing can be written here, as a clause; "" = it can. Nothing is written to find out."""
        disk = os.fstatvfs(self._fd)
        if disk.f_flag & os.ST_RDONLY:
            return f"{self._path}: {os.strerror(errno.EROFS)}"
        if not disk.f_bavail:
            return f"{self._path}: {os.strerror(errno.ENOSPC)}"
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=self._fd, effective_ids=True):
            return f"{self._path}: {os.strerror(errno.EACCES)}"
        return ""

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def __enter__(self) -> _Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def _others(path: Path, found: os.stat_result) -> str:
    """Why others may change a file or directory, as a clause; "" = they may not."""
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if found.st_mode & 0o022:
        return f"others may write to {path}"
    return ""
