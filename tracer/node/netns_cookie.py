# SPDX-License-Identifier: Apache-2.0
"""The cookie of a network namespace: a number that the kernel assigns only once; inodes are reused."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

SO_NETNS_COOKIE = 71
"""Option of SOL_SOCKET, since kernel commit e8b9eab99232 ("net: retrieve netns cookie via getsocketopt", 5.14)."""


def cookie() -> int:
    """Lower half of the cookie of this thread's namespace; 0 = user space cannot read it."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder) & 0xFFFFFFFF
    return 0
