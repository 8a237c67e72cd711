# SPDX-License-Identifier: Apache-2.0
"""Registries: packages in which each file is one finding, check, cause, owner, statistic, export or output format.

The name of the file is the name of the entry. A file with a leading underscore is a helper; a registry names the other helpers.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Generic, TypeVar

from tracer.errors import BadOption

T = TypeVar("T")
Value = TypeVar("Value")


class Registry(Generic[T]):
    """The entries of one package, sorted by name.

    Args:
        package: Name of the package.
        attribute: What each file defines: "find".
        helpers: Files of the package that are no entries.
        instead: Names of which a file may define one instead of `attribute`; then it is no entry of this registry.
        kind: What an entry is, for the message about an unknown name: "output format".
    """

    def __init__(
        self, package: str, attribute: str, helpers: Sequence[str] = (), instead: Sequence[str] = (), kind: str = "entry"
    ) -> None:
        self._package, self._attribute, self._kind = package, attribute, kind
        self._helpers, self._instead = frozenset(helpers), tuple(instead)

    def names(self) -> tuple[str, ...]:
        """The names of the files, sorted. No file is imported."""
        files = (m.name for m in pkgutil.iter_modules(sys.modules[self._package].__path__) if not m.ispkg)
        return tuple(sorted(name for name in files if not name.startswith("_") and name not in self._helpers))

    def require(self, name: str) -> None:
        """Raises BadOption for an unknown name. No file is imported."""
        if name not in self.names():
            raise BadOption(f"There is no {self._kind} {name!r}: choose one of {', '.join(self.names())}.")

    def find(self, name: str) -> T:
        """The entry of that name.

        Raises:
            BadOption: There is no such file.
            LookupError: The file does not define what it should.
        """
        self.require(name)
        found: T | None = getattr(self._module(name), self._attribute, None)
        if found is None:
            raise LookupError(f"{self._path}/{name}.py does not define {self._attribute}")
        return found

    def entries(self) -> tuple[tuple[str, T], ...]:
        """All entries with their names, sorted by name. Raises LookupError for a file that does not define what it should."""
        there = (name for name in self.names() if not any(hasattr(self._module(name), other) for other in self._instead))
        return tuple((name, self.find(name)) for name in there)

    def modules(self) -> tuple[ModuleType, ...]:
        """The files of all entries, sorted by name."""
        return tuple(self._module(name) for name, _ in self.entries())

    def in_order(self, order: Sequence[str]) -> tuple[tuple[str, T], ...]:
        """All entries with their names, in this order. Raises LookupError if it does not name exactly the files."""
        differing = set(order) ^ set(self.names())
        if differing:
            raise LookupError(f"{self._path}: ORDER and files differ: {sorted(differing)}")
        return tuple((name, self.find(name)) for name in order)

    def values(self, attribute: str, default: Value) -> dict[str, Value]:
        """What each file defines as `attribute`, by the name of the file; `default` where it defines none."""
        return {name: getattr(self._module(name), attribute, default) for name in self.names()}

    @property
    def _path(self) -> str:
        return self._package.replace(".", "/")

    def _module(self, name: str) -> ModuleType:
        return import_module(f"{self._package}.{name}")
