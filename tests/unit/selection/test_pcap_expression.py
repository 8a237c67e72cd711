# SPDX-License-Identifier: Apache-2.0
"""--filter EXPR: compiled by libpcap, decided from what events recorded, never guessed."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import sample_packets
from tracer.errors import BadOption, NoLibrary
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.selection import cbpf, pcap_expression
from tracer.selection.pcap_expression import PcapExpression, compile_expression
from tracer.selection.recorded_header import RecordedHeader
from tracer.selection.ternary import Ternary

SYN = sample_packets.node_port()
"""192.168.56.1:40812 -> 192.168.56.10:30285, SYN."""
QUERY = Endpoints("fd00::1", 999, "fd00::2", 53)
DATAGRAM = replace(SYN, protocol="UDP", tcp_flags="", endpoints=QUERY, family="IPv6", flow=None)
ECHO = replace(SYN, protocol="ICMP", tcp_flags="", endpoints=Endpoints("10.0.0.1", 0, "10.0.0.2", 0), icmp=(8, 0), flow=None)


@pytest.mark.parametrize(
    ("expression", "packet", "is_shown"),
    [
        ("tcp port 30285", SYN, True), ("tcp dst port 30285 and src host 192.168.56.1", SYN, True),
        ("src port 30285", SYN, False), ("not port 30285", SYN, False), ("port 8080", SYN, False),
        ("portrange 30000-32767", SYN, True), ("net 192.168.56.0/24", SYN, True), ("udp", SYN, False),
        ("tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn", SYN, True), ("tcp[tcpflags] & tcp-rst != 0", SYN, False),
        ("ip6 and udp port 53", DATAGRAM, True), ("ip", DATAGRAM, False), ("host fd00::2", DATAGRAM, True),
        ("icmp[icmptype] == icmp-echo", ECHO, True), ("icmp[icmptype] == icmp-echoreply", ECHO, False),
        ("icmp or tcp", ECHO, True), ("tcp port 8", ECHO, False), ("sctp", ECHO, False),
        (f"greater {SYN.length}", SYN, True), (f"less {SYN.length - 1}", SYN, False), ("len > 65000", SYN, False),
    ],
)  # fmt: skip
def test_an_expression_sees_the_header_as_first_seen(expression: str, packet: Packet, is_shown: bool) -> None:
    selects = PcapExpression.compiled(expression)
    selects.require_recorded()
    assert selects(packet) is is_shown
    assert (selects.undecided, selects.note) == (0, "")


def test_a_later_fragment_has_no_ports() -> None:
    fragment = replace(DATAGRAM, family="IPv4", endpoints=Endpoints("10.0.0.1", 0, "10.0.0.2", 0))
    assert PcapExpression.compiled("udp")(fragment) and not PcapExpression.compiled("udp port 53")(fragment)
    assert PcapExpression.compiled("ip[6:2] & 0x1fff != 0")(fragment)


@pytest.mark.parametrize(
    "expression",
    ["ip[8] < 5", "ip[1] & 0xfc == 46 << 2", "tcp[14:2] == 0", "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420", 
     "ip[6] & 0x40 != 0", "ip[0] & 0xf != 5", "host 10.0.0.1 and ip[8] < 5", "ip6[7] == 1"],
)  # fmt: skip
def test_an_expression_on_what_is_not_recorded_is_refused(expression: str) -> None:
    sentence = " reads parts of the packet that are recorded only with -w FILE --snaplen N."
    with pytest.raises(BadOption) as e:
        PcapExpression.compiled(expression).require_recorded()
    assert str(e.value) == f"--filter {expression!r}{sentence}"


def test_a_packet_that_cannot_be_decided_is_counted_not_guessed() -> None:
    selects = PcapExpression.compiled("ip[8] < 5")
    assert not selects(SYN) and not selects(SYN)
    assert selects.note == "2 packets are not shown: --filter 'ip[8] < 5' reads a part of them that was not recorded."
    other = PcapExpression.compiled("udp and ip[8] < 5")
    assert not other(SYN) and not other.note, "decided by the protocol alone"


def test_recorded_bytes_decide_what_an_event_does_not_have() -> None:
    raw = bytes.fromhex("4600003c00004000030600007f0000017f000001") + bytes(4) + bytes.fromhex("00500051") + bytes(28)
    packet = replace(SYN, raw=raw, length=60)
    assert PcapExpression.compiled("ip[8] < 5")(packet) and not PcapExpression.compiled("ip[8] > 5")(packet)
    assert PcapExpression.compiled("tcp src port 80 and dst port 81")(packet), "behind the options of the IP header"
    assert PcapExpression.compiled("ip[6] & 0x40 != 0")(packet)
    cut = PcapExpression.compiled("tcp[32:4] == 0")
    assert not cut(packet) and cut.undecided == 1


@pytest.mark.parametrize("expression", ["tcp prot 80", "port 99999", "((", "host 300.1.1.1", "ether host 1:2:3:4:5:6"])
def test_a_bad_expression_has_the_message_of_libpcap(expression: str) -> None:
    with pytest.raises(BadOption) as e:
        PcapExpression.compiled(expression)
    sentence = str(e.value)
    assert sentence.startswith(f"--filter {expression!r} is no pcap-filter expression: ") and sentence.endswith(".")
    assert len(sentence) > len(f"--filter {expression!r} is no pcap-filter expression: .") + 5 and e.value.status == 2


@given(st.text("()[]&|!=<>:+-*/%^~,.'0123456789 \t\n\0é\ud800", max_size=30))
def test_any_text_is_an_expression_or_one_sentence(text: str) -> None:
    """Without letters: for a word, libpcap would ask name servers."""
    try:
        compile_expression(text)
    except BadOption as e:
        assert str(e).startswith("--filter ")


def test_without_libpcap_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcap_expression, "LIBRARIES", ("libnosuch.so.7",))
    with pytest.raises(NoLibrary) as e:
        PcapExpression.compiled("tcp")
    assert (str(e.value), e.value.status) == (pcap_expression.MISSING, 24)


EXPRESSIONS = (
    "tcp", "udp port 53", "ip[8] < 64", "ip6", "tcp[tcpflags] & tcp-syn != 0", "net 10.0.0.0/8", "portrange 20-60", "not ip",
    "tcp[((tcp[12] & 0xf0) >> 2):2] = 0x4745", "len >= 50 and ip[1] != 0", "ip[2:2] - 20 > ip[4:2] * 2",
    "ip[9] / (ip[8] - 3) > 1", "ip proto 6 or ip proto 17", "(ip[0] & 0xf) * 4 = 20", "icmp", "ip[6:2] & 0x1fff = 0",
    "ip6 proto 6", "ip[8] ^ ip[9] = 3", "ip[10] % 7 = 2", "ip[11] << 2 > 100", "ip[11] >> ip[8] = 0", "-ip[8] < 10",
    "ip[5] | 3 = 7",
)  # fmt: skip
FIRST_BYTES = st.sampled_from((b"\x45", b"\x46", b"\x60", b"\x4f"))
PROTOCOL_BYTES = st.sampled_from((6, 17, 1, 58, 132, 0))


@given(st.sampled_from(EXPRESSIONS), FIRST_BYTES, st.binary(min_size=0, max_size=80), PROTOCOL_BYTES)
def test_it_decides_as_libpcap_does(expression: str, first: bytes, rest: bytes, protocol: int) -> None:
    """bpf_filter of libpcap is the truth, on packets of which every byte is known."""
    raw = bytearray(first + rest)
    if len(raw) > 9:
        raw[9] = protocol
    program = compile_expression(expression)
    library = ctypes.CDLL(next(name for name in pcap_expression.LIBRARIES if _loads(name)))
    instructions = (pcap_expression._Insn * len(program))(*(pcap_expression._Insn(*one) for one in program))
    library.bpf_filter.restype = ctypes.c_uint
    truth = library.bpf_filter(instructions, bytes(raw), len(raw), len(raw))
    header = RecordedHeader([Ternary(byte) for byte in raw], Ternary(len(raw)))
    assert cbpf.results(program, header) == {bool(truth)}


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
