# SPDX-License-Identifier: Apache-2.0
"""A pcap-filter expression (`--filter EXPR`): compiled by libpcap, evaluated here on each packet's header as first seen."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tracer.errors import BadOption, NoLibrary
from tracer.model.packet import Packet
from tracer.selection import cbpf
from tracer.selection.cbpf import Instruction
from tracer.selection.recorded_header import header_of, typical_headers
from tracer.selection.ternary import Unrecorded

LIBRARIES = ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so")
"""Names of libpcap's library: Debian's, that of other distributions, that of its development package."""
MISSING = "--filter needs libpcap: install the package libpcap0.8t64, libpcap0.8 or libpcap of the distribution."
DLT_RAW = 12
"""The link type of packets that begin with the IP header."""
MOST_BYTES = 65535
"""Length of the longest packet, bytes."""
NETMASK_UNKNOWN = 0xFFFF_FFFF


class _Insn(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint), ("instructions", ctypes.POINTER(_Insn))]


def compile_expression(expression: str) -> list[Instruction]:
    """Compiles an expression.

    Raises:
        BadOption: libpcap does not accept it; the sentence has libpcap's message.
        NoLibrary: libpcap is missing.
    """
    if "\0" in expression:
        raise BadOption("--filter has a zero byte, which no expression has.")
    library = _library()
    handle, program = library.pcap_open_dead(DLT_RAW, MOST_BYTES), _Program()
    if not handle:
        raise NoLibrary("--filter cannot be used: libpcap has no memory.")
    try:
        if library.pcap_compile(handle, ctypes.byref(program), expression.encode(errors="replace"), 1, NETMASK_UNKNOWN):
            message = library.pcap_geterr(handle).decode(errors="replace").strip().rstrip(".")
            raise BadOption(f"--filter {expression!r} is no pcap-filter expression: {message}.")
        try:
            return [Instruction(i.code, i.jt, i.jf, i.k) for i in program.instructions[: program.length]]
        finally:
            library.pcap_freecode(ctypes.byref(program))
    finally:
        library.pcap_close(handle)


def _library() -> ctypes.CDLL:
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.pcap_open_dead.restype = ctypes.c_void_p
        library.pcap_geterr.restype = ctypes.c_char_p
        library.pcap_compile.argtypes = [
            ctypes.c_void_p, ctypes.POINTER(_Program), ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32
        ]  # fmt: skip
        library.pcap_geterr.argtypes = library.pcap_close.argtypes = [ctypes.c_void_p]
        library.pcap_freecode.argtypes = [ctypes.POINTER(_Program)]
        return library
    raise NoLibrary(MISSING)


class PcapExpression:
    """Selects packets by an expression.

    Attributes:
        text: The expression.
        program: What libpcap made of it.
        undecided: Number of packets that were not selected because the expression reads what was not recorded of them.
    """

    def __init__(self, text: str, program: Sequence[Instruction]) -> None:
        self.text, self.program = text, program
        self.undecided = 0

    @classmethod
    def compiled(cls, text: str) -> PcapExpression:
        """Compiles an expression. Raises BadOption, NoLibrary."""
        return cls(text, compile_expression(text))

    def __call__(self, packet: Packet) -> bool:
        try:
            return True in cbpf.results(self.program, header_of(packet))
        except Unrecorded:
            self.undecided += 1
            return False

    def require_recorded(self) -> None:
        """Raises BadOption when the expression reads bits that events do not have; --snaplen records them."""
        try:
            for header in typical_headers():
                cbpf.results(self.program, header)
        except Unrecorded:
            raise BadOption(
                f"--filter {self.text!r} reads parts of the packet that are recorded only with -w FILE --snaplen N."
            ) from None

    @property
    def note(self) -> str:
        """A sentence about packets that could not be decided; "" = there were none."""
        if not self.undecided:
            return ""
        packets, of = ("1 packet is", "it") if self.undecided == 1 else (f"{self.undecided} packets are", "them")
        return f"{packets} not shown: --filter {self.text!r} reads a part of {of} that was not recorded."
