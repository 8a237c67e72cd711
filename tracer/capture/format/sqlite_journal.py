# SPDX-License-Identifier: Apache-2.0
"""Undoes a transaction that was cut short, in a copy of the file: SQLite itself is never given a journal to play.

A journal can name a second file (a super-journal), which SQLite removes when it is done. A journal that names one is none of
this program's, and is passed over. Source of the format: "Database File Format", the rollback journal, on sqlite.org.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from pathlib import Path

MAGIC = bytes.fromhex("d9d505f920a163d7")
_HEAD = struct.Struct(">8sIIIII")
"""Magic, number of pages, nonce, pages of the file before, size of a sector, size of a page."""
_SUPER = struct.Struct(">II8s")
"""At the very end, when there is one: length of the name before it, its sum, magic."""
ALL = 0xFFFFFFFF
SHARED, SHARED_BYTES = 0x40000002, 510
"""Where SQLite's readers hold their lock."""
LOCKED_SECONDS = 3.0
"""How long a copy may keep the writer waiting: he gives a commit up after 5."""
AT_ONCE = 1 << 20


def beside(path: Path, suffix: str, owner: int) -> int | None:
    """A descriptor of a regular file beside a capture, of the same user's; None when there is none that is not empty."""
    try:
        fd = os.open(path.with_name(path.name + suffix), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == owner:
        return fd
    os.close(fd)
    return None


def is_written(path: Path, owner: int) -> bool:
    """Whether a tracer is writing the capture now: it holds a lock on a file beside it
    (tracer/capture/record/capture_files.py)."""
    fd = beside(path, "-wal", owner)
    if fd is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def copy(source: int, target: int) -> None:
    """Copies a file that a writer may have open, under the lock of a reader. Holes stay holes. Raises OSError."""
    held = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, SHARED, SHARED_BYTES, 0)
    until = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            fcntl.fcntl(source, fcntl.F_OFD_SETLK, held)
            break
        except OSError:
            if time.monotonic() > until:
                break
            time.sleep(0.01)
    until, size, at = time.monotonic() + LOCKED_SECONDS, os.fstat(source).st_size, 0
    try:
        while at < size:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError:
                break  # Nothing but a hole is left.
            end = os.lseek(source, at, os.SEEK_HOLE)
            while at < end and (data := os.pread(source, min(AT_ONCE, end - at), at)):
                os.pwrite(target, data, at)
                at += len(data)
                if until and time.monotonic() > until:
                    # What is copied from here on may be newer: the check sums of the rows tell.
                    fcntl.fcntl(source, fcntl.F_OFD_SETLK, _unlocked())
                    until = 0
        os.ftruncate(target, size)
    finally:
        fcntl.fcntl(source, fcntl.F_OFD_SETLK, _unlocked())


def _unlocked() -> bytes:
    return struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, SHARED, SHARED_BYTES, 0)


def undo(journal: int, target: int) -> bool:
    """Writes the pages of a journal back into the copy; False when it is none that this program's writer can have left.

    Its end, or the first page that is not whole, ends it: behind that nothing had reached the file. Raises OSError.
    """
    length, size = os.fstat(journal).st_size, os.fstat(target).st_size
    if length >= _SUPER.size and os.pread(journal, 8, length - 8) == MAGIC and length > _HEAD.size:
        return False
    at, before, page = 0, 0, 0
    while (head := os.pread(journal, _HEAD.size, at)) and len(head) == _HEAD.size and head.startswith(MAGIC):
        _, count, nonce, pages, sector, now = _HEAD.unpack(head)
        if not (_power(sector, 32) and _power(now, 512)) or pages * now > size or (page and now != page):
            return False
        if not at:
            before, page = pages, now
        if count == ALL:
            count = (length - at) // (page + 8)
        if count > before:
            return False
        at += sector
        for _ in range(count):
            record = os.pread(journal, page + 8, at)
            if len(record) < page + 8 or not _sound(record, nonce, page):
                os.ftruncate(target, before * page)
                return True
            number = int.from_bytes(record[:4], "big")
            if 0 < number <= before:
                os.pwrite(target, record[4:-4], (number - 1) * page)
            at += page + 8
        at = -(-at // sector) * sector
    if page:
        os.ftruncate(target, before * page)
    return bool(page)


def _power(number: int, least: int) -> bool:
    return least <= number <= 65536 and not number & (number - 1)


def _sound(record: bytes, nonce: int, page: int) -> bool:
    data = record[4:-4]
    total = nonce + sum(data[at] for at in range(page - 200, 0, -200))
    return total & 0xFFFFFFFF == int.from_bytes(record[-4:], "big")
