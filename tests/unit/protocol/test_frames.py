# SPDX-License-Identifier: Apache-2.0
"""Frames in a stream: in any pieces, cut off, garbled, too large."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import sample_packets
from tests.support.agent_frames import AgentBytes, stream_of
from tracer.cluster.node_stream import NodeStream
from tracer.protocol.frames import HEADER, Frame, FrameReader, FrameWriter
from tracer.protocol.limits import MOST_BODY_BYTES, MOST_CLIENT_BODY_BYTES, PREAMBLE
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.messages import FrameKind, Hello

STREAM = stream_of(sample_packets.every())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_frames_come_in_any_pieces(cuts: list[int]) -> None:
    whole = list(FrameReader(is_compressed=True).feed(STREAM))
    reader, found, begin = FrameReader(is_compressed=True), [], 0
    for end in [*sorted(cuts), len(STREAM)]:
        found += list(reader.feed(STREAM[begin:end]))
        begin = end
    assert found == whole and len(whole) > 10 and not reader.is_inside_frame
    assert reader.wire_bytes == len(STREAM) and reader.frames == len(whole)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_a_garbled_stream_is_an_error_or_a_shorter_one(place: int, change: int) -> None:
    garbled = bytearray(STREAM)
    garbled[place] ^= change
    stream = NodeStream()
    try:
        results = list(stream.feed(bytes(garbled), 0))
    except MalformedFrame as e:
        assert str(e)
        return
    # zlib has no check sum before its end: a changed byte can give other, readable frames, and never more of them.
    assert len(results) <= sum(1 for _ in FrameReader(is_compressed=True).feed(STREAM))


@pytest.mark.parametrize("length", range(0, len(STREAM), 97))
def test_a_cut_off_stream_has_its_beginning(length: int) -> None:
    stream = NodeStream()
    packets = [r for r in stream.feed(STREAM[:length], 0) if r.kind is FrameKind.PACKET]
    assert stream.end is None and len(packets) <= len(sample_packets.every())


def test_another_program_is_recognised_by_its_first_bytes() -> None:
    with pytest.raises(MalformedFrame, match="not the stream of an agent"):
        list(FrameReader(is_compressed=True).feed(b"Error: unknown command"))


def test_numbers_have_no_gap() -> None:
    data = HEADER.pack(4, 2, FrameKind.CREDIT) + b"null"
    with pytest.raises(MalformedFrame, match="frame 2 follows frame 0"):
        list(FrameReader(is_compressed=False).feed(data))


def test_a_long_frame_is_refused_before_it_has_come() -> None:
    for is_compressed, most in ((True, MOST_BODY_BYTES), (False, MOST_CLIENT_BODY_BYTES)):
        header = HEADER.pack(most + 1, 1, FrameKind.NOTE)
        data = PREAMBLE + zlib.compress(header) if is_compressed else header
        with pytest.raises(MalformedFrame, match="a frame of"):
            list(FrameReader(is_compressed).feed(data))
        with pytest.raises(ValueError, match="a frame of"):
            FrameWriter(is_compressed).frame(FrameKind.NOTE, bytes(most + 1))


def test_a_compressed_bomb_is_read_in_parts() -> None:
    bomb = PREAMBLE + zlib.compress(bytes(200 << 20))
    with pytest.raises(MalformedFrame, match="frame 0 follows frame 0"):
        list(FrameReader(is_compressed=True).feed(bomb))


def test_the_end_of_the_compressed_stream_is_no_end() -> None:
    writer = zlib.compressobj()
    data = writer.compress(HEADER.pack(4, 1, FrameKind.ALIVE) + b"null") + writer.flush()
    with pytest.raises(MalformedFrame, match="stream ends"):
        list(FrameReader(is_compressed=True).feed(PREAMBLE + data))


def test_the_clients_frames_are_not_compressed() -> None:
    writer = FrameWriter(compresses=False)
    data = writer.frame(FrameKind.STOP, b"null") + writer.flush() + writer.frame(FrameKind.PING, b"{}")
    assert list(FrameReader(is_compressed=False).feed(data)) == [Frame(1, 68, b"null"), Frame(2, 66, b"{}")]


def test_a_frame_of_an_unknown_kind_is_left_out() -> None:
    agent, stream = AgentBytes(), NodeStream()
    data = agent.of(FrameKind.HELLO, Hello()) + agent.raw(200, b"\x00anything") + agent.packet(sample_packets.ping())
    assert [result.kind for result in stream.feed(data, 0)] == [FrameKind.HELLO, FrameKind.PACKET]
