# SPDX-License-Identifier: Apache-2.0
"""Programs of netkit pairs: those that run when one end sends to the other.

The programs of both ends are attached by the number of the primary end, which may be in another network namespace than the end
that receives the packets. Every request here only reads.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tracer.kernel import bpf_syscall
from tracer.model.bpf_program import AttachedProgram, ProgramKind
from tracer.node.nfnetlink import attributes, text

_IFLA_LINK, _IFLA_LINKINFO, _IFLA_LINK_NETNSID = 5, 18, 37
_INFO_KIND, _INFO_DATA = 1, 2
_PRIMARY, _PEER_POLICY = 2, 4
"""IFLA_NETKIT_PRIMARY, IFLA_NETKIT_PEER_POLICY: the latter is that of the other end."""
_POLICY_DROP = 2
_LOWER_UP = 1 << 16
"""IFF_LOWER_UP: this end and the other one are up."""
SAME_NAMESPACE = -1

Elsewhere: TypeAlias = Callable[[int, Callable[[], bpf_syscall.AttachedIds]], bpf_syscall.AttachedIds]
"""Calls a function in the namespace that has a number in this thread's namespace. Raises LookupError: it is not known which."""


class NetkitEnd(NamedTuple):
    """The end of a pair that receives packets.

    Attributes:
        ifindex: Its number.
        is_primary: It is the primary end.
        other: Number of the other end, in the namespace of that.
        nsid: Number of the other end's namespace in this one; SAME_NAMESPACE = it is this one.
        drops: The other end drops packets about which no program decides.
    """

    ifindex: int
    is_primary: bool
    other: int
    nsid: int
    drops: bool


def receiving_end(link: bytes) -> NetkitEnd | None:
    """The end that a message about a link describes; None = no netkit, or an end that gets no packets now.

    While one end is down, the kernel drops what the other one sends before its programs run, as a packet of the sending end.
    """
    attrs = attributes(link[16:])
    info = attributes(attrs.get(_IFLA_LINKINFO, b""))
    ifindex, flags = struct.unpack_from("=iI", link, 4)
    if text(info.get(_INFO_KIND)) != "netkit" or not flags & _LOWER_UP:
        return None
    data = attributes(info.get(_INFO_DATA, b""))
    nsid = struct.unpack("=i", attrs[_IFLA_LINK_NETNSID])[0] if len(attrs.get(_IFLA_LINK_NETNSID, b"")) == 4 else SAME_NAMESPACE
    is_primary = data.get(_PRIMARY, b"\0")[:1] != b"\0"
    return NetkitEnd(ifindex, is_primary, _u32(attrs.get(_IFLA_LINK)), nsid, _u32(data.get(_PEER_POLICY)) == _POLICY_DROP)


def read(end: NetkitEnd, elsewhere: Elsewhere | None) -> tuple[tuple[AttachedProgram, ...], int]:
    """The programs that run on packets to this end, then the policy of the sender, and the kernel's count of changes.

    Args:
        end: The receiving end, of this thread's namespace.
        elsewhere: See Elsewhere; None = no other namespace is known.

    Raises:
        OSError: They cannot be read.
        LookupError: The primary end is in a namespace that is not known.
    """
    kind = bpf_syscall.NETKIT_PEER if end.is_primary else bpf_syscall.NETKIT_PRIMARY
    primary = end.ifindex if end.is_primary else end.other

    def ask() -> bpf_syscall.AttachedIds:
        try:
            return bpf_syscall.attached_ids(primary, kind)
        except OSError as e:
            if e.errno == errno.ENODEV:  # the pair has gone
                return bpf_syscall.AttachedIds()
            raise

    if end.is_primary or end.nsid == SAME_NAMESPACE:
        found = ask()
    elif elsewhere:
        found = elsewhere(end.nsid, ask)
    else:
        raise LookupError(end.nsid)
    attached_as = ProgramKind.NETKIT_PEER if end.is_primary else ProgramKind.NETKIT_PRIMARY
    programs = [AttachedProgram(attached_as, number) for number in found.numbers]
    policy = [AttachedProgram(ProgramKind.NETKIT_POLICY, 0, "drop")] if end.drops else []
    return (*programs, *policy), found.revision


def _u32(raw: bytes | None) -> int:
    return int(struct.unpack("=I", raw)[0]) if raw and len(raw) == 4 else 0
