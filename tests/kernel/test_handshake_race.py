"""Two segments that both end one handshake, on two processors at once: the last ACK, and the data sent right behind it.

One of them makes the connection; the other finds that it came too late, and meets the connection after all. Neither is dropped.
That is a matter of microseconds, so here the first of them is held up (slow_handshake.c).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scenes import topology, traffic
from scenes.netns import entered
from tests.kernel.watching import Watch
from tracer.filters import Filter
from tracer.kernel import stub
from tracer.kernel.program import FLAGS, load_bcc
from tracer.model import Packet

CONNECTIONS, ROUNDS = 20, 5


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stub.write(tmp_path)
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    program = load_bcc().BPF(text=Path(__file__).with_name("slow_handshake.c").read_text(), cflags=FLAGS)
    program.attach_kprobe(event="tcp_create_openreq_child", fn_name="hold_up")
    yield
    program.cleanup()


def connect_and_send() -> bytes:
    """Connects on one processor and sends from another, as soon as the kernel lets it. What came back."""
    with entered("client"):
        sock = socket.socket()
    with sock:
        sock.setblocking(False)
        ready = threading.Event()

        def send() -> None:
            os.sched_setaffinity(0, {1})
            ready.set()
            while True:
                with suppress(BlockingIOError, BrokenPipeError):  # not connected yet
                    return sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

        sender = threading.Thread(target=send)
        os.sched_setaffinity(0, {0})
        sender.start()
        ready.wait()
        with suppress(BlockingIOError):
            sock.connect((topology.NODE4, traffic.NODEPORT_HTTP))
        sender.join()
        sock.settimeout(10)
        back = b""
        while piece := sock.recv(4096):
            back += piece
        return back


def came_too_late(packet: Packet) -> bool:
    """Met the listener, nothing was decided there, and then met the connection."""
    return len([h for h in packet.hops if h.socket]) > 1 and not packet.handshake


def connections(watch: Watch) -> list[Packet]:
    """The packets of some connections, each made by one processor and used by another."""
    processors = os.sched_getaffinity(0)
    try:
        with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
            replies = [connect_and_send() for _ in range(CONNECTIONS)]
    finally:
        os.sched_setaffinity(0, processors)
    assert all(reply.startswith(b"HTTP/1.1 200 OK") for reply in replies)
    assert not seen.losses
    return seen.packets


def test_who_comes_too_late_is_not_dropped(watch: Watch, slow: None) -> None:
    packets: list[Packet] = []
    for _ in range(ROUNDS):
        packets += connections(watch)
        late = [p for p in packets if came_too_late(p)]
        if late:
            break
    print(f"{len(packets)} packets, {len(late)} came too late")
    assert late and all("delivered to" in p.verdict for p in late), [p.verdict for p in late]
    assert not [p.verdict for p in packets if "no reason seen" in p.verdict]
