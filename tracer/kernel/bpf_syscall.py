# SPDX-License-Identifier: Apache-2.0
"""The system calls that create maps, load programs and attach them: bpf(2), perf_event_open(2).

Everything here is a file descriptor: when the last one is closed, also by the end of the process, the kernel removes the
object. Nothing is pinned and no file in tracefs is written, so a killed process leaves nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracer.util.octets import encoded

_NUMBERS = {"x86_64": (321, 298), "aarch64": (280, 241)}
"""Numbers of bpf(2) and perf_event_open(2) by machine type."""

_LIBC = ctypes.CDLL(None, use_errno=True)

(MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, MAP_NEXT_KEY, PROG_LOAD) = range(6)
OBJECT_GET, PROG_FD_BY_ID, OBJECT_INFO, PROG_QUERY, RAW_TRACEPOINT_OPEN, BTF_FD_BY_ID, BTF_NEXT_ID = 7, 13, 15, 16, 17, 19, 23
LINK_FD_BY_ID, LINK_NEXT_ID = 30, 31
"""Commands of bpf(2): enum bpf_cmd."""
LINK_NETNS = 5
"""Type of a link to a network namespace: enum bpf_link_type."""

KPROBE, RAW_TRACEPOINT, TRACING = 2, 17, 26
"""Program types: enum bpf_prog_type."""
TRACEPOINT_BTF, FENTRY, FEXIT = 23, 24, 25
"""Attach types of TRACING: enum bpf_attach_type."""
TCX_INGRESS, TCX_EGRESS = 46, 47
"""Attach types at an interface, since kernel commit e420bed02507 ("bpf: Add fd-based tcx multi-prog infra with link support",
6.6)."""
NETKIT_PRIMARY, NETKIT_PEER = 54, 55
"""Attach types of netkit, since kernel commit 35dfaad7188c ("netkit, bpf: Add bpf programmable net device", 6.7)."""
CGROUP_INET_INGRESS, CGROUP_INET_EGRESS = 0, 1
"""Attach types at a cgroup: enum bpf_attach_type."""
CONNECT_TYPES = {"connect4": 10, "connect6": 11, "sendmsg4": 14, "sendmsg6": 15}
"""Attach types at a cgroup where a program may replace the address that a socket asked for."""
SK_LOOKUP = 36
"""Attach type at a network namespace."""
QUERY_EFFECTIVE = 1
"""BPF_F_QUERY_EFFECTIVE."""
MOST_ATTACHED = 64
"""Largest number of programs at one place of an interface or a cgroup: BPF_MPROG_MAX and BPF_CGROUP_MAX_PROGS of the kernel."""

NAME_BYTES = 15
"""Longest name of a map or program, bytes."""
LOG_BYTES = 1 << 20
"""Size of the buffer for the verifier's messages, bytes."""

_READ_ONLY = 1 << 3
"""BPF_F_RDONLY."""
_INFO_BYTES = 232
"""Bytes of bpf_prog_info that are read."""
_KPROBE_PMU = Path("/sys/bus/event_source/devices/kprobe")
_PERF_FLAG_CLOEXEC = 8
_PERF_ATTR_BYTES = 112
_PERF_ENABLE, _PERF_SET_BPF = 0x2400, 0x40042408


def _call(number: int, *arguments: object) -> int:
    result = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def _bpf(command: int, attributes: bytes) -> int:
    """bpf(2) with an attribute structure that the kernel only reads."""
    return _bpf_buffer(command, ctypes.create_string_buffer(attributes, len(attributes)))


