# SPDX-License-Identifier: Apache-2.0
"""The queue of an output: whole records in order, exact counts of what is shed, and no wait for a reader that is blocked."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from tests.support.waiting import until
from tracer.util.queued_stream import QueuedStream

PIPE_BYTES = 1 << 16


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(fd)


def read_all(reader: int) -> str:
    out = b""
    while part := os.read(reader, 1 << 20):
        out += part
    return out.decode()


def test_records_are_written_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = QueuedStream(writer, "test")
    for number in range(1000):
        stream.write(f"{number}\n")
    stream.drain(60)
    os.close(writer)
    assert read_all(reader) == "".join(f"{number}\n" for number in range(1000))
    assert (stream.shed, stream.error) == (0, None)


def test_a_blocked_reader_costs_whole_records_and_they_are_counted(pipe: tuple[int, int]) -> None:
    """The pipe and the queue hold a part of the records. The reader gets these and the last record, all whole."""
    reader, writer = pipe
    stream = QueuedStream(writer, "test", most_bytes=10_000)
    records = [f"{number:06} {'x' * 1000}\n" for number in range(200)]
    for record in records:
        stream.write(record)
    assert stream.shed > 200 - (PIPE_BYTES + 10_000) // 1000 - 10
    shed = stream.shed
    stream.is_last = True
    stream.write("the end\n")
    assert stream.shed == shed
    got = os.read(reader, 1 << 20)
    until(lambda: not stream._records)
    stream.drain(60)
    os.close(writer)
    lines = (got.decode() + read_all(reader)).splitlines(keepends=True)
    assert lines[-1] == "the end\n" and set(lines[:-1]) <= set(records)
    assert len(lines) + stream.shed == 201


def test_many_records_are_written_in_one_call(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call waits for the interpreter's lock afterwards: a busy tracer would shed records if each had its own call."""
    reader, writer = pipe
    written: list[int] = []
    write = os.write
    os.write(writer, b"x" * PIPE_BYTES)

    def counted(fd: int, data: bytes) -> int:
        count = write(fd, data)
        written.append(count)
        return count

    monkeypatch.setattr(os, "write", counted)
    stream = QueuedStream(writer, "test")
    for number in range(1000):
        stream.write(f"{number:09}\n")
    assert os.read(reader, PIPE_BYTES) == b"x" * PIPE_BYTES
    stream.drain(60)
    os.close(writer)
    assert read_all(reader) == "".join(f"{number:09}\n" for number in range(1000))
    assert sum(written) == 10_000 and len(written) <= 20, written
    assert os.get_blocking(reader) and stream.shed == 0


def test_records_given_up_are_counted_to_the_record(pipe: tuple[int, int]) -> None:
    """Of a batch, only the records that the blocked pipe did not take as a whole are shed."""
    reader, writer = pipe
    stream = QueuedStream(writer, "test")
    for number in range(100):
        stream.write(f"{number:06} {'x' * 1000}\n")
    until(lambda: stream._bytes < 100 * 1008 - PIPE_BYTES // 2)
    stream.drain(0.5)
    os.close(writer)
    assert read_all(reader).count("\n") + stream.shed == 100 and stream.shed > 20


def test_a_socket_is_written() -> None:
    """It cannot be opened again, so each call has one record."""
    near, far = socket.socketpair()
    with near, far:
        stream = QueuedStream(near.fileno(), "test")
        for number in range(100):
            stream.write(f"{number}\n")
        stream.drain(60)
        near.shutdown(socket.SHUT_WR)
        assert read_all(far.fileno()) == "".join(f"{number}\n" for number in range(100))


def test_a_waiting_stream_sheds_nothing(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    child = os.fork()
    if child == 0:
        os.close(writer)
        os._exit(0 if len(read_all(reader)) == 200 * 1001 else 1)
    stream = QueuedStream(writer, "test", waits=True, most_bytes=10_000)
    for _ in range(200):
        stream.write("x" * 1000 + "\n")
    stream.drain(60)
    os.close(writer)
    assert (os.waitpid(child, 0)[1], stream.shed) == (0, 0)


@pytest.mark.parametrize("waits", [False, True])
def test_a_reader_that_ended_never_raises(pipe: tuple[int, int], waits: bool) -> None:
    reader, writer = pipe
    os.close(reader)
    stream = QueuedStream(writer, "test", waits, most_bytes=100)
    stream.write("x" * 80)
    until(lambda: stream.error)
    for _ in range(5):
        stream.write("x" * 80)
    stream.drain(60)
    assert isinstance(stream.error, BrokenPipeError) and stream.shed == 6


def test_a_full_disk_is_an_error_of_the_stream() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    stream = QueuedStream(full, "test")
    stream.write("lost\n")
    stream.drain(60)
    os.close(full)
    assert stream.error and "No space left" in str(stream.error) and stream.shed == 1


def test_the_end_does_not_wait_for_a_blocked_reader(pipe: tuple[int, int]) -> None:
    stream = QueuedStream(pipe[1], "test")
    for _ in range(10):
        stream.write("x" * PIPE_BYTES)
    stream.drain(0.5)
    assert stream.shed >= 8
    given_up = QueuedStream(pipe[1], "test")
    given_up.write("x" * PIPE_BYTES)
    given_up.drain(0)
    assert given_up.shed == 1
