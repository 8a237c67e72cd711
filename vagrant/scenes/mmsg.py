# SPDX-License-Identifier: Apache-2.0
"""sendmmsg and recvmmsg: many datagrams per system call, so that Python does not limit a flood."""

from __future__ import annotations

import ctypes
import errno
import os

MSG_WAITFORONE = 0x10000

_libc = ctypes.CDLL(None, use_errno=True)


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _MsgHdr(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.POINTER(_IoVec)),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class _MMsgHdr(ctypes.Structure):
    _fields_ = [("hdr", _MsgHdr), ("len", ctypes.c_uint)]


class Batch:
    """`count` message headers over one buffer of `octets` bytes, for a connected or bound socket."""

    def __init__(self, count: int, octets: int) -> None:
        self.count = count
        self._buffer = ctypes.create_string_buffer(octets)
        self._iov = _IoVec(ctypes.addressof(self._buffer), octets)
        self._msgs = (_MMsgHdr * count)()
        for msg in self._msgs:
            msg.hdr.iov = ctypes.pointer(self._iov)
            msg.hdr.iovlen = 1

    def send(self, fd: int, count: int) -> int:
        """Send up to `count` (at most self.count) copies; returns the number sent.

        Returns 0 when the kernel reported an earlier datagram's ICMP error, or a full queue; other errors raise OSError.
        """
        sent: int = _libc.sendmmsg(fd, self._msgs, min(count, self.count), 0)
        if sent >= 0:
            return sent
        err = ctypes.get_errno()
        if err in (errno.ECONNREFUSED, errno.ENOBUFS, errno.EAGAIN, errno.EHOSTUNREACH):
            return 0
        raise OSError(err, os.strerror(err))

    def receive(self, fd: int) -> int:
        """Wait for a datagram, then take all waiting ones, at most self.count; returns their number. Raises OSError."""
        got: int = _libc.recvmmsg(fd, self._msgs, self.count, MSG_WAITFORONE, None)
        if got < 0:
            err = ctypes.get_errno()
            raise OSError(err, os.strerror(err))
        return got
