# SPDX-License-Identifier: Apache-2.0
"""New files, made so that nobody else has a say in them: never over another file, never through a link, for their owner alone.

Also who else may change what is in a directory: a program that opens files there by name (SQLite does) may be given others.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def fresh(path: Path | str, directory: int | None = None) -> int:
    """A descriptor of a new file, mode 0600, open for reading and writing. Raises OSError, also when anything is there."""
    return os.open(path, FLAGS | os.O_RDWR, 0o600, dir_fd=directory)


def intruder(directory: Path) -> str:
    """Who else may put other files in place of ours in this directory; "" when nobody may.

    Root and this user are trusted, and who called sudo: he may do as root what he likes. In a directory with the sticky bit, as
    /tmp, others may make files but not touch ours. Each directory on the way counts, and each link. Raises OSError.
    """
    way = Path(os.path.abspath(directory))
    for place in (way, way.resolve(strict=True)):
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
    """Whether a group is root's, or the one that a trusted user has for himself alone."""
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
