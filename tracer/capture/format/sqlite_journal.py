# SPDX-License-Identifier: Apache-2.0
"""Rolls back an interrupted transaction in a copy of the file. SQLite itself never gets a journal to roll back.

A journal can name a second file (a super-journal), which SQLite removes after the rollback. This program never writes such a
journal, so it is ignored. Source of the format: "Database File Format", the rollback journal, on sqlite.org.
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
"""Magic, number of pages, nonce, pages of the file before the transaction, sector size, page size."""
_SUPER = struct.Struct(">II8s")
"""At the end of the journal, if there is a super-journal: length of its name, checksum of the name, magic."""
UNKNOWN_COUNT = 0xFFFFFFFF
"""Number of pages in a header that means: all pages up to the end of the journal."""
SHARED, SHARED_BYTES = 0x40000002, 510
"""Offset and length of the byte range that SQLite's readers lock."""
MAX_LOCK_SECONDS = 3.0
"""Maximum time that a copy blocks the writer, seconds. The writer gives up a commit after 5 seconds."""
COPY_BYTES = 1 << 20
"""Bytes copied at a time."""


def open_beside(path: Path, suffix: str, owner: int) -> int | None:
    """Opens a file beside a capture, if it is a regular file of the same user.

    Args:
        path: the capture.
        suffix: added to the name of the capture.
        owner: user id of the capture's owner.

    Returns:
        A descriptor, None where there is no such file.
    """
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
    """Whether a tracer is writing the capture now. It holds a lock on a file beside it
    (tracer/capture/record/capture_files.py)."""
    fd = open_beside(path, "-wal", owner)
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
    """Copies a file that a writer may have open, under a reader's lock. Holes stay holes. Raises OSError."""
    lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, SHARED, SHARED_BYTES, 0)
    until = time.monotonic() + MAX_LOCK_SECONDS
    while True:
        try:
            fcntl.fcntl(source, fcntl.F_OFD_SETLK, lock)
            break
        except OSError:
            if time.monotonic() > until:
                break
            time.sleep(0.01)
    until, size, at = time.monotonic() + MAX_LOCK_SECONDS, os.fstat(source).st_size, 0
    try:
        while at < size:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError:
                break  # only a hole is left
            end = os.lseek(source, at, os.SEEK_HOLE)
            while at < end and (data := os.pread(source, min(COPY_BYTES, end - at), at)):
                os.pwrite(target, data, at)
                at += len(data)
                if until and time.monotonic() > until:
                    # The data copied from here on may be newer: the check sums of the rows show it.
                    fcntl.fcntl(source, fcntl.F_OFD_SETLK, _unlocked())
                    until = 0
        os.ftruncate(target, size)
    finally:
        fcntl.fcntl(source, fcntl.F_OFD_SETLK, _unlocked())


def _unlocked() -> bytes:
    return struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, SHARED, SHARED_BYTES, 0)


def undo(journal: int, target: int) -> bool:
    """Writes the pages of a journal back into the copy. Raises OSError.

    It stops at the end of the journal, or at the first incomplete page: pages after that had not been written to the file.

    Args:
        journal: descriptor of the journal.
        target: descriptor of the copy.

    Returns:
        False when this program's writer cannot have written such a journal.
    """
    length, size = os.fstat(journal).st_size, os.fstat(target).st_size
    if length >= _SUPER.size and os.pread(journal, 8, length - 8) == MAGIC and length > _HEAD.size:
        return False
    at, before, page = 0, 0, 0
    while (head := os.pread(journal, _HEAD.size, at)) and len(head) == _HEAD.size and head.startswith(MAGIC):
        _, count, nonce, pages, sector, page_size = _HEAD.unpack(head)
        if not (_is_power_of_two(sector, 32) and _is_power_of_two(page_size, 512)):
            return False
        if pages * page_size > size or (page and page_size != page):
            return False
        if not at:
            before, page = pages, page_size
        if count == UNKNOWN_COUNT:
            count = (length - at) // (page + 8)
        if count > before:
            return False
        at += sector
        for _ in range(count):
            record = os.pread(journal, page + 8, at)
            if len(record) < page + 8 or not _is_intact(record, nonce, page):
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


def _is_power_of_two(number: int, least: int) -> bool:
    return least <= number <= 65536 and not number & (number - 1)


def _is_intact(record: bytes, nonce: int, page: int) -> bool:
    data = record[4:-4]
    total = nonce + sum(data[at] for at in range(page - 200, 0, -200))
    return total & 0xFFFFFFFF == int.from_bytes(record[-4:], "big")
