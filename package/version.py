#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The version of a source tree: prints it. Needs nothing but Python, and git where there is a clone.

    tag v0.2.0                          0.2.0
    12 commits after it                 0.2.0+12.g83d62017
    the same, with local changes        0.2.0+12.g83d62017.dirty
    no tag in the clone (shallow)       RELEASE of tracer/__init__.py, +g83d62017
    no git, and no version in the tree  RELEASE

Each is valid for Python (PEP 440) and as an upstream version of Debian.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_DESCRIBED = re.compile(r"v(?P<tag>\d+(?:\.\d+)*)(?:-(?P<commits>\d+)-(?P<commit>g[0-9a-f]+))?(?P<dirty>-dirty)?")
_COMMIT = re.compile(r"(?P<commit>[0-9a-f]{7,40})(?P<dirty>-dirty)?")
_RELEASE = re.compile(r'^RELEASE = "([\d.]+)"$', re.M)


def version(root: Path = ROOT) -> str:
    """The version of the tree in a directory: what a build wrote there, else git's, else the last release."""
    return _read(root / "tracer/VERSION") or format_version(_archived(root) or _described(root), release(root))


def release(root: Path = ROOT) -> str:
    """The last release, as the source names it."""
    found = _RELEASE.search(_read(root / "tracer/__init__.py"))
    if not found:
        raise ValueError("tracer/__init__.py names no RELEASE")
    return found[1]


def format_version(described: str, last: str) -> str:
    """The version for an output of `git describe`.

    Args:
        described: TAG, TAG-COMMITS-gCOMMIT or COMMIT, each with -dirty or without; "" = not known.
        last: The last release, for a commit without a tag.
    """
    found = _DESCRIBED.fullmatch(described)
    if found:
        distance = [found["commits"], found["commit"]] if found["commits"] not in (None, "0") else []
        tag = found["tag"]
    else:
        found, tag = _COMMIT.fullmatch(described), last
        distance = ["g" + found["commit"][:8]] if found else []
    local = ".".join([*distance, *(["dirty"] if found and found["dirty"] else [])])
    return f"{tag}+{local}" if local else tag


def _described(root: Path) -> str:
    """The tag, distance and commit of a clone; "" where there is none, or git cannot read it."""
    if not (root / ".git").exists():
        return ""
    # An administrator's `sudo make deb` reads the clone of a user: git refuses that unless the directory is named.
    git = ["git", "-c", f"safe.directory={root}", "-C", str(root)]
    describe = ["describe", "--tags", "--long", "--always", "--dirty", "--abbrev=8", "--match", "v[0-9]*"]
    try:
        return subprocess.run([*git, *describe], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    except OSError:
        return ""


def _archived(root: Path) -> str:
    """What `git archive` has written into the tree; "" = it was not made by it."""
    lines = dict(line.partition(": ")[::2] for line in _read(root / ".git_archival.txt").splitlines())
    return next((lines[key] for key in ("describe", "commit") if lines.get(key) and "$" not in lines[key]), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    print(version())
