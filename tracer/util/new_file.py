# SPDX-License-Identifier: Apache-2.0
"""Safe creation of files: never over an existing file, never through a link, readable only by their owner.

Also finds other users who may change a directory: a program that opens files there by name (as SQLite) may get other files.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def fresh(path: Path | str, directory: int | None = None) -> int:
    """Creates a file with mode 0600 and opens it for reading and writing.

    Args:
        path: Path of the file.
        directory: Descriptor of the directory that a relative path starts at; None = the working directory.

    Raises:
        OSError: The file cannot be created, or the path exists.
    """
    return os.open(path, FLAGS | os.O_RDWR, 0o600, dir_fd=directory)


def intruder(directory: Path) -> str:
    """Other users who may replace our files in this directory, as a clause; "" = none.

    Trusted are root, this user, and the caller of sudo, who can act as root. In a directory with the sticky bit, such as /tmp,
    others may create files but not change ours. Each directory and each link of the path is checked.

    Raises:
        OSError: A part of the path cannot be read.
    """
    absolute = Path(os.path.abspath(directory))
    for place in (absolute, absolute.resolve(strict=True)):
        for part in (*reversed(place.parents), place):
            found = os.lstat(part)
            if found.st_uid not in _trusted():
                return f"{part} belongs to {_user(found.st_uid)}"
            if not stat.S_ISLNK(found.st_mode) and not found.st_mode & stat.S_ISVTX:
                if found.st_mode & stat.S_IWOTH:
                    return f"everybody may write to {part}"
                if found.st_mode & stat.S_IWGRP and not _private(found.st_gid):
                    return f"a group may write to {part}"
    return ""


def _trusted() -> set[int]:
    caller = os.environ.get("SUDO_UID", "")
    return {0, os.geteuid(), *([int(caller)] if caller.isascii() and caller.isdigit() else ())}


def _private(group: int) -> bool:
    """Whether a group is root's, or the private group of a trusted user."""
    if group == 0:
        return True
    try:
        found = grp.getgrgid(group)
        owners = [pwd.getpwuid(uid) for uid in _trusted()]
    except (KeyError, OverflowError):
        return False
    return any(o.pw_name == found.gr_name and o.pw_gid == group and set(found.gr_mem) <= {o.pw_name} for o in owners)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
