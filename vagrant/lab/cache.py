# SPDX-License-Identifier: Apache-2.0
"""The directory of images: named by a hash of their definition, built once and atomically, old ones deleted."""

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
    """The cache directory; made if it does not exist."""
    own = os.environ.get("K8SNET_LAB_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(own) if own else base / "k8snet-trace" / "lab"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def digest(*parts: object) -> str:
    """A short hash of values that JSON can represent: equal values have equal hashes on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock with that name; a second process waits. The kernel frees it if the holder dies."""
    with (directory() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Image:
    """An image to build: a file or directory `stem-key suffix` in the cache."""

    stem: str
    key: str
    suffix: str
    build: Callable[[Path], Path]
    """Makes the image in an empty scratch directory (same file system) and returns its path there."""

    @property
    def path(self) -> Path:
        """The path of the image, also before it is built."""
        return directory() / f"{self.stem}-{self.key}{self.suffix}"

    def ensure(self) -> Path:
        """Builds the image if it is missing, with a message on stderr, and returns its path; LabError if the build fails."""
        if self.path.exists():
            return self.path
        with locked(self.stem):
            if not self.path.exists():  # the other process may have built it
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
    if inside:  # left by a killed build: deleting would delete in the host's /dev or /sys
        raise LabError(f"still mounted: umount {' '.join(reversed(inside))}")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
