# SPDX-License-Identifier: Apache-2.0
"""The cost of listening to conntrack while recording: CPU time in user space, and bytes of the file, per event.

    python -m bench.entries [--events 100000]

Another process sends netlink messages through a socket, one per datagram, as the kernel does; the listening thread, the record
buffer and the writer are those of a recording. `hear` only receives and discards, `record` also keeps the messages, `filter`
keeps messages with one port, which one connection in a hundred has. Each runs in a separate process and prints one line of
JSON. Figures go to docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.ctnetlink import ADDED, CHANGED, REMOVED, message
from tracer.capture.change_events import RecordedConntrackListener
from tracer.capture.format.record_layout import describe
from tracer.capture.record.buffer import RecordBuffer
from tracer.capture.record.capture_files import CaptureFiles, RotationLimits
from tracer.capture.record.writer import CaptureWriter
from tracer.connections.conntrack_events import EntryEvents
from tracer.events.record import SLOT
from tracer.model.endpoints import Endpoints
from tracer.util.worker import Worker

PORT, TURN = 30285, 0.05
WAYS = ("hear", "record", "filter")


def messages(connections: int) -> list[bytes]:
    """Start, two changes and end of each connection; one connection in a hundred goes to PORT."""
    kinds = (ADDED, CHANGED, CHANGED, REMOVED)
    ends = [Endpoints(f"10.1.{n >> 8 & 255}.{n & 255}", 1024 + n % 60000, "10.96.0.1", 80 if n % 100 else PORT)
            for n in range(connections)]  # fmt: skip
    return [message(*what, state=3, orig=end) for end in ends for what in kinds]


class Through(EntryEvents):
    """Listens to a socket instead of netlink."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._from = sock

    def listen(self, wanted: bool) -> str:
        self._sock = self._from
        self._sock.settimeout(0.2)
        self._thread = Worker("conntrack events", self._work).start()
        return ""


def measure(way: str, events: int) -> dict[str, float]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams = messages(events // 4)
    if not os.fork():
        for data in datagrams:
            theirs.send(data)
        os._exit(0)
    with tempfile.TemporaryDirectory() as scratch:
        path, buffer = Path(scratch) / "a.k8st", RecordBuffer()
        files = CaptureFiles(path, RotationLimits())
        files.describe({"layout": describe()})
        writer = CaptureWriter(files.insert, files.close, 0)
        buffer.start(writer.put)
        listener = Through(ours)
        recorded = RecordedConntrackListener(buffer, listener)
        recorded.ports = (PORT,) if way == "filter" else ()
        before, received = time.process_time(), 0
        recorded.listen(True)
        take: Callable[[], list[tuple[int, bytes]]] = listener.read if way == "hear" else recorded.read
        while received < len(datagrams):
            time.sleep(TURN)
            waiting = len(listener._received)
            buffer.add_batch(time.monotonic_ns(), np.zeros((0, SLOT), np.uint8), False)
            take()
            received += waiting
            if not waiting and os.waitpid(-1, os.WNOHANG) != (0, 0):
                break
        buffer.end(0)
        writer.close()
        used = time.process_time() - before
        listener.close()
        size = path.stat().st_size
        return {"events": received, "cpu": used, "us_an_event": used / received * 1e6, "bytes_an_event": size / received}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--way", choices=WAYS, help="for the inner processes")
    given = parser.parse_args()
    if given.way:
        print(json.dumps({"way": given.way, **measure(given.way, given.events)}), flush=True)
        return 0
    for way in WAYS:
        subprocess.run([sys.executable, "-m", "bench.entries", "--way", way, "--events", str(given.events)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
