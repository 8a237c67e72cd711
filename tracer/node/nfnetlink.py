# SPDX-License-Identifier: Apache-2.0
"""The part of netfilter's netlink that reading nftables needs: requests, dumps, batches, attributes.

A socket belongs to the network namespace of the thread that made it, until it is closed.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from tracer.util.octets import decoded, encoded

NETLINK_NETFILTER, NFTABLES = 12, 10
F_REQUEST, F_ACK, F_DUMP, F_CREATE, F_APPEND = 0x1, 0x4, 0x300, 0x400, 0x800
F_DUMP_INTERRUPTED = 0x10
ERROR, DONE, BATCH_BEGIN, BATCH_END = 2, 3, 16, 17
NESTED = 0x8000
SOL_NETLINK, ADD_MEMBERSHIP = 270, 1

MOST = 200_000
"""Largest number of objects of one kind that are read from a namespace: rules, chains, elements of all verdict maps."""
WATCHED_EVERY = 1000
"""Number of objects of a dump after which `watch` is called."""
MODULE, SYMBOLS = Path("/sys/module/nf_tables"), Path("/proc/kallsyms")
Message = tuple[int, int, bytes]
"""(type within nftables (NFT_MSG_*), family, attributes)."""


class TooManyMessages(OSError):
    """There are more objects than are read. The socket must not be used any more. generation: of the rules, 0 = not known."""

    generation = 0


class DumpInterrupted(Exception):
    """The ruleset changed during the dump: the received objects are of two generations."""


def nft_loaded() -> bool:
    """Whether the kernel has nf_tables, as a module or built in. A request to it would load it."""
    if MODULE.exists():
        return True
    with SYMBOLS.open(encoding="ascii", errors="replace") as lines:
        return any(line.split()[2] == "nft_do_chain" for line in lines)


def attribute(kind: int, value: bytes | int | str | Iterable[bytes]) -> bytes:
    """Encodes one attribute. int: 32 bits, network order. str: with a final zero byte. Iterable of attributes: nested."""
    if isinstance(value, int):
        value = struct.pack(">I", value)
    elif isinstance(value, str):
        value = encoded(value) + b"\0"
    elif not isinstance(value, bytes):
        kind, value = kind | NESTED, b"".join(value)
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def items(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (kind, value) of the attributes in `raw`, in order; a kind may occur more than once."""
    at, end = 0, len(raw)
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", raw, at)
        if length < 4:
            return
        yield kind & 0x3FFF, raw[at + 4 : at + length]
        at += (length + 3) & ~3


def attributes(raw: bytes) -> dict[int, bytes]:
    """The attributes in `raw`, by kind."""
    return dict(items(raw))


def number(raw: bytes | None) -> int:
    """Decodes an unsigned number in network order; 0 = absent."""
    return int.from_bytes(raw or b"", "big")


def text(raw: bytes | None) -> str:
    return decoded((raw or b"").rstrip(b"\0"))


def _message(kind: int, flags: int, family: int, resource: int, attrs: bytes) -> bytes:
    body = struct.pack(">BBH", family, 0, resource) + attrs
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


class Nfnetlink:
    """A netlink socket to netfilter; a context manager. Methods raise OSError with the kernel's errno."""

    def __init__(self, group: int = 0, receive_bytes: int = 0) -> None:
        """Opens the socket.

        Args:
            group: Multicast group to listen to, 0 = none.
            receive_bytes: Size of the receive buffer, bytes; 0 = the default.
        """
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        try:
            self._sock.bind((0, 0))
            if receive_bytes:
                self._sock.setsockopt(socket.SOL_SOCKET, 33, receive_bytes)  # SO_RCVBUFFORCE
            if group:
                self._sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)
        except BaseException:
            self._sock.close()
            raise

    def dump(
        self, message: int, family: int = 0, attrs: bytes = b"", watch: Callable[[int], None] = lambda count: None
    ) -> list[Message]:
        """Reads all objects of a kind.

        Args:
            message: The request for that kind.
            family: The protocol family, 0 = all.
            attrs: Attributes of the request.
            watch: Called with a number of objects that were read, several times in a long dump.

        Raises:
            DumpInterrupted: They changed during the dump.
            TooManyMessages: There are more than MOST.
        """
        out: list[Message] = []
        for each in self.iter_dump(message, family, attrs):
            out.append(each)
            if len(out) % WATCHED_EVERY == 0:
                watch(WATCHED_EVERY)
            if len(out) > MOST:
                raise TooManyMessages(f"there are more than {MOST} of them")
        return out

    def iter_dump(self, message: int, family: int = 0, attrs: bytes = b"") -> Iterator[Message]:
        """Yields the objects of a kind. A dump that is not read to its end occupies the kernel until the socket is closed.

        Raises:
            DumpInterrupted: They changed during the dump; raised at the end.
        """
        self._sock.send(_message(NFTABLES << 8 | message, F_REQUEST | F_DUMP, family, 0, attrs))
        interrupted = False
        while True:
            for kind, flags, body in self._receive():
                interrupted |= bool(flags & F_DUMP_INTERRUPTED)
                if kind == ERROR:
                    _raise(body)
                if kind == DONE:
                    if interrupted:
                        raise DumpInterrupted
                    return
                yield kind & 255, body[0], body[4:]

    def get(self, message: int, family: int = 0, attrs: bytes = b"") -> Message:
        """Reads one object."""
        self._sock.send(_message(NFTABLES << 8 | message, F_REQUEST, family, 0, attrs))
        kind, _, body = next(self._receive())
        if kind == ERROR:
            _raise(body)
        return kind & 255, body[0], body[4:]

    def batch(self, messages: Iterable[Message]) -> None:
        """Makes all changes or none; waits for the kernel's answer to each."""
        sent = _message(BATCH_BEGIN, F_REQUEST, 0, NFTABLES, b"")
        count = 0
        for message, family, attrs in messages:
            flags = F_REQUEST | F_ACK | F_CREATE | F_APPEND
            sent += _message(NFTABLES << 8 | message, flags, family, 0, attrs)
            count += 1
        self._sock.send(sent + _message(BATCH_END, F_REQUEST, 0, NFTABLES, b""))
        while count:
            for kind, _, body in self._receive():
                if kind == ERROR:
                    _raise(body)
                    count -= 1

    def listen(self, seconds: float) -> list[Message]:
        """Messages of the group, after waiting up to `seconds` for the first one.

        Raises:
            OSError: ENOBUFS = messages were lost.
        """
        self._sock.settimeout(seconds)
        try:
            return [(kind & 255, body[0], body[4:]) for kind, _, body in self._receive() if kind >> 8 == NFTABLES]
        except TimeoutError:
            return []
        finally:
            self._sock.settimeout(None)

    def _receive(self) -> Iterator[tuple[int, int, bytes]]:
        data = self._sock.recv(1 << 17)
        at = 0
        while at + 16 <= len(data):
            length, kind, flags = struct.unpack_from("=IHH", data, at)
            yield kind, flags, data[at + 16 : at + length]
            at += (length + 3) & ~3

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Nfnetlink:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _raise(body: bytes) -> None:
    """Raises the error of an error message; 0 is an acknowledgement."""
    code = -struct.unpack_from("=i", body)[0]
    if code:
        raise OSError(code, os.strerror(code))
