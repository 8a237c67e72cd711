# SPDX-License-Identifier: Apache-2.0
"""What a start asked of the kernel's symbols, on disk: a later start of the same boot does not read all 200,000 of them.

An answer holds while the kernel runs with the same modules at the same addresses: these, and the boot's id, are the key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tracer.kernel.cache_directory import BadEntry, CacheDirectory, EntryKind, key

SYMBOLS = EntryKind(".symbols", b"k8snet-trace symbols 1\n", most=8, most_bytes=8 << 20, entry_bytes=1 << 20)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
HIDDEN = "0x0000000000000000"
"""Address of each module in /proc/modules for readers without CAP_SYSLOG: then answers cannot be assigned to addresses."""


@dataclass(frozen=True)
class SymbolAnswers:
    """Answers about functions and variables of one kernel with its modules.

    Attributes:
        homes: Name of a function -> the modules that have it, in the order of /proc/kallsyms; () = none has.
        variables: Name of a variable -> its address.
        loaded: Modules with symbols, and "vmlinux".
    """

    homes: dict[str, tuple[str, ...]]
    variables: dict[str, int]
    loaded: frozenset[str]

    def to_bytes(self) -> bytes:
        return json.dumps({"homes": self.homes, "variables": self.variables, "loaded": sorted(self.loaded)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SymbolAnswers:
        """Reads what to_bytes() wrote.

        Raises:
            ValueError: The data are anything else.
        """
        read = json.loads(data)
        if not isinstance(read, dict) or set(read) != {"homes", "variables", "loaded"}:
            raise ValueError("it has other parts")
        homes, variables, loaded = read["homes"], read["variables"], read["loaded"]
        if not isinstance(homes, dict) or not all(_is_list_of_names(each) for each in (*homes.values(), loaded)):
            raise ValueError("it has other names")
        if not isinstance(variables, dict) or not all(type(each) is int and 0 < each < 1 << 64 for each in variables.values()):
            raise ValueError("it has other addresses")
        return cls({name: tuple(each) for name, each in homes.items()}, variables, frozenset(loaded))


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


class SymbolCache:
    """The answers of earlier starts.

    Args:
        directory: Their directory; None = nothing is kept.
        boot_id: File with the id of this boot.
    """

    def __init__(self, directory: Path | None, boot_id: Path = BOOT_ID) -> None:
        self._entries = CacheDirectory(directory, SYMBOLS)
        self._boot_id = boot_id

    def read(self, modules: str) -> SymbolAnswers | None:
        """The answers for these modules; None = there are none.

        Args:
            modules: Names and addresses of all modules.

        Raises:
            BadEntry: They must not be used.
        """
        number = self._key(modules)
        content = self._entries.read(number) if number else None
        if content is None:
            return None
        try:
            return SymbolAnswers.from_bytes(content)
        except (ValueError, RecursionError) as e:
            raise BadEntry(f"{self._entries.path(number)} is damaged: {e}") from e

    def write(self, modules: str, answers: SymbolAnswers) -> None:
        """Keeps answers for these modules, and removes the oldest entries beyond the bounds.

        Raises:
            BadEntry: They cannot be written.
        """
        if number := self._key(modules):
            self._entries.write(number, answers.to_bytes())

    def _key(self, modules: str) -> bytes:
        """The key of these modules; b"" = their addresses are hidden, or the boot has no id."""
        try:
            boot = self._boot_id.read_bytes()
        except OSError:
            return b""
        return b"" if HIDDEN in modules or not boot.strip() else key((boot, modules))
