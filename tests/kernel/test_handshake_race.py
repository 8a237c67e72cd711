"""Two segments that both end one handshake, on two processors at once: the last ACK, and the data sent right behind it.

One of them makes the connection; the other finds that it came too late, and meets the connection after all. Neither is dropped.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from scenes import topology, traffic
from scenes.netns import entered
from tests.kernel.watching import Watch
from tracer.filters import Filter
from tracer.model import Packet

CONNECTIONS = 150


def connect_and_send() -> str:
    """Connects on one processor and sends from another, as soon as the kernel lets it. What came back begins with this."""
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
        return sock.recv(15).decode()


def came_too_late(packet: Packet) -> bool:
    """Met the listener, was nobody's there, and then met the connection."""
    return len([h for h in packet.hops if h.socket]) > 1 and not any(h.handshake for h in packet.hops)


def test_who_comes_too_late_is_not_dropped(watch: Watch) -> None:
    processors = os.sched_getaffinity(0)
    try:
        with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
            assert {connect_and_send() for _ in range(CONNECTIONS)} == {"HTTP/1.1 200 OK"}
    finally:
        os.sched_setaffinity(0, processors)
    print(f"{len(seen.packets)} packets, {len([p for p in seen.packets if came_too_late(p)])} came too late")
    assert len(seen.packets) > 8 * CONNECTIONS
    assert not seen.losses
    assert {p.verdict for p in seen.packets if p.outcome not in ("delivered", "forwarded", "sent")} == set()
