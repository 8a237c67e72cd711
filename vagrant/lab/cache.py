# SPDX-License-Identifier: Apache-2.0
"""Where images live: named by a hash of what defines them, built once and atomically, old ones deleted."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .host import LabError


def directory() -> Path:
    """The cache directory, made if it is missing."""
    own = os.environ.get("K8SNET_LAB_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(own) if own else base / "k8snet-trace" / "lab"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def digest(*parts: object) -> str:
    """A short hash of JSON-able values: equal values, equal hash, on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of that name; a second process waits. Freed by the kernel if the holder dies."""
    with (directory() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Image:
    """Something to build: a file or directory `stem-key suffix` in the cache."""

    stem: str
    key: str
    suffix: str
    build: Callable[[Path], Path]
    """Makes it inside an empty scratch directory (same file system) and returns its path there."""

    @property
    def path(self) -> Path:
        """Where it is, or will be."""
        return directory() / f"{self.stem}-{self.key}{self.suffix}"

    def ensure(self) -> Path:
        """Build it if it is missing (saying so on stderr) and return its path; LabError if that fails."""
        if self.path.exists():
            return self.path
        with locked(self.stem):
            if not self.path.exists():  # the process waited for may have built it
                print(f"lab: building {self.stem} (once)", file=sys.stderr, flush=True)
                self._build()
        return self.path

    def _build(self) -> None:
        scratch = directory() / f".{self.stem}.tmp"
        remove(scratch)
        scratch.mkdir()
        try:
            self.build(scratch).rename(self.path)
        finally:
            remove(scratch)
        for old in directory().glob(f"{self.stem}-*"):
            if old != self.path:
                remove(old)


def remove(path: Path) -> None:
    """Delete a file or a tree, if it is there; LabError if something is mounted in it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [mount for mount in mounts if Path(mount).is_relative_to(path)]
    if inside:  # a killed build: deleting would go into the host's /dev or /sys
        raise LabError(f"still mounted: umount {' '.join(reversed(inside))}")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
