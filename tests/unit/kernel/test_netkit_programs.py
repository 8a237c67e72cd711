# SPDX-License-Identifier: Apache-2.0
"""Programs of netkit: which end receives, and in which namespace its programs are asked for."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest

from tracer.kernel import bpf_syscall, netkit_programs
from tracer.kernel.bpf_syscall import NETKIT_PEER, NETKIT_PRIMARY, AttachedIds
from tracer.kernel.netkit_programs import SAME_NAMESPACE, NetkitEnd, receiving_end
from tracer.node.nfnetlink import attribute

UP = 1 << 16 | 1
Asked = list[tuple[int, int]]


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def link(
    kind: str = "netkit", primary: int = 1, policy: int = 0, peer_policy: int = 0, flags: int = UP, nsid: int = -1
) -> bytes:
    """The body of a message about link 7, of which the other end is link 9."""
    data = [attribute(2, bytes([primary])), u32(3, policy), u32(4, peer_policy)]
    body = struct.pack("=BxHiII", 0, 1, 7, flags, 0) + u32(5, 9) + attribute(18, [attribute(1, kind), attribute(2, data)])
    return body + (u32(37, nsid) if nsid >= 0 else b"")


@pytest.mark.parametrize(
    ("message", "end"),
    [
        (link(), NetkitEnd(7, True, 9, SAME_NAMESPACE, False)),
        (link(primary=0, nsid=3), NetkitEnd(7, False, 9, 3, False)),
        (link(policy=2), NetkitEnd(7, True, 9, SAME_NAMESPACE, False)),  # its own policy is for what it sends
        (link(peer_policy=2), NetkitEnd(7, True, 9, SAME_NAMESPACE, True)),
        (link(kind="veth"), None),
        (link(flags=1), None),  # the other end is down
        (struct.pack("=BxHiII", 0, 1, 7, UP, 0), None),
    ],
)
def test_the_receiving_end(message: bytes, end: NetkitEnd | None) -> None:
    assert receiving_end(message) == end


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found: Asked = []

    def attached_ids(target: int, attach_type: int, flags: int = 0) -> AttachedIds:
        found.append((target, attach_type))
        return AttachedIds((41, 42), 5)

    monkeypatch.setattr(bpf_syscall, "attached_ids", attached_ids)
    return found


def kinds(end: NetkitEnd, elsewhere: netkit_programs.Elsewhere | None = None) -> list[tuple[str, int]]:
    programs, revision = netkit_programs.read(end, elsewhere)
    assert revision == 5
    return [(each.kind, each.number) for each in programs]


def test_programs_of_the_peer_run_on_packets_to_the_primary_end(asked: Asked) -> None:
    assert kinds(NetkitEnd(7, True, 9, 3, False)) == [("netkit peer", 41), ("netkit peer", 42)]
    assert asked == [(7, NETKIT_PEER)]


def test_programs_of_the_primary_end_are_asked_for_where_it_is(asked: Asked) -> None:
    numbers: list[int] = []

    def elsewhere(number: int, work: Callable[[], AttachedIds]) -> AttachedIds:
        numbers.append(number)
        return work()

    end = NetkitEnd(7, False, 9, 3, True)
    assert kinds(end, elsewhere) == [("netkit primary", 41), ("netkit primary", 42), ("netkit policy", 0)]
    assert (asked, numbers) == ([(9, NETKIT_PRIMARY)], [3])
    assert kinds(end._replace(nsid=SAME_NAMESPACE), None)[:1] == [("netkit primary", 41)] and len(asked) == 2


def test_a_primary_end_in_an_unknown_namespace(asked: Asked) -> None:
    with pytest.raises(LookupError):
        netkit_programs.read(NetkitEnd(7, False, 9, 3, False), None)
    assert not asked, "link 9 of this namespace is another one"


def test_a_pair_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def attached_ids(target: int, attach_type: int, flags: int = 0) -> AttachedIds:
        raise OSError(code, "refused")

    monkeypatch.setattr(bpf_syscall, "attached_ids", attached_ids)
    code = errno.ENODEV
    assert netkit_programs.read(NetkitEnd(7, True, 9, 3, False), None) == ((), 0)
    code = errno.EPERM
    with pytest.raises(OSError, match="refused"):
        netkit_programs.read(NetkitEnd(7, True, 9, 3, False), None)
