# SPDX-License-Identifier: Apache-2.0
"""The part of rtnetlink that finding eBPF programs needs: dumps, notifications of all namespaces, numbers of namespaces.

The attributes of filters with the ids of programs are unknown to older versions of pyroute2, and it does not give the namespace
of a notification. Every request here only reads.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

from tracer.node.nfnetlink import ADD_MEMBERSHIP, DONE, ERROR, F_DUMP, F_DUMP_INTERRUPTED, F_REQUEST, SOL_NETLINK, attributes

NETLINK_ROUTE = 0
NEWLINK, DELLINK, GETLINK = 16, 17, 18
GETQDISC, NEWFILTER, GETFILTER = 38, 44, 46
NEWNSID, GETNSID = 88, 90
GROUP_LINK, GROUP_TC = 1, 4
LISTEN_ALL_NSID = 8
"""Socket option: notifications of all namespaces that have a number in this one (CAP_NET_BROADCAST)."""
NETNSA_NSID, NETNSA_FD = 1, 3
ANY_INTERFACE = -1
"""Interface of a notification about filters that several interfaces share."""

RECEIVE_BYTES = 1 << 18
MOST_MESSAGES = 65_536
"""Largest number of messages of one dump."""


class TooManyObjects(OSError):
    """A dump has more than MOST_MESSAGES messages."""


class ObjectsChanging(OSError):
    """The kernel's objects changed during a dump."""


class Notification(NamedTuple):
    """A change that the kernel announced.

    Attributes:
        nsid: Number of the namespace in the socket's namespace; -1 = the socket's own.
        ifindex: The interface; ANY_INTERFACE = any.
    """

    nsid: int
    ifindex: int


def request(kind: int, flags: int, body: bytes) -> bytes:
    """A message."""
    return struct.pack("=IHHII", 16 + len(body), kind, F_REQUEST | flags, 1, 0) + body


def link_request(ifindex: int = 0) -> bytes:
    """The body of GETLINK. ifindex: 0 = for a dump."""
    return struct.pack("=BxHiII", 0, 0, ifindex, 0, 0)


def tc_request(ifindex: int = 0, parent: int = 0) -> bytes:
    """The body of GETQDISC or GETFILTER."""
    return struct.pack("=BxxxiIII", 0, ifindex, 0, parent, 0)


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields (type, flags, body) of the messages of a datagram."""
    at = 0
    while at + 16 <= len(data):
        length, kind, flags = struct.unpack_from("=IHH", data, at)
        if length < 16 or at + length > len(data):
            return
        yield kind, flags, data[at + 16 : at + length]
        at += (length + 3) & ~3


class Rtnetlink:
    """A socket in the namespace of the thread that makes it; a context manager. Methods raise OSError."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_ROUTE)
        try:
            self.sock.bind((0, 0))
            self.sock.settimeout(5)
        except BaseException:
            self.sock.close()
            raise

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The bodies of all messages of a dump."""
        self.sock.send(request(kind, F_DUMP, body))
        found: list[bytes] = []
        while True:
            for answer, flags, content in messages(self.sock.recv(RECEIVE_BYTES)):
                if flags & F_DUMP_INTERRUPTED:
                    raise ObjectsChanging(errno.EINTR, "the objects changed during the dump")
                if answer == DONE:
                    return found
                _raise_error(answer, content)
                found.append(content)
                if len(found) > MOST_MESSAGES:
                    raise TooManyObjects(errno.E2BIG, "too many objects")

    def get(self, kind: int, body: bytes) -> bytes:
        """The body of the answer to a request for one object."""
        self.sock.send(request(kind, 0, body))
        for answer, _, content in messages(self.sock.recv(RECEIVE_BYTES)):
            _raise_error(answer, content)
            return content
        raise OSError(errno.ENODATA, "no answer")

    def namespace_number(self, fd: int) -> int:
        """The number that this namespace has for the namespace of a descriptor; -1 = none."""
        content = self.get(GETNSID, struct.pack("=Bxxx", 0) + struct.pack("=HHI", 8, NETNSA_FD, fd))
        value = attributes(content[4:]).get(NETNSA_NSID, b"")
        return int(struct.unpack("=i", value)[0]) if len(value) == 4 else -1

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Rtnetlink:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _raise_error(answer: int, content: bytes) -> None:
    if answer == ERROR and len(content) >= 4:
        code = -struct.unpack_from("=i", content)[0]
        if code:
            raise OSError(code, f"rtnetlink: {errno.errorcode.get(code, code)}")


class ChangeListener:
    """Notifications of links and of filters of tc, of this namespace and of those with a number in it.

    Attributes:
        hears_others: Notifications of other namespaces come, too.
    """

    def __init__(self) -> None:
        """Opens the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_ROUTE)
        try:
            self.sock.bind((0, 0))
            self.sock.setblocking(False)
            self.hears_others = self._listen_to_all()
            for group in (GROUP_LINK, GROUP_TC):
                self.sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)
        except BaseException:
            self.sock.close()
            raise

    def _listen_to_all(self) -> bool:
        try:
            self.sock.setsockopt(SOL_NETLINK, LISTEN_ALL_NSID, 1)
        except OSError:
            return False
        return True

    def read(self) -> list[Notification] | None:
        """The notifications since the last call; None = some were lost."""
        found: list[Notification] = []
        while True:
            try:
                data, control, _, _ = self.sock.recvmsg(RECEIVE_BYTES, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return found
            except OSError as e:
                if e.errno == errno.ENOBUFS:
                    return None
                raise
            numbers = [value for level, kind, value in control if (level, kind) == (SOL_NETLINK, LISTEN_ALL_NSID)]
            nsid = struct.unpack("=i", numbers[0][:4])[0] if numbers and len(numbers[0]) >= 4 else -1
            found += [
                Notification(nsid, struct.unpack_from("=i", body, 4)[0]) for _, _, body in messages(data) if len(body) >= 8
            ]

    def close(self) -> None:
        self.sock.close()
