# SPDX-License-Identifier: Apache-2.0
"""Legacy rules and malformed packets: the rule at which the kernel dropped them is named, and no other."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

import pytest

from scenes import rules
from scenes.netns import entered
from scenes.topology import CLIENT, CLIENT4, CLIENT6, PODS
from tests.kernel.watching import Watch
from tracer.model.filter import Filter, parse_host
from tracer.model.hop import Hop, TableHop
from tracer.model.rule import RuleTrace

RULES4 = """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -p udp -m udp --dport 53 -j ACCEPT
-A FORWARD -p tcp -m tcp --dport 53 -j ACCEPT
-A FORWARD -p sctp -m multiport --dports 53 -j ACCEPT
-A FORWARD -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A FORWARD -p 253 -j ACCEPT
-A FORWARD -m hashlimit --hashlimit-upto 1/sec --hashlimit-mode dstport --hashlimit-name here -j ACCEPT
-A FORWARD -j DROP
COMMIT
"""
RULES6 = """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -p udp -m udp --dport 53 -j ACCEPT
-A FORWARD -p tcp -m tcp --dport 80 -j ACCEPT
-A FORWARD -p 60 -j ACCEPT
-A FORWARD -p 51 -j ACCEPT
-A FORWARD -j DROP
COMMIT
"""
TCP, UDP, ICMP, SCTP, ESP, AH = 6, 17, 1, 132, 50, 51
POD = PODS[1]
SYN = struct.pack("!HHIIBBHHH", 4000, 80, 7, 0, 0x50, 2, 64240, 0, 0)
PADDING = struct.pack("!BBBB", 0, 0, 1, 4) + bytes(4)
"""Destination options of 8 bytes; the first byte gets the number of the next header."""


@pytest.fixture(scope="module")
def table(watch: Watch) -> Iterator[None]:
    """The rules above, in force for all tests here; restores the plain ones afterwards."""
    subprocess.run(["modprobe", "-q", "xt_hashlimit"], check=False)
    rules.flush()
    rules.restore_text(RULES4, 4, "legacy")
    rules.restore_text(RULES6, 6, "legacy")
    yield
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")


def send(protocol: int, body: bytes) -> None:
    """A packet from the client to a pod; the kernel makes the rest of the IPv4 header."""
    src, dst = ip_address(CLIENT4).packed, ip_address(POD.addr4).packed
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 4711, 0, 64, protocol, 0, src, dst)
    with entered(CLIENT), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        sock.sendto(head + body, (POD.addr4, 0))


def send6(first: int, payload: bytes) -> None:
    src, dst = ip_address(CLIENT6).packed, ip_address(POD.addr6).packed
    head = struct.pack("!IHBB16s16s", 6 << 28, len(payload), first, 64, src, dst)
    with entered(CLIENT), socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        sock.sendto(head + payload, (POD.addr6, 0))


def options(count: int, last: int) -> bytes:
    """`count` headers of destination options, then `last`."""
    return b"".join(bytes((60 if n + 1 < count else last,)) + PADDING[1:] for n in range(count))


def forwarded(hops: Iterable[Hop]) -> RuleTrace:
    hop = next(h for h in hops if isinstance(h, TableHop) and h.table == "filter" and h.hook == "FORWARD")
    assert hop.rule_trace
    return hop.rule_trace


@pytest.mark.matrix
def test_a_packet_too_short_for_a_match(watch: Watch, table: None) -> None:
    with watch(Filter(hosts=(parse_host(POD.addr4),))) as seen:
        whole = struct.pack("!HHHH", 4000, 53, 8, 0)
        for protocol, body in ((UDP, b"abc"), (TCP, b""), (SCTP, b"a"), (ICMP, b"\x08"), (UDP, whole)):
            send(protocol, body)
    traces = [forwarded(p.hops) for p in seen.packets if p.netns == CLIENT]
    decisions = [(w.decision.location.number, w.decision.verdict, bool(w.decision.hotdrop)) for w in traces if w.decision]
    assert decisions == [
        (1, "DROP", True), (2, "DROP", True), (3, "DROP", True), (4, "DROP", True), (1, "ACCEPT", False),
    ], [w.undecided for w in traces]  # fmt: skip


def test_a_watched_match_drops_the_packet(watch: Watch, table: None) -> None:
    with watch(Filter(hosts=(parse_host(POD.addr4),))) as seen:
        send(136, b"a")  # UDP-Lite: hashlimit reads its ports
    trace = forwarded(seen.packets[0].hops)
    assert trace.decision and trace.decision.location.number == 6, trace
    assert "hashlimit" in trace.decision.hotdrop and trace.decision.evidence.value == "observed"


@pytest.mark.matrix
def test_extension_headers(watch: Watch, table: None) -> None:
    ah = struct.pack("!BBHII", TCP, 1, 0, 5, 1)
    cases = {
        "six headers": (60, options(6, TCP) + SYN, (2, "ACCEPT", False)),
        "AH": (AH, ah + SYN, (2, "ACCEPT", False)),
        "twelve": (60, options(12, TCP) + SYN, (2, "ACCEPT", False)),
        "headers end early": (60, options(3, TCP)[:17], (1, "DROP", True)),
        "three bytes after them": (60, options(5, UDP) + b"abc", (1, "DROP", True)),
    }
    with watch(Filter(hosts=(parse_host(POD.addr6),))) as seen:
        for first, payload, _ in cases.values():
            send6(first, payload)
        send6(60, options(30, TCP) + SYN)
    traces = [forwarded(p.hops) for p in seen.packets if p.netns == CLIENT and p.protocol != "ICMPv6"]
    decisions = [(w.decision.location.number, w.decision.verdict, bool(w.decision.hotdrop)) for w in traces if w.decision]
    assert decisions == [case[2] for case in cases.values()], [w.undecided for w in traces]
    assert len(traces) == len(cases) + 1 and traces[-1].undecided.startswith("the header that rule 1"), traces[-1]


def counted() -> int:
    """Packets that the last rule of FORWARD has dropped; a packet that a match dropped is not among them."""
    text = subprocess.run(["ip6tables-legacy-save", "-c", "-t", "filter"], capture_output=True, text=True, check=True).stdout
    return int(text.split("-A FORWARD -j DROP")[0].rsplit("[", 1)[1].split(":")[0])


@pytest.mark.matrix
@pytest.mark.parametrize("first", [AH, 60, 43], ids=["AH", "destination options", "routing"])
def test_an_extension_header_that_ends_after_the_packet(watch: Watch, table: None, first: int) -> None:
    """Some kernels drop the packet at the first rule with a protocol, others go on. What this kernel does cannot be seen, so no
    rule is named; where a rule is named, the kernel's own counter of the last rule must agree."""
    header = struct.pack("!BBHII", 79, 0x1F, 253 << 8 if first == 43 else 0, 5, 0)
    needed = 4 if first == 43 else 2
    for length in range(len(header) + 1):
        before = counted()
        with watch(Filter(hosts=(parse_host(POD.addr6),))) as seen:
            send6(first, header[:length])
        trace = next(forwarded(p.hops) for p in seen.packets if p.netns == CLIENT and p.protocol != "ICMPv6")
        assert bool(trace.undecided) == (length >= needed), (length, trace)
        if trace.decision:
            by_last = trace.decision.location.number == 5 and not trace.decision.hotdrop
            assert by_last == bool(counted() - before), (length, trace)
