# SPDX-License-Identifier: Apache-2.0
"""Packets as templates and differences: both sides stay in step, and a hostile agent is one clear error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.protocol.limits import MOST_TEMPLATES
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.messages import FrameKind
from tracer.protocol.templates import PacketDecoder, PacketEncoder
from tracer.protocol.tree_codec import encode, to_bytes
from tracer.util.evictions import evictions


def numbered(path: int, number: int) -> Packet:
    """A packet on one of many paths. path: gives it a verdict of a rule of its own."""
    packet = sample_packets.with_hop(sample_packets.node_port(), 0, table=f"table {path}")
    ends = Endpoints(f"10.0.0.{number % 250}", 1024 + number, packet.endpoints.dst, packet.endpoints.dport)
    return replace(packet, endpoints=ends, identity=number, number=number, hops=tuple(packet.hops))


def passed(encoder: PacketEncoder, decoder: PacketDecoder, packet: Packet) -> tuple[Packet, int, int]:
    """The packet as it arrives, the number of its frames, and their bytes."""
    frames = list(encoder.frames(packet))
    for kind, body in frames[:-1]:
        assert kind is FrameKind.TEMPLATE
        decoder.template(body)
    return decoder.packet(frames[-1][1]), len(frames), sum(len(body) for _, body in frames)


def test_the_second_packet_of_a_path_is_small() -> None:
    encoder, decoder = PacketEncoder(), PacketDecoder()
    first, second = numbered(1, 1), numbered(1, 2)
    assert passed(encoder, decoder, first)[:2] == (first, 2)
    arrived, frames, size = passed(encoder, decoder, second)
    assert (arrived, frames) == (second, 1) and size < len(to_bytes(encode(second))) / 10


def test_both_sides_drop_the_same_templates() -> None:
    encoder, decoder = PacketEncoder(), PacketDecoder()
    evictions.read()
    order = [*range(MOST_TEMPLATES + 10), 5, MOST_TEMPLATES + 9, 5, 300, *range(40)]
    for number, path in enumerate(order):
        packet = numbered(path, number)
        assert passed(encoder, decoder, packet)[0] == packet
        assert len(encoder._templates) == len(decoder._templates) <= MOST_TEMPLATES
    assert evictions.read()["packet templates of a stream"] > 20


def test_large_templates_are_bounded_by_their_bytes_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.protocol.templates.MOST_TEMPLATE_BYTES", 20_000)
    encoder, decoder = PacketEncoder(), PacketDecoder()
    for number, path in enumerate([*range(40), *range(35, 40), 0]):
        packet = numbered(path, number)
        assert passed(encoder, decoder, packet)[0] == packet
        assert 1 <= len(encoder._templates) == len(decoder._templates) < 30
    # An agent that repeats a number replaces its template.
    body = to_bytes([1, encode(numbered(1, 1))])
    for _ in range(100):
        decoder.template(body)
    assert decoder._templates._bytes <= 20_000


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{}", b"[1,2]", b'["1"]', b"[1,0]", b"[99]", b'[1,"0",1]', b"[1,0,[]]", b"[1,-1,2]", b"[1,1000000,2]",
     b'[1,0,"text"]', b"[true]", b"[1,0,null]"],
)  # fmt: skip
def test_a_malformed_packet_is_refused(body: bytes) -> None:
    encoder, decoder = PacketEncoder(), PacketDecoder()
    passed(encoder, decoder, numbered(1, 1))
    with pytest.raises(MalformedFrame):
        decoder.packet(body)


@pytest.mark.parametrize("body", [b"[]", b"[1]", b'["1",{}]', b'[1,{"$":"Owner","kind":"x"}]', b'[1,{"$":"Later"}]', b"1"])
def test_a_malformed_template_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        PacketDecoder().template(body)
