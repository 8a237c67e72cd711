# SPDX-License-Identifier: Apache-2.0
"""--snaplen: compares the bytes of packets in a capture with those that tcpdump saw."""

from __future__ import annotations

import socket
from io import StringIO
from pathlib import Path

import pytest

from scenes import topology, traffic
from scenes.netns import entered
from tests.kernel import pcap
from tests.kernel.captured import check_same_output
from tests.kernel.recorder import Recorder
from tests.kernel.watching import NOTHING
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.kernel.session import Kernel, Session
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.pipeline.shutdown import StopRequest
from tracer.render.text import TextOutput

pytestmark = pytest.mark.thorough

SNAPLEN = 700


def send(payload: bytes) -> None:
    """Sends bytes by TCP to the NodePort, and reads the answer."""
    with entered(topology.CLIENT), socket.create_connection((topology.NODE4, traffic.NODEPORT_HTTP), 3) as s:
        s.sendall(payload)
        assert s.recv(4096)


def packets_of(path: Path) -> list[Packet]:
    class Kept(TextOutput):
        def packet(self, packet: Packet) -> None:
            found.append(packet)

    found: list[Packet] = []
    with opened([str(path)]) as capture:
        runner.replay(capture, Kept(StringIO(), StringIO()), runner.ReplayRequest(), StopRequest())
    return found


@pytest.mark.parametrize("attach", ["auto", "kprobe"])
def test_bytes_of_packets(node: None, tmp_path: Path, attach: str) -> None:
    """--snaplen needs its own probes."""
    kernel = Kernel.running()
    with Session(kernel, NOTHING, only=attach, snaplen=SNAPLEN) as session:
        check_bytes(Recorder(kernel, session, tmp_path))


def check_bytes(recorder: Recorder) -> None:
    """Compares received packets with tcpdump, byte for byte except checksums; checks the length of sent packets."""

    def send_requests() -> None:
        send(b"GET / HTTP/1.1\r\nX: " + b"x" * 1200 + b"\r\n\r\n")
        assert traffic.udp_ask(question=bytes(range(256)) * 3).outcome == "answered"
        assert traffic.http_get(traffic.CLUSTER_IP_HTTP, 8080, ns=None).outcome == "answered"

    dump = recorder.directory / "client.pcap"
    with pcap.tcpdump(dump, "eth0", topology.CLIENT, f"ip and src host {topology.CLIENT4}", snaplen=0):
        made = recorder("bytes", send_requests, Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP, 8080)))
    check_same_output(made)
    found = packets_of(*made.files)
    sent = [data[:SNAPLEN] for data in pcap.raw(dump)]
    seen = [p.raw for p in found if p.endpoints.src == topology.CLIENT4]
    print(f"{len(sent)} sent, {len(seen)} seen, {[len(raw) for raw in seen]} bytes")
    assert len(seen) >= 6 and max(map(len, seen)) == SNAPLEN
    assert sorted(map(pcap.without_sums, seen)) == sorted(map(pcap.without_sums, sent))
    answers = [p for p in found if p.endpoints.src != topology.CLIENT4]
    print(f"{len(answers)} answers: {[(p.endpoints.src, p.tcp_flags, p.length, len(p.raw)) for p in answers]}")
    assert answers and all(len(p.raw) == min(p.length, SNAPLEN) for p in answers)
    assert any(b"HTTP/1." in p.raw[52:] for p in answers), "sent packets have their payload in another page"
