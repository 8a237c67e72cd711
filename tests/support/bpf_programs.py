# SPDX-License-Identifier: Apache-2.0
"""eBPF programs for tests, as a CNI attaches them: each drops, redirects or rewrites one of three packets to a UDP port, and
counts what it does.

They are raw instructions, loaded by the tracer's own bpf(2), and attached by netlink or bpf(2), so that no compiler and no
other tool is needed. What a test attaches goes with its descriptors, or with its network namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.builders import BtfBuilder
from tracer.kernel import bpf_syscall
from tracer.kernel.bpf_syscall import BpfMap, MapDefinition, ProgramTarget
from tracer.node.nfnetlink import attribute
from tracer.node.rtnetlink import NEWFILTER, NEWLINK, Rtnetlink, messages, request

ARRAY, SCHED_CLS, XDP, CGROUP_SKB, SOCK_ADDR, SK_LOOKUP = 2, 3, 6, 8, 18, 30
SOCKMAP = 15
_LOCAL_PORT = 60
"""Offset of local_port in struct bpf_sk_lookup."""
PIN, BTF_LOAD, LINK_CREATE = 6, 18, 28
GENERIC, NATIVE = 2, 4
"""XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE."""
INGRESS, EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
NEWQDISC, DELQDISC, DELFILTER, CREATE, EXCL, REPLACE, ACK = 36, 37, 45, 0x400, 0x200, 0x100, 4
_PASS = {SCHED_CLS: -1, XDP: 2, CGROUP_SKB: 1}
"""TC_ACT_UNSPEC, the next filter or program decides; XDP_PASS; 1 = the socket may have or send it."""
_DROP = {SCHED_CLS: 2, XDP: 1, CGROUP_SKB: 0}
_HEADER = {SCHED_CLS: 14, XDP: 14, CGROUP_SKB: 0}
"""Bytes before the IP header."""


def _op(code: int, dst: int = 0, src: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, src << 4 | dst, offset, value)


def _instructions(kind: int, counters: int, port: int, nth: int, act: list[bytes]) -> bytes:
    """The program: of IPv4 UDP packets to `port` counts all in element 0, acts on each `nth` one and counts it in element 1."""
    at_data, at_end = (0, 4) if kind == XDP else (76, 80)
    ip = _HEADER[kind]
    check = [
        _op(0xBF, 6, 1),  # r6 = context
        _op(0x61, 2, 6, at_data), _op(0x61, 3, 6, at_end),
        _op(0xBF, 4, 2), _op(0x07, 4, value=ip + 28),  # IPv4 without options, UDP
        (0x2D, 4, 3),  # if r4 > r3: pass
        _op(0x71, 4, 2, ip), (0x55, 4, 0x45),
        _op(0x71, 4, 2, ip + 9), (0x55, 4, 17),
        _op(0x69, 4, 2, ip + 22), (0x55, 4, socket.htons(port)),
    ]  # fmt: skip
    count = [
        *_count(counters, 0),
        _op(0x79, 7, 0, 0), _op(0x07, 7, value=1), _op(0x7B, 0, 7, 0),  # r7 = ++*r0
        _op(0x97, 7, value=nth), (0x55, 7, 0),  # if r7 % nth: pass
        *_count(counters, 1),
        _op(0x79, 7, 0, 0), _op(0x07, 7, value=1), _op(0x7B, 0, 7, 0),
        *act, _op(0x95),
    ]  # fmt: skip
    code = [*check, *count]
    places = [sum(len(each) // 8 if isinstance(each, bytes) else 1 for each in code[:at]) for at in range(len(code) + 1)]
    out = b""
    for at, each in enumerate(code):
        if isinstance(each, bytes):
            out += each
            continue
        jump, register, value = each
        offset = places[-1] - places[at] - 1
        out += _op(jump, register, value, offset) if jump == 0x2D else _op(jump, register, 0, offset, value)
    return out + _op(0xB7, value=_PASS[kind]) + _op(0x95)


def _count(counters: int, key: int) -> list[bytes | tuple[int, int, int]]:
    """Looks up the counter: r0 = its address, or the packet passes."""
    return [
        _op(0xB7, 1, value=key), _op(0x63, 10, 1, -4),
        _op(0xBF, 2, 10), _op(0x07, 2, value=-4),
        _op(0x18, 1, 1, value=counters), _op(0x00),
        _op(0x85, value=1),
        (0x15, 0, 0),
    ]  # fmt: skip


def redirecting(target: int, is_ingress: bool = False) -> list[bytes]:
    """Redirects a packet by bpf_redirect(). target: number of the interface. is_ingress: as received there."""
    return [_op(0xB7, 1, value=target), _op(0xB7, 2, value=int(is_ingress)), _op(0x85, value=23)]


def redirecting_to_peer(target: int) -> list[bytes]:
    """Redirects a packet by bpf_redirect_peer()."""
    return [_op(0xB7, 1, value=target), _op(0xB7, 2), _op(0x85, value=155)]


def redirecting_to_neighbour(target: int) -> list[bytes]:
    """Redirects a packet by bpf_redirect_neigh()."""
    return [_op(0xB7, 1, value=target), *(_op(0xB7, register) for register in (2, 3, 4)), _op(0x85, value=152)]


def copying(target: int) -> list[bytes]:
    """Sends a copy of a packet by bpf_clone_redirect(), and lets the packet pass."""
    return [
        _op(0xBF, 1, 6), _op(0xB7, 2, value=target), _op(0xB7, 3), _op(0x85, value=13), _op(0xB7, value=_PASS[SCHED_CLS]),
    ]  # fmt: skip


def rewriting(old: str, new: str, port: int) -> list[bytes]:
    """Rewrites destination address and port of a packet, and lets it pass: TC_ACT_OK."""
    before, after = (struct.unpack("=i", socket.inet_aton(each))[0] for each in (old, new))
    ip = _HEADER[SCHED_CLS]
    return [
        # bpf_l3_csum_replace(), bpf_skb_store_bytes(); a UDP checksum of 0 is none.
        _op(0xBF, 1, 6), _op(0xB7, 2, value=ip + 10), _op(0xB4, 3, value=before), _op(0xB4, 4, value=after),
        _op(0xB7, 5, value=4), _op(0x85, value=10),
        *_store(ip + 16, after, 4), *_store(ip + 22, socket.htons(port), 2), *_store(ip + 26, 0, 2),
        _op(0xB7),
    ]  # fmt: skip


def _store(offset: int, value: int, size: int) -> list[bytes]:
    """Stores a value of 2 or 4 bytes in a packet."""
    return [
        _op(0x62, 10, value=value, offset=-8), _op(0xBF, 1, 6), _op(0xB7, 2, value=offset), _op(0xBF, 3, 10),
        _op(0x07, 3, value=-8), _op(0xB7, 4, value=size), _op(0xB7, 5), _op(0x85, value=9),
    ]  # fmt: skip


@dataclass
class TestProgram:
    """A loaded program.

    Attributes:
        fd: Its descriptor.
        number: The kernel's id.
    """

    __test__ = False

    fd: int
    number: int
    _counters: BpfMap

    @property
    def seen(self) -> int:
        """Packets to its port."""
        return self._count(0)

    @property
    def dropped(self) -> int:
        """Packets that it dropped, redirected or rewrote."""
        return self._count(1)

    def _count(self, key: int) -> int:
        return int(struct.unpack("=Q", self._counters[struct.pack("=I", key)])[0])

    def close(self) -> None:
        self._counters.close()
        os.close(self.fd)


def load(name: str, kind: int, port: int, nth: int = 3, attach_type: int = 0, act: list[bytes] | None = None) -> TestProgram:
    """Loads a program. act: what it does with each `nth` packet, and its result; None = it drops it.

    Raises:
        OSError: bpf(2) is not allowed here.
    """
    counters = BpfMap(MapDefinition("counters", ARRAY, 4, 8, 2, 0))
    code = _instructions(kind, counters.fd, port, nth, act or [_op(0xB7, value=_DROP[kind])])
    fd = bpf_syscall.load_program(name, code, "GPL", ProgramTarget(kind, attach_type))
    return TestProgram(fd, bpf_syscall.program_info(fd).number, counters)


def load_described(name: str) -> int:
    """Loads a program of tc that has BTF with the whole name of its function; returns its descriptor. Raises OSError."""
    types = BtfBuilder()
    number = types.integer("int", 4)
    function = types.function(name, {"context": types.pointer(0)}, number)
    blob = types.blob()
    data = ctypes.create_string_buffer(blob, len(blob))
    btf = bpf_syscall._bpf(BTF_LOAD, struct.pack("=QQIIII", ctypes.addressof(data), 0, len(blob), 0, 0, 0))
    code = _op(0xB7, value=0) + _op(0x95)
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    places = ctypes.create_string_buffer(struct.pack("=II", 0, function), 8)
    attributes = struct.pack(
        "=IIQQIIQII16sIIIIQI", SCHED_CLS, 2, ctypes.addressof(instructions), ctypes.addressof(licence), 0, 0, 0, 0, 0,
        bpf_syscall.object_name(name), 0, 0, btf, 8, ctypes.addressof(places), 1,
    )  # fmt: skip
    try:
        return bpf_syscall._bpf(bpf_syscall.PROG_LOAD, attributes)
    finally:
        os.close(btf)


def _send(kind: int, flags: int, body: bytes) -> None:
    with Rtnetlink() as route:
        route.sock.send(request(kind, flags | ACK, body))
        for _, _, answer in messages(route.sock.recv(65536)):
            code = -struct.unpack_from("=i", answer)[0]
            if code:
                raise OSError(code, os.strerror(code))


def _native(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def clsact(iface: str) -> None:
    """Adds the queueing discipline that has filters."""
    body = struct.pack("=BxxxiIII", 0, socket.if_nametoindex(iface), 0xFFFF0000, 0xFFFFFFF1, 0)
    _send(NEWQDISC, CREATE | EXCL, body + attribute(1, "clsact"))


def remove_clsact(iface: str) -> None:
    """Removes it with all filters."""
    _send(DELQDISC, 0, struct.pack("=BxxxiIII", 0, socket.if_nametoindex(iface), 0xFFFF0000, 0xFFFFFFF1, 0))


def attach_tc(iface: str, program: TestProgram, parent: int = INGRESS, preference: int = 1, name: str = "x.o:[tc]") -> None:
    """Attaches a program with direct action."""
    _send(NEWFILTER, CREATE, _filter(iface, parent, preference) + attribute(1, "bpf") + attribute(
        2, [_native(6, program.fd), attribute(7, name), _native(8, 1)]
    ))  # fmt: skip


def detach_tc(iface: str, parent: int = INGRESS, preference: int = 1) -> None:
    _send(DELFILTER, 0, _filter(iface, parent, preference))


def _filter(iface: str, parent: int, preference: int) -> bytes:
    info = preference << 16 | socket.htons(0x0003)
    return struct.pack("=BxxxiIII", 0, socket.if_nametoindex(iface), 0, parent, info)


def attach_tcx(iface: str, program: TestProgram, attach_type: int = bpf_syscall.TCX_INGRESS) -> int:
    """Attaches a program by a link of tcx; returns the descriptor that keeps it. Raises OSError: this kernel has no tcx."""
    index = socket.if_nametoindex(iface)
    return bpf_syscall._bpf(LINK_CREATE, struct.pack("=IIII", program.fd, index, attach_type, 0) + bytes(48))


@contextmanager
def attached_by_tcx(iface: str, program: TestProgram) -> Iterator[None]:
    """Attaches a program at ingress by tcx for the block, and closes it then. Without tcx the test is skipped."""
    try:
        link = attach_tcx(iface, program)
    except OSError as e:
        program.close()
        pytest.skip(f"this kernel has no tcx: {e}")
    try:
        yield
    finally:
        os.close(link)
        program.close()


def load_passing(name: str, kind: int, attach_type: int) -> int:
    """Loads a program that decides nothing: it returns 1. Returns its descriptor. Raises OSError."""
    code = _op(0xB7, value=1) + _op(0x95)
    return bpf_syscall.load_program(name, code, "GPL", ProgramTarget(kind, attach_type))


def load_refusing(name: str, kind: int, attach_type: int) -> int:
    """Loads a program that returns 0: SK_DROP. Returns its descriptor. Raises OSError."""
    code = _op(0xB7, value=0) + _op(0x95)
    return bpf_syscall.load_program(name, code, "GPL", ProgramTarget(kind, attach_type))


def load_refusing_port(name: str, port: int) -> int:
    """Loads a program of sk_lookup that refuses packets to a port; returns its descriptor. Raises OSError."""
    code = [
        _op(0x61, 2, 1, _LOCAL_PORT), _op(0x55, 2, 0, 2, port),  # if ctx->local_port != port: pass
        _op(0xB7, value=0), _op(0x95),
        _op(0xB7, value=1), _op(0x95),
    ]  # fmt: skip
    return _load_lookup(name, code)


def load_steering(name: str, port: int, sock: socket.socket) -> int:
    """Loads a program of sk_lookup that gives packets to a port to a bound socket; returns its descriptor.

    Raises:
        OSError: The kernel refused it.
    """
    sockets = BpfMap(MapDefinition("sockets", SOCKMAP, 4, 8, 1, 0))
    try:
        sockets[struct.pack("=I", 0)] = struct.pack("=Q", sock.fileno())
        code = [
            _op(0xBF, 6, 1),  # r6 = context
            _op(0x61, 2, 6, _LOCAL_PORT), _op(0x55, 2, 0, 15, port),  # if ctx->local_port != port: pass
            _op(0xB7, 1, value=0), _op(0x63, 10, 1, -4),
            _op(0xBF, 2, 10), _op(0x07, 2, value=-4),
            _op(0x18, 1, 1, value=sockets.fd), _op(0x00),
            _op(0x85, value=1), _op(0x15, 0, 0, 7),  # r0 = the socket, or pass
            _op(0xBF, 7, 0), _op(0xBF, 2, 0), _op(0xBF, 1, 6), _op(0xB7, 3, value=0),
            _op(0x85, value=124),  # bpf_sk_assign
            _op(0xBF, 1, 7), _op(0x85, value=86),  # bpf_sk_release
            _op(0xB7, value=1), _op(0x95),
        ]  # fmt: skip
        return _load_lookup(name, code)
    finally:
        sockets.close()


def _load_lookup(name: str, code: list[bytes]) -> int:
    target = ProgramTarget(SK_LOOKUP, bpf_syscall.SK_LOOKUP)
    return bpf_syscall.load_program(name, b"".join(code), "GPL", target)


def load_replacing(name: str, attach_type: int, asked: str, given: str) -> int:
    """Loads a program of connect() or sendmsg() that replaces an address; returns its descriptor."""
    family, first = (socket.AF_INET6, 8) if ":" in asked else (socket.AF_INET, 4)
    before, after = (socket.inet_pton(family, each) for each in (asked, given))
    words = [
        (first + at, *(struct.unpack_from("=i", each, at)[0] for each in (before, after))) for at in range(0, len(before), 4)
    ]
    code: list[bytes] = []
    for n, (at, of_asked, _) in enumerate(words):  # if ctx->user_ip4 != asked: pass
        beyond = 3 * (len(words) - n - 1) + 2 * len(words)
        code += [_op(0x61, 2, 1, at), _op(0xB4, 3, value=of_asked), _op(0x5D, 2, 3, beyond)]
    for at, _, of_given in words:
        code += [_op(0xB4, 2, value=of_given), _op(0x63, 1, 2, at)]
    code += [_op(0xB7, value=1), _op(0x95)]
    return bpf_syscall.load_program(name, b"".join(code), "GPL", ProgramTarget(SOCK_ADDR, attach_type))


def attach_at(path: Path, program: TestProgram | int, attach_type: int) -> int:
    """Attaches a program by a link to a cgroup or a network namespace; returns the link's descriptor. Raises OSError."""
    fd, of_program = os.open(path, os.O_RDONLY), program if isinstance(program, int) else program.fd
    try:
        return bpf_syscall._bpf(LINK_CREATE, struct.pack("=IIII", of_program, fd, attach_type, 0) + bytes(48))
    finally:
        os.close(fd)


def attach_xdp(iface: str, program: TestProgram | None, mode: int = GENERIC) -> None:
    """Attaches a program, or detaches it: None."""
    fd = struct.pack("=i", program.fd if program else -1)
    body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(iface), 0, 0)
    _send(NEWLINK, 0, body + attribute(43, [attribute(1, fd), _native(3, mode)]))


def pin(program: TestProgram, path: Path) -> None:
    """Pins a program in a mounted bpffs."""
    name = ctypes.create_string_buffer(str(path).encode())
    bpf_syscall._bpf(PIN, struct.pack("=QII", ctypes.addressof(name), program.fd, 0))
