# SPDX-License-Identifier: Apache-2.0
"""Sockets of the node with a mark, for rules that give this mark to the sockets' packets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from scenes import topology

MARKS = {53: 0x1, 8080: 0x4000, 30285: 0x4001}
"""Marks by UDP port."""


@contextmanager
def sockets() -> Iterator[None]:
    """The sockets exist within the block; nothing reads them."""
    with ExitStack() as stack:
        for family, address in ((socket.AF_INET, topology.NODE4), (socket.AF_INET6, topology.NODE6)):
            for port, mark in MARKS.items():
                sock = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
                with suppress(OSError):  # a server of the scene has this port
                    sock.bind((address, port))
        yield
