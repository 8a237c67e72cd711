# SPDX-License-Identifier: Apache-2.0
"""Reads legacy tables of one network namespace without changes: no module is loaded, no table created.

A request for a missing table would load its module and create it, so only tables that the namespace lists are requested.
Structures: struct ipt_getinfo and ipt_get_entries, the same for ip6tables.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tracer.node import tools

GET_INFO, GET_ENTRIES = 64, 65
MOST_RULES, MOST_BYTES = 200_000, 96 << 20
"""Limits of one table: rules, bytes. A node with 10,000 Services has 80,000 rules in 40 MB. Reading briefly takes three times
the bytes."""
_LEVELS = {"ip": (socket.AF_INET, socket.IPPROTO_IP), "ip6": (socket.AF_INET6, socket.IPPROTO_IPV6)}
_INFO = struct.Struct("<32sI5I5III")
_REQUEST = struct.Struct("<32sI4x")
_libc = ctypes.CDLL(None, use_errno=True)


def present(family: str) -> list[str]:
    """Names of the tables in the calling thread's namespace. `family`: "ip" or "ip6"."""
    path = Path(f"/proc/thread-self/net/{family}_tables_names")
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


class TooManyEntries(OSError):
    """The table exceeds the limits. `rules`: its number of rules, 0 = not known."""

    def __init__(self, rules: int, what: str) -> None:
        super().__init__(what)
        self.rules = rules


class RawTable(NamedTuple):
    """A table as the kernel returns it.

    Attributes:
        blob: Its entries.
        hooks: Offset of each base chain's first rule, by hook number.
        underflows: Offset of each base chain's policy, by hook number.
    """

    blob: bytearray
    hooks: dict[int, int]
    underflows: dict[int, int]


def read(family: str, table: str, max_bytes: int = MOST_BYTES) -> RawTable:
    """Reads a table of the calling thread's namespace.

    Args:
        family: "ip" or "ip6".
        table: Its name; the table must be present.
        max_bytes: Most bytes that it may have.

    Raises:
        TooManyEntries: The table exceeds the limits.
        OSError: The kernel refused, or the table changed at each attempt.
    """
    kind, level = _LEVELS[family]
    with socket.socket(kind, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as s:
        for _ in range(5):
            info_buffer = bytearray(table.encode().ljust(_INFO.size, b"\0"))
            _getsockopt(s, level, GET_INFO, info_buffer)
            info = _INFO.unpack(info_buffer)
            valid, entries, underflows, size = info[1], info[2:7], info[7:12], info[13]
            if info[12] > MOST_RULES or size > max_bytes:
                raise TooManyEntries(info[12], f"the table has {info[12]} rules in {size} bytes, more than the limit")
            answer = bytearray(_REQUEST.size + size)
            _REQUEST.pack_into(answer, 0, table.encode(), size)
            try:
                _getsockopt(s, level, GET_ENTRIES, answer)
            except BlockingIOError:
                continue  # replaced since its size was read
            hooks = [h for h in range(5) if valid >> h & 1]
            del answer[: _REQUEST.size]
            return RawTable(answer, {h: entries[h] for h in hooks}, {h: underflows[h] for h in hooks})
    raise BlockingIOError(f"table {table} changes all the time")


def _getsockopt(s: socket.socket, level: int, option: int, data: bytearray) -> None:
    """Writes the answer over the question: a table of 80,000 rules is 40 MB and must not be copied."""
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    length = ctypes.c_uint32(len(data))
    if _libc.getsockopt(s.fileno(), level, option, buffer, ctypes.byref(length)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def save(family: str, table: str, watch: Callable[[bytes], None] | None = None) -> str | None:
    """Output of the legacy iptables-save for a table, without loading modules; None if the tool is missing.

    Args:
        family: "ip" or "ip6".
        table: The table.
        watch: As in tools.printed.

    Raises:
        OSError: The tool fails.
    """
    names = ("iptables-legacy-save", "iptables-save") if family == "ip" else ("ip6tables-legacy-save", "ip6tables-save")
    for name in names:
        program = tools.find(name)
        if not program or (name == names[1] and "nf_tables" in tools.printed(program, "-V")):
            continue
        return tools.printed(program, "-M", "/bin/true", "-t", table, watch=watch)
    return None
