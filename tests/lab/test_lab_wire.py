# SPDX-License-Identifier: Apache-2.0
"""The wire between machines: which frames it carries, what it does to them, and its count of that."""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator

import pytest

from lab.wire import Fate, Faults, Wire
from lab.wire_key import WireKey, key_of
from tests.support.waiting import until

MACS = {"node-a": "52:54:00:60:01:0a", "node-b": "52:54:00:60:02:0a", "node-c": "52:54:00:60:03:0a"}
PACKETS = 2000


def ethernet(source: str, target: str, payload: bytes, kind: int = 0x0800) -> bytes:
    return bytes.fromhex((target + source).replace(":", "")) + struct.pack("!H", kind) + payload


def ipv4(src: str, dst: str, proto: int, payload: bytes, ip_id: int = 7) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), ip_id, 0, 64, proto, 0)
    return head + socket.inet_aton(src) + socket.inet_aton(dst) + payload


def udp(sport: int, dport: int, payload: bytes) -> bytes:
    return struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload


def datagram(number: int, source: str = "node-a", target: str = "node-b") -> bytes:
    packet = ipv4("10.0.0.1", "10.0.0.2", 17, udp(4000, 5353, b"%06d" % number), ip_id=number)
    return ethernet(MACS[source], MACS[target], packet)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire(lambda key: key.dport == 5353)
    yield made
    made.close()


def machine(wire: Wire, name: str) -> socket.socket:
    return socket.socket(fileno=wire.plug(name, MACS[name]))


def received(end: socket.socket) -> list[bytes]:
    end.settimeout(0.3)
    found = []
    while True:
        try:
            found.append(end.recv(1 << 16))
        except TimeoutError:
            return found


def test_frames_reach_the_machine_of_their_address(wire: Wire) -> None:
    a, b, c = (machine(wire, name) for name in MACS)
    arp = ethernet(MACS["node-a"], "ff:ff:ff:ff:ff:ff", b"x" * 28, 0x0806)
    for frame in (datagram(1), arp, ethernet(MACS["node-a"], "52:54:00:99:99:99", b"nobody")):
        a.send(frame)
    assert received(b) == [datagram(1), arp]
    assert received(c) == [arp]
    assert received(a) == []
    assert [(f.source, f.target, f.fate, f.key.ip_id) for f in wire.log()] == [("node-a", "node-b", Fate.CARRIED, 1)]
    for end in (a, b, c):
        end.close()


def test_frames_that_are_too_long_are_lost(wire: Wire) -> None:
    a, b = machine(wire, "node-a"), machine(wire, "node-b")
    wire.set_faults(Faults(longest=len(datagram(1))))
    a.send(datagram(1))
    a.send(datagram(2) + b"x")
    assert received(b) == [datagram(1)]
    assert [frame.fate for frame in wire.log()] == [Fate.CARRIED, Fate.DROPPED]
    for end in (a, b):
        end.close()


def test_the_log_says_what_was_lost_doubled_and_overtaken(wire: Wire) -> None:
    a, b = machine(wire, "node-a"), machine(wire, "node-b")
    b.settimeout(5)
    wire.set_faults(Faults(dropped=0.1, doubled=0.1, held=0.1, seed=3))
    got: list[bytes] = []
    for number in range(PACKETS):
        a.send(datagram(number))
        if number % 50 == 49:
            got += received(b) if number == PACKETS - 1 else []
    log = wire.log()
    assert len(log) == PACKETS
    fates = Counter(each.fate for each in log)
    assert set(fates) == set(Fate) and all(150 < fates[fate] < 250 for fate in fates if fate is not Fate.CARRIED)
    times = {Fate.DROPPED: 0, Fate.DOUBLED: 2}
    numbers = [key.ip_id for frame in got if (key := key_of(frame))]
    assert Counter(numbers) == +Counter({each.key.ip_id: times.get(each.fate, 1) for each in log})
    late = {before for before, after in zip(numbers[1:], numbers, strict=False) if before < after}
    held = {each.key.ip_id for each in log if each.fate is Fate.HELD}
    assert late and late <= held
    a.close()
    b.close()


def test_faults_leave_other_packets_alone(wire: Wire) -> None:
    a, b = machine(wire, "node-a"), machine(wire, "node-b")
    wire.set_faults(Faults(dropped=1.0))
    ssh = ethernet(MACS["node-a"], MACS["node-b"], ipv4("10.0.0.1", "10.0.0.2", 17, udp(4000, 22, b"hello")))
    a.send(ssh)
    a.send(datagram(1))
    assert received(b) == [ssh]
    until(lambda: len(wire.log()) == 1)
    a.close()
    b.close()


def test_a_machine_that_ended_can_be_plugged_in_again(wire: Wire) -> None:
    a, b = machine(wire, "node-a"), machine(wire, "node-b")
    b.close()
    a.send(datagram(1))
    until(lambda: len(wire.log()) == 1)
    b = machine(wire, "node-b")
    a.send(datagram(2))
    assert received(b) == [datagram(2)]
    a.close()
    b.close()


def test_the_key_of_a_packet_in_vxlan_is_that_of_the_inner_one() -> None:
    flags, seq, ack = 0x18, 1_000_000, 77
    tcp = struct.pack("!HHIIBBHHH", 41000, 8080, seq, ack, 5 << 4, flags, 100, 0, 0) + b"GET / HTTP/1.1"
    inner = ipv4("10.244.1.12", "10.244.2.11", 6, tcp, ip_id=99)
    vxlan = struct.pack("!II", 0x08000000, 1 << 8) + ethernet(MACS["node-a"], MACS["node-b"], inner)
    outer = ipv4("192.168.60.11", "192.168.60.12", 17, udp(50000, 8472, vxlan), ip_id=5)
    key = key_of(ethernet(MACS["node-a"], MACS["node-b"], outer))
    assert key == WireKey(
        6, "10.244.1.12", 41000, "10.244.2.11", 8080, 99, 54, seq, ack, flags, b"GET / HTTP/1.1", tunnel=True
    )


@pytest.mark.parametrize("cut", range(0, 42))
def test_frames_that_are_cut_off_have_no_key_or_a_short_one(cut: int) -> None:
    key = key_of(datagram(5)[:cut])
    assert key is None or (key.dport == 0 and cut < 42)


def test_random_bytes_are_no_error() -> None:
    for size in range(0, 200, 3):
        head = bytes.fromhex("525400600102525400600103") + b"\x08\x00\x45"
        assert key_of(head + os.urandom(size)) is None or size > 18
