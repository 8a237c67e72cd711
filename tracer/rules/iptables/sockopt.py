# SPDX-License-Identifier: Apache-2.0
"""Reads legacy tables of one network namespace, changing nothing: no module is loaded, no table made.

Asking for a table that is not there would load its module and make it, so only tables that the namespace lists are asked for.
Structures: struct ipt_getinfo and ipt_get_entries, the same for ip6tables.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from tracer.node import tools

GET_INFO, GET_ENTRIES = 64, 65
MOST_RULES, MOST_BYTES = 200_000, 96 << 20
"""Of one table: a node with 10,000 Services has 80,000 rules in 40 MB. Reading takes three times the bytes for a moment."""
_LEVELS = {"ip": (socket.AF_INET, socket.IPPROTO_IP), "ip6": (socket.AF_INET6, socket.IPPROTO_IPV6)}
_INFO = struct.Struct("<32sI5I5III")
_REQUEST = struct.Struct("<32sI4x")
_libc = ctypes.CDLL(None, use_errno=True)


def present(family: str) -> list[str]:
    """Names of the tables that the calling thread's namespace has."""
    path = Path(f"/proc/thread-self/net/{family}_tables_names")
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


class TooManyEntries(OSError):
    """There are more rules than are read. rules: how many, 0 = not known."""

    def __init__(self, rules: int, what: str) -> None:
        super().__init__(what)
        self.rules = rules


class RawTable(NamedTuple):
    """A table as the kernel hands it out; hooks, underflows: offsets by hook number."""

    blob: bytearray
    hooks: dict[int, int]
    underflows: dict[int, int]


def read(family: str, table: str, room: int = MOST_BYTES) -> RawTable:
    """A table of the calling thread's namespace. It must be present. room: bytes that it may have. Raises OSError,
    TooManyEntries."""
    kind, level = _LEVELS[family]
    with socket.socket(kind, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as s:
        for _ in range(5):
            told = bytearray(table.encode().ljust(_INFO.size, b"\0"))
            _ask(s, level, GET_INFO, told)
            info = _INFO.unpack(told)
            valid, entries, underflows, size = info[1], info[2:7], info[7:12], info[13]
            if info[12] > MOST_RULES or size > room:
                raise TooManyEntries(info[12], f"the table has {info[12]} rules in {size} bytes, which is more than are read")
            answer = bytearray(_REQUEST.size + size)
            _REQUEST.pack_into(answer, 0, table.encode(), size)
            try:
                _ask(s, level, GET_ENTRIES, answer)
            except BlockingIOError:
                continue  # replaced since its size was asked for
            hooks = [h for h in range(5) if valid >> h & 1]
            del answer[: _REQUEST.size]
            return RawTable(answer, {h: entries[h] for h in hooks}, {h: underflows[h] for h in hooks})
    raise BlockingIOError(f"table {table} changes all the time")


def _ask(s: socket.socket, level: int, option: int, question: bytearray) -> None:
    """Puts the answer where the question was: a table of 80,000 rules is 40 MB, and is not copied about."""
    buffer = (ctypes.c_char * len(question)).from_buffer(question)
    length = ctypes.c_uint32(len(question))
    if _libc.getsockopt(s.fileno(), level, option, buffer, ctypes.byref(length)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def save(family: str, table: str) -> str | None:
    """What iptables-save of the legacy back end prints of a table; None when this machine has none.

    It is told not to load modules. Raises OSError.
    """
    names = ("iptables-legacy-save", "iptables-save") if family == "ip" else ("ip6tables-legacy-save", "ip6tables-save")
    for name in names:
        program = tools.find(name)
        if not program or (name == names[1] and "nf_tables" in tools.printed(program, "-V")):
            continue
        return tools.printed(program, "-M", "/bin/true", "-t", table)
    return None
