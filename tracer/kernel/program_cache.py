# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk, so that a start does not compile what an earlier start on the same kernel has compiled.

An entry is one file. Its name is the hash of everything that the instructions depend on (key). Its content is not trusted
before it is checked: directory and file belong to this user and are closed to others, neither is a link, the size is bounded,
and key and checksum are right. Anything else is a miss with a reason. A new entry is written beside its name and renamed, so
it appears complete.
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

from tracer.kernel.bytecode import BadBytecode, Bytecode, split_head, with_head
from tracer.util import new_file

VARIABLE = "K8SNET_TRACE_CACHE"
"""Environment variable with the directory; OFF = no cache."""
OFF = "off"
DIRECTORY = Path("/var/cache/k8snet-trace")

MAX_ENTRIES = 16
MAX_TOTAL_BYTES = 32 << 20
"""Bounds of the directory; the entries that were not used for the longest time are removed."""
MAX_ENTRY_BYTES = 8 << 20
LEFTOVER_SECONDS = 600.0
"""Age at which an unfinished file is one of a writer that was killed, s."""

_MAGIC = b"k8snet-trace programs 1\n"
_HEAD = struct.Struct(f"<{len(_MAGIC)}s32s32s")
_ENTRY, _UNFINISHED = re.compile(r"[0-9a-f]{64}\.bpf"), re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}")


class BadEntry(Exception):
    """An entry, or its directory, that must not be used. The text is a clause."""


@dataclass(frozen=True)
class CacheEntry:
    """Compiled programs, and what the kernel said about them.

    Attributes:
        code: The programs.
        refused: Programs that the kernel refused to load when they had just been compiled (LoadedPrograms.refused).
    """

    code: Bytecode
    refused: frozenset[str] = frozenset()

    def to_bytes(self) -> bytes:
        return with_head(sorted(self.refused), self.code.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> CacheEntry:
        """Reads what to_bytes() wrote.

        Raises:
            BadBytecode: The data are anything else.
        """
        names, code = split_head(data)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadBytecode("its head is damaged")
        return cls(Bytecode.from_bytes(code), frozenset(names))


def key(parts: Iterable[str | bytes]) -> bytes:
    """The key of programs. parts: everything that their instructions depend on."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(struct.pack("<Q", len(data)) + data)
    return total.digest()


def directory_of_environment() -> Path | None:
    """The directory that VARIABLE names; None = no cache is wanted."""
    text = os.environ.get(VARIABLE, "")
    return DIRECTORY if not text else None if text == OFF else Path(text)


class ProgramCache:
    """The entries in one directory.

    Args:
        directory: The directory; None = nothing is kept. It is made on the first use; its parent must exist.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def read(self, key: bytes) -> CacheEntry | None:
        """The entry of a key; None = there is none.

        Raises:
            BadEntry: It must not be used.
        """
        if self._directory is None:
            return None
        with _Directory(self._directory) as directory:
            data = directory.read(_name(key))
        if data is None:
            return None
        magic, stored, checksum = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", b"", b"")
        content = data[_HEAD.size :]
        if magic != _MAGIC or hashlib.sha256(content).digest() != checksum:
            raise BadEntry(f"{self._directory / _name(key)} is damaged")
        if stored != key:
            raise BadEntry(f"{self._directory / _name(key)} belongs to another kernel or another version")
        try:
            return CacheEntry.from_bytes(content)
        except BadBytecode as e:
            raise BadEntry(f"{self._directory / _name(key)} is damaged: {e}") from e

    def write(self, key: bytes, entry: CacheEntry) -> None:
        """Writes an entry, and removes the oldest ones beyond the bounds.

        Raises:
            BadEntry: It cannot be written.
        """
        if self._directory is None:
            return
        content = entry.to_bytes()
        data = _HEAD.pack(_MAGIC, key, hashlib.sha256(content).digest()) + content
        with _Directory(self._directory) as directory:
            directory.write(_name(key), data)
            directory.trim()

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


def _name(key: bytes) -> str:
    return f"{key.hex()}.bpf"


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

    def read(self, name: str) -> bytes | None:
        """The content of a file; None = it does not exist.

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
            if found.st_size > MAX_ENTRY_BYTES:
                raise BadEntry(f"{path} is larger than any entry")
            with suppress(OSError):
                os.utime(fd)
            try:
                return file.read(MAX_ENTRY_BYTES)
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

    def trim(self) -> None:
        """Removes unfinished files of killed writers, and the oldest entries beyond the bounds. Other files stay."""
        with suppress(OSError):
            entries = []
            for name in os.listdir(self._fd):
                found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                if _UNFINISHED.fullmatch(name) and found.st_mtime < time.time() - LEFTOVER_SECONDS:
                    os.unlink(name, dir_fd=self._fd)
                elif _ENTRY.fullmatch(name):
                    entries.append((found.st_mtime_ns, found.st_size, name))
            total = 0
            for count, (_, size, name) in enumerate(sorted(entries, reverse=True)):
                total += size
                if count >= MAX_ENTRIES or total > MAX_TOTAL_BYTES:
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
