# SPDX-License-Identifier: Apache-2.0
"""A packet's bytes: read from their records, stored in the packet and in a capture."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import captures
from tests.support.builders import Trail, hops, packets
from tracer.events import bpf_source
from tracer.events import payload as events_payload
from tracer.events.record import DTYPE, EventArray, Kind
from tracer.packets.assembler import CLOSED_KEPT_NS, PacketAssembler

CLIENT = ("192.168.56.1", 40812, "192.168.56.10", 30285)
POD_END = ("10.244.0.1", "10.244.0.11", 8080)
PAYLOAD = bytes(range(256)) * 2


def ip(ends: tuple[str, int, str, int], payload: bytes = PAYLOAD) -> bytes:
    """IPv4 and TCP headers with their payload."""
    src, sport, dst, dport = ends
    addresses = socket.inet_aton(src) + socket.inet_aton(dst)
    head = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(payload), 1, 0, 61, 6, 0xBEEF) + addresses
    return head + struct.pack(">HHIIBBHHH", sport, dport, 7, 8, 0x50, 0x18, 502, 0xCAFE, 0) + payload


def records(packet: int, data: bytes, cuts: tuple[int, ...] = (), first: int = 0) -> EventArray:
    """The records of a packet's bytes, cut as the kernel side cuts them: every 240 bytes, and at the end of a buffer piece."""
    rows, at = np.zeros(0, events_payload.RAW), first
    for end in (*(cut for cut in cuts if cut < len(data)), len(data)):
        while at < end:
            count, row = min(240, end - at), np.zeros(1, events_payload.RAW)
            piece = np.frombuffer(data[at : at + count].ljust(240, b"\0"), np.uint8)
            row["time"], row["packet"], row["kind"], row["first"], row["count"] = 1000, packet, Kind.EVENT_RAW, at, count
            row["bytes_1"], row["bytes_2"], row["bytes_3"] = piece[:48], piece[48:144], piece[144:]
            rows, at = np.concatenate([rows, row]), at + count
    return rows.view(DTYPE)


@pytest.mark.parametrize("cuts", [(), (40,), (300,), (40, 41)])
@pytest.mark.parametrize("length", [1, 48, 49, 144, 145, 240, 241, 552])
def test_bytes_are_joined_as_they_were_cut(length: int, cuts: tuple[int, ...]) -> None:
    data = ip(CLIENT)[:length]
    events, pieces = events_payload.split(np.concatenate([records(256, data, cuts), Trail(CLIENT).hook("PREROUTING").batch]))
    assert len(events) == 1 and {packet for packet, _, _ in pieces} == {256}
    assert events_payload.joined({first: piece for _, first, piece in pieces}) == data


def test_bytes_after_a_gap_are_left_out() -> None:
    data = ip(CLIENT)
    _, pieces = events_payload.split(records(256, data))
    assert events_payload.joined({first: piece for _, first, piece in pieces if first != 240}) == data[:240]
    assert events_payload.joined({}) == b""


def test_a_packet_has_its_bytes_and_no_additional_hop() -> None:
    trail, data = Trail(CLIENT).hook("PREROUTING").hook("INPUT"), ip(CLIENT)
    made = PacketAssembler(hops(), idle_ns=0)
    made.feed(np.concatenate([records(trail.packet, data), trail.batch]))
    (packet,) = made.flush()
    (without,) = packets(trail)
    assert packet.raw == data and packet.complete
    assert packet.hops == without.hops and without.raw == b"" and made.events == 2


def test_bytes_of_a_packet_without_further_events_are_not_kept() -> None:
    made, later = PacketAssembler(hops(), idle_ns=0), 2 * CLOSED_KEPT_NS
    made.feed(records(1000 << 8, ip(CLIENT)))
    made.closed(later)
    assert made._bytes
    made.feed(Trail(CLIENT, later << 8, later).hook("PREROUTING").batch)
    made.closed(later)
    assert not made._bytes


def test_the_code_is_compiled_only_with_snaplen() -> None:
    text = bpf_source.read("core/payload.h")
    assert re.sub(r"/\*.*?\*/", "", text, flags=re.S).strip().startswith("#ifdef SNAPLEN") and text.rstrip().endswith("#endif")
    before, _, after = bpf_source.read("core/emit.h").partition("write_bytes(")
    assert before.rstrip().rsplit("#", 1)[1].startswith("ifdef SNAPLEN") and "#endif" in after


def with_bytes(tmp_path: Path) -> captures.Printed:
    """A capture of a request, with the recorded bytes of its packets."""
    batch = captures.request(1, 1000)
    batches: captures.Batches = [(np.concatenate([records(256, ip(CLIENT)), batch]), []), (batch[:0], [])]
    return captures.capture(tmp_path / "a.k8st", batches)


def test_a_capture_keeps_the_bytes_and_prints_the_same(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    printed = with_bytes(tmp_path)
    assert run("-r", printed.path)[:2] == (0, printed.text["text"])


def test_pcapng_has_the_packets_own_bytes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scapy")
    from scapy.layers.inet import IP
    from scapy.utils import RawPcapNgReader

    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    with_bytes(tmp_path)
    assert run("export", tmp_path / "a.k8st", "--to", "pcapng", tmp_path / "a.pcapng")[0] == 0
    with RawPcapNgReader(str(tmp_path / "a.pcapng")) as reader:
        first, after_dnat, after_snat = [data for data, _ in reader]
    assert first == ip(CLIENT), "as it came in: no byte has changed"
    for data, (src, dst, dport) in ((after_dnat, ("192.168.56.1", "10.244.0.11", 8080)), (after_snat, POD_END)):
        seen = IP(data)
        assert (seen.src, seen.dst, seen["TCP"].dport, seen.ttl) == (src, dst, dport, 61)
        assert bytes(seen["TCP"].payload) == PAYLOAD and seen["TCP"].chksum == 0
        assert seen.chksum == IP(bytes(IP(src=src, dst=dst, id=1, ttl=61, proto=6, len=552, flags=0))[:20]).chksum


def test_redaction_removes_the_bytes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scapy")
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    with_bytes(tmp_path)
    assert run("export", tmp_path / "a.k8st", "--to", "pcapng", "--redact", tmp_path / "a.pcapng")[0] == 0
    data = (tmp_path / "a.pcapng").read_bytes()
    assert PAYLOAD[:32] not in data and socket.inet_aton("192.168.56.1") not in data


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--snaplen", "96"], "need -w FILE"),
        (["-r", "x.k8st", "--snaplen", "96"], "-r replays a finished run"),
        (["-w", "x.k8st", "--snaplen", "0"], "0 is not in the range 1<=x<=4096"),
        (["record", "x.k8st", "--snaplen", "9000"], "9000 is not in the range 1<=x<=4096"),
    ],
)
def test_wrong_options(run: Any, args: list[str], message: str) -> None:
    status, out, err = run(*args)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1