def _bpf_buffer(command: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(38, f"bpf(2) is not known on {platform.machine()}")
    return _call(number[0], ctypes.c_int(command), buffer, ctypes.c_uint(len(buffer)))


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def object_name(name: str) -> bytes:
    """A name as the kernel accepts it: letters, digits, "_" and ".", at most NAME_BYTES bytes."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "_" for c in name).encode()[:NAME_BYTES]


@dataclass(frozen=True)
class MapDefinition:
    """A map's definition.

    Attributes:
        name: Name in C.
        type: enum bpf_map_type.
        key_bytes: Size of a key, bytes.
        value_bytes: Size of a value, bytes.
        entries: Largest number of entries; of a ring buffer, its size in bytes.
        flags: BPF_F_… of BPF_MAP_CREATE.
    """

    name: str
    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


def map_definition(name: str, fd: int) -> MapDefinition:
    """The definition of an existing map."""
    info = _info(fd, 80)
    kind, _, key_bytes, value_bytes, entries, flags = struct.unpack_from("=6I", info)
    return MapDefinition(name, kind, key_bytes, value_bytes, entries, flags)


class BpfMap:
    """A map in the kernel. Keys and values are bytes; of a map by CPU, a value has those of all possible CPUs.

    Attributes:
        fd: Its descriptor.
        definition: Its definition.
    """

    def __init__(self, definition: MapDefinition) -> None:
        d = definition
        attributes = struct.pack(
            "=5I2I16s4I", d.type, d.key_bytes, d.value_bytes, d.entries, d.flags, 0, 0, object_name(d.name), 0, 0, 0, 0
        )
        self.definition, self.fd = definition, _bpf(MAP_CREATE, attributes)

    def __getitem__(self, key: bytes) -> bytes:
        """The value of a key; of a trie, that of the longest prefix of it. Raises FileNotFoundError: there is none.

        Not for a map by CPU: its values are longer than the definition says.
        """
        value = ctypes.create_string_buffer(self.definition.value_bytes)
        self._element(MAP_LOOKUP, key, value)
        return value.raw

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._element(MAP_UPDATE, key, value)

    def __delitem__(self, key: bytes) -> None:
        self._element(MAP_DELETE, key)

    def keys(self) -> list[bytes]:
        """All keys; a map that changes meanwhile may give some of them twice, or not all."""
        found: list[bytes] = []
        following = ctypes.create_string_buffer(self.definition.key_bytes)
        while len(found) <= self.definition.entries:
            try:
                self._element(MAP_NEXT_KEY, found[-1] if found else None, following)
            except FileNotFoundError:
                break
            found.append(following.raw)
        return found

    def _element(self, command: int, key: bytes | None, value: bytes | ctypes.Array[ctypes.c_char] | None = None) -> None:
        of_key = ctypes.create_string_buffer(key, len(key)) if key is not None else None
        of_value = ctypes.create_string_buffer(value, len(value)) if isinstance(value, bytes) else value
        addresses = [0 if buffer is None else _address(buffer) for buffer in (of_key, of_value)]
        _bpf(command, struct.pack("=IxxxxQQQ", self.fd, *addresses, 0))

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True)
class ProgramTarget:
    """What a program is loaded for.

    Attributes:
        type: KPROBE, RAW_TRACEPOINT or TRACING.
        attach_type: FENTRY, FEXIT or TRACEPOINT_BTF; 0 = not TRACING.
        btf_id: BTF number of the function, or of the tracepoint's typedef, for TRACING.
        btf_fd: Descriptor of the BTF of the function's module; 0 = vmlinux.
    """

    type: int
    attach_type: int = 0
    btf_id: int = 0
    btf_fd: int = 0


class Refused(OSError):
    """The kernel refused to load a program. `log` has the last lines of the verifier's messages."""

    log: str = ""


def load_program(name: str, instructions: bytes, licence: str, target: ProgramTarget) -> int:
    """Loads a program; returns its descriptor.

    Raises:
        Refused: The kernel refused it.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence_text = ctypes.create_string_buffer(licence.encode())

    def load(log: ctypes.Array[ctypes.c_char] | None) -> int:
        where = (1, len(log), _address(log)) if log is not None else (0, 0, 0)
        attributes = struct.pack(
            "=IIQQIIQII16sIIIIQIIQIII",
            target.type, len(instructions) // 8, _address(code), _address(licence_text), *where, 0, 0, object_name(name),
            0, target.attach_type, 0, 0, 0, 0, 0, 0, 0, target.btf_id, target.btf_fd,
        )  # fmt: skip
        return _bpf(PROG_LOAD, attributes)

    try:
        return load(None)
    except OSError as e:
        refused = Refused(e.errno, e.strerror)
        log = ctypes.create_string_buffer(LOG_BYTES)
        try:
            return load(log)
        except OSError:
            refused.log = "\n".join(log.value.decode(errors="replace").splitlines()[-8:])
        raise refused from None


def open_tracing(program: int, tracepoint: str = "") -> int:
    """Attaches a program of type TRACING or RAW_TRACEPOINT; returns the descriptor that keeps it attached.

    Args:
        program: Descriptor of the program.
        tracepoint: Name of the raw tracepoint; "" = the function or tracepoint that it was loaded for.
    """
    name = ctypes.create_string_buffer(tracepoint.encode())
    return _bpf(RAW_TRACEPOINT_OPEN, struct.pack("=QIxxxx", _address(name) if tracepoint else 0, program))


def open_kprobe(program: int, symbol: str, at_return: bool) -> int:
    """Attaches a program of type KPROBE; returns the descriptor of the perf event that keeps it attached."""
    kind = int((_KPROBE_PMU / "type").read_text())
    bit = int((_KPROBE_PMU / "format/retprobe").read_text().strip().removeprefix("config:")) if at_return else 0
    name = ctypes.create_string_buffer(symbol.encode())
    attributes = bytearray(_PERF_ATTR_BYTES)
    # type, size, config, sample_period; at 48 wakeup_events, bp_type, config1 (the function's name), config2 (the offset).
    struct.pack_into("=IIQQ", attributes, 0, kind, _PERF_ATTR_BYTES, int(at_return) << bit, 1)
    struct.pack_into("=IIQQ", attributes, 48, 1, 0, _address(name), 0)
    buffer = ctypes.create_string_buffer(bytes(attributes), len(attributes))
    number = _NUMBERS[platform.machine()][1]
    everywhere, no_group = ctypes.c_int(-1), ctypes.c_int(-1)
    fd = _call(number, buffer, everywhere, ctypes.c_int(0), no_group, ctypes.c_ulong(_PERF_FLAG_CLOEXEC))
    try:
        fcntl.ioctl(fd, _PERF_SET_BPF, program)
        fcntl.ioctl(fd, _PERF_ENABLE, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _info(fd: int, length: int) -> bytes:
    """The first bytes of an object's bpf_map_info or bpf_prog_info; zeros where the kernel has no such field."""
    info = ctypes.create_string_buffer(length)
    _bpf(OBJECT_INFO, struct.pack("=IIQ", fd, length, _address(info)))
    return info.raw


class MissCounters:
    """How often the kernel skipped programs because one was running on that CPU.

    It is bpf_prog_info.recursion_misses, since 5.12. All programs are asked ten times a second; so the arguments of the system
    calls are made once, and the answers are in one buffer.
    """

    def __init__(self, programs: Sequence[int]) -> None:
        """programs: their descriptors."""
        size = _MISSES_AT + 8
        self._infos = ctypes.create_string_buffer(size * len(programs))
        self._cleared = self._infos, 0, len(self._infos)
        self._counts = memoryview(self._infos).cast("B").cast("Q")[_MISSES_AT // 8 :: size // 8]
        number = ctypes.c_long(_NUMBERS.get(platform.machine(), (-1, -1))[0])
        self._calls = []
        for index, program in enumerate(programs):
            answer = _address(self._infos) + index * size
            attributes = ctypes.create_string_buffer(struct.pack("=IIQ", program, size, answer), 16)
            self._calls.append((number, ctypes.c_int(OBJECT_INFO), attributes, ctypes.c_uint(len(attributes))))

    def read(self) -> list[int]:
        """The numbers now, in the order of the programs; 0 where the kernel does not report one."""
        # The kernel reads the structures, too: a length there would be that of an array to fill.
        ctypes.memset(*self._cleared)
        call = _LIBC.syscall
        for arguments in self._calls:
            call(*arguments)
        return self._counts.tolist()

    def read_one(self, place: int) -> int:
        """The number of one program now. place: of the program, from 0."""
        answer, _, length = self._cleared
        size = length // len(self._calls)
        ctypes.memset(_address(answer) + place * size, 0, size)
        _LIBC.syscall(*self._calls[place])
        return self._counts[place]


_MISSES_AT = 208
"""Offset of bpf_prog_info.recursion_misses, bytes."""


def run_time(program: int) -> tuple[int, int]:
    """(ns, number of runs) of a program, while kernel.bpf_stats_enabled is 1."""
    nanoseconds, runs = struct.unpack_from("=QQ", _info(program, 320), 192)
    return int(nanoseconds), int(runs)


def module_btf(module: str) -> int:
    """A descriptor of the kernel's BTF of a module.

    Raises:
        OSError: The kernel has none, or this process may not read it.
    """
    number = 0
    while True:
        buffer = ctypes.create_string_buffer(struct.pack("=III", number, 0, 0), 12)
        _bpf_buffer(BTF_NEXT_ID, buffer)  # raises FileNotFoundError after the last one
        number = struct.unpack_from("=I", buffer.raw, 4)[0]
        try:
            fd = _bpf(BTF_FD_BY_ID, struct.pack("=III", number, 0, 0))
        except FileNotFoundError:  # removed meanwhile
            continue
        if _btf_name(fd) == module:
            return fd
        os.close(fd)


def _btf_name(fd: int) -> str:
    """The name of a BTF object of the kernel, as a module's name; "" = it is not the kernel's."""
    name = ctypes.create_string_buffer(64)
    # struct bpf_btf_info: btf, btf_size, id, name, name_len, kernel_btf
    info = ctypes.create_string_buffer(struct.pack("=QIIQII", 0, 0, 0, _address(name), len(name), 0), 32)
    _bpf(OBJECT_INFO, struct.pack("=IIQ", fd, len(info), _address(info)))
    is_kernel = struct.unpack_from("=I", info.raw, 28)[0]
    return name.value.decode(errors="replace") if is_kernel else ""


def program_by_id(number: int) -> int:
    """A descriptor of a loaded program. Raises OSError: there is none any more, or this process may not have it."""
    return _bpf(PROG_FD_BY_ID, struct.pack("=III", number, 0, 0))


def pinned_object(path: str) -> int:
    """A descriptor of a pinned object. Raises OSError.

    The kernel refuses to open a program or a link read only.
    """
    name = ctypes.create_string_buffer(encoded(path))
    return _bpf(OBJECT_GET, struct.pack("=QII", _address(name), 0, 0))


@dataclass(frozen=True)
class ProgramInfo:
    """What the kernel says of a loaded program.

    Attributes:
        number: Its id.
        tag: Hash of its instructions, hexadecimal.
        name: Its name, at most NAME_BYTES bytes.
        btf_id: Id of its BTF, 0 = none.
        function: Number of its first function in that BTF, 0 = none.
    """

    number: int
    tag: str
    name: bytes
    btf_id: int
    function: int


def program_info(fd: int) -> ProgramInfo:
    """The kernel's description of a program. Raises OSError."""
    info = _info(fd, _INFO_BYTES)
    number, tag, name = struct.unpack_from("=I8s", info, 4)[0], info[8:16], info[64:80].split(b"\0", 1)[0]
    btf_id, size = struct.unpack_from("=II", info, 128)
    count = struct.unpack_from("=I", info, 144)[0]
    function = 0
    if btf_id and count and size >= 8:
        # The kernel fills an array whose size it is asked for: one entry is enough.
        entry = ctypes.create_string_buffer(size)
        asked = bytearray(_INFO_BYTES)
        struct.pack_into("=IIQII", asked, 128, 0, size, _address(entry), 0, 0)
        struct.pack_into("=I", asked, 144, 1)
        buffer = ctypes.create_string_buffer(bytes(asked), len(asked))
        _bpf(OBJECT_INFO, struct.pack("=IIQ", fd, len(buffer), _address(buffer)))
        function = struct.unpack_from("=I", entry.raw, 4)[0]
    return ProgramInfo(number, tag.hex(), name, btf_id, function)


def program_btf(number: int, most_bytes: int) -> bytes:
    """The BTF of a program. Raises OSError: it cannot be read, or is longer than `most_bytes`."""
    fd = _bpf(BTF_FD_BY_ID, struct.pack("=III", number, 0, 0))
    try:
        empty = ctypes.create_string_buffer(32)
        _bpf(OBJECT_INFO, struct.pack("=IIQ", fd, len(empty), _address(empty)))
        size = struct.unpack_from("=I", empty.raw, 8)[0]
        if size > most_bytes:
            raise OSError(errno.E2BIG, "the BTF is too long")
        data = ctypes.create_string_buffer(size)
        info = ctypes.create_string_buffer(struct.pack("=QIIQII", _address(data), size, 0, 0, 0, 0), 32)
        _bpf(OBJECT_INFO, struct.pack("=IIQ", fd, len(info), _address(info)))
        return data.raw
    finally:
        os.close(fd)


@dataclass(frozen=True)
class NetnsLink:
    """A link that attaches a program to a network namespace.

    Attributes:
        number: Its id; the kernel gives it again only after two billion others.
        program: Id of the program.
        netns: Inode of the namespace; 0 = it has gone.
        attach_type: Where: SK_LOOKUP.
    """

    number: int
    program: int
    netns: int
    attach_type: int


def netns_links(most: int) -> list[NetnsLink]:
    """The links to network namespaces, of all namespaces, by id. most: how many links of any kind are looked at.

    Raises:
        OSError: They cannot be read.
    """
    found: list[NetnsLink] = []
    number = 0
    for _ in range(most):
        buffer = ctypes.create_string_buffer(struct.pack("=III", number, 0, 0), 12)
        try:
            _bpf_buffer(LINK_NEXT_ID, buffer)
            number = struct.unpack_from("=I", buffer.raw, 4)[0]
            fd = _bpf(LINK_FD_BY_ID, struct.pack("=III", number, 0, 0))
        except FileNotFoundError:  # the last one, or removed meanwhile
            if struct.unpack_from("=I", buffer.raw, 4)[0] == 0:
                break
            continue
        try:
            kind, _, program, _, netns, attach_type = struct.unpack_from("=6I", _info(fd, 32))
        finally:
            os.close(fd)
        if kind == LINK_NETNS:
            found.append(NetnsLink(number, program, netns, attach_type))
    return found


@dataclass(frozen=True)
class AttachedIds:
    """Programs that bpf(2) attached to an interface or a cgroup.

    Attributes:
        numbers: Their ids, in the order in which they run.
        revision: Grows with each change; 0 = the kernel does not count.
    """

    numbers: tuple[int, ...] = ()
    revision: int = 0


def attached_ids(target: int, attach_type: int, flags: int = 0) -> AttachedIds:
    """The programs of an interface of this thread's namespace, of a cgroup, or of a network namespace.

    Args:
        target: Number of the interface, or a descriptor of the cgroup's directory or of the network namespace.
        attach_type: Which programs.
        flags: QUERY_EFFECTIVE: also those of the cgroups above that run for this one; 0 = its own.

    Raises:
        OSError: EINVAL: the kernel has no such attach type; there are more than MOST_ATTACHED, or they cannot be read.
    """
    ids = (ctypes.c_uint32 * MOST_ATTACHED)()
    query = struct.pack("=IIIIQII", target, attach_type, flags, 0, ctypes.addressof(ids), len(ids), 0) + bytes(32)
    buffer = ctypes.create_string_buffer(query, len(query))
    _bpf_buffer(PROG_QUERY, buffer)
    count, revision = struct.unpack_from("=I", buffer.raw, 24)[0], struct.unpack_from("=Q", buffer.raw, 56)[0]
    return AttachedIds(tuple(ids[: min(count, len(ids))]), revision)
