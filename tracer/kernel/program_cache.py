# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk, so that a start does not compile what an earlier start on the same kernel has compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracer.kernel.bytecode import BadBytecode, Bytecode, split_head, with_head
from tracer.kernel.cache_directory import BadEntry, CacheDirectory, EntryKind

PROGRAMS = EntryKind(".bpf", b"k8snet-trace programs 1\n", most=16, most_bytes=32 << 20, entry_bytes=8 << 20)


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


class ProgramCache:
    """The programs of earlier starts.

    Args:
        directory: Their directory; None = nothing is kept.
        kind: The bounds.
    """

    def __init__(self, directory: Path | None, kind: EntryKind = PROGRAMS) -> None:
        self._entries = CacheDirectory(directory, kind)

    def read(self, key: bytes) -> CacheEntry | None:
        """The entry of a key; None = there is none.

        Raises:
            BadEntry: It must not be used.
        """
        content = self._entries.read(key)
        if content is None:
            return None
        try:
            return CacheEntry.from_bytes(content)
        except BadBytecode as e:
            raise BadEntry(f"{self._entries.path(key)} is damaged: {e}") from e

    def write(self, key: bytes, entry: CacheEntry) -> None:
        """Writes an entry, and removes the oldest ones beyond the bounds.

        Raises:
            BadEntry: It cannot be written.
        """
        self._entries.write(key, entry.to_bytes())

    def problem(self) -> str:
        """Why programs cannot be kept, as a clause; "" = they can, or none are wanted. The directory is not made."""
        return self._entries.problem()
