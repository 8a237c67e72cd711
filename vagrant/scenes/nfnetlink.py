# SPDX-License-Identifier: Apache-2.0
"""Three nfnetlink requests, without a process and without a library: nfacct objects and the conntrack table.

kube-proxy's rules from 1.32 on count in nfacct objects, which must exist before the rules are restored.
"""

from __future__ import annotations

import os
import socket
import struct

_NETLINK_NETFILTER = 12
_CTNETLINK, _ACCT = 1, 7
_CT_DELETE, _ACCT_NEW, _ACCT_DEL = 2, 0, 3
_F_REQUEST, _F_ACK, _F_REPLACE, _F_CREATE = 0x1, 0x4, 0x100, 0x400
_NFACCT_NAME = 1


def acct_new(name: str) -> None:
    """Create the nfacct object `name` (at most 31 bytes), or set an existing one to zero."""
    raw = name.encode() + b"\0"
    attr = struct.pack("=HH", 4 + len(raw), _NFACCT_NAME) + raw + b"\0" * (-len(raw) % 4)
    _request(_ACCT, _ACCT_NEW, _F_CREATE | _F_REPLACE, attr)


def acct_delete_unused() -> None:
    """Remove every nfacct object that no rule uses."""
    _request(_ACCT, _ACCT_DEL, 0, b"")


def conntrack_flush() -> None:
    """Remove all conntrack entries of this namespace, as `conntrack -F` does."""
    _request(_CTNETLINK, _CT_DELETE, 0, b"")


def _request(subsystem: int, message: int, flags: int, attrs: bytes) -> None:
    """Send one request and wait for its acknowledgement; OSError with the kernel's errno if it is refused."""
    body = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0) + attrs
    head = struct.pack("=LHHLL", 16 + len(body), subsystem << 8 | message, flags | _F_REQUEST | _F_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as sock:
        sock.bind((0, 0))
        sock.send(head + body)
        error = struct.unpack_from("=l", sock.recv(8192), 16)[0]
    if error:
        raise OSError(-error, os.strerror(-error))
