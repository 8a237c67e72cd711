# SPDX-License-Identifier: Apache-2.0
"""Simulates many nodes: each is a small program that writes the stream of an agent. Measures the client.

    PYTHONPATH=. python3 bench/cluster_nodes.py [NODES] [PACKETS of each node]

Packets are those of a capture with known answers, each with a port, a time and a sequence number of its own. The nodes wait for
no credit: the client reads as fast as it can. Prints one line: the client's memory, its CPU time for each packet, bytes of a
packet on the wire, and the CPU time of an agent that encodes it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support import known_capture
from tracer.analysis.collector import PacketCollector
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.cluster.cluster_run import ClusterRun, NodeCommand
from tracer.cluster.packet_stage import SingleViews
from tracer.commands.read import replay_request
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.frames import FrameWriter
from tracer.protocol.limits import PREAMBLE
from tracer.protocol.messages import BatchEnd, End, FrameKind, Hello
from tracer.protocol.templates import PacketEncoder
from tracer.protocol.tree_codec import encode, to_bytes
from tracer.render.oneline import OneLineOutput
from tracer.util.frozen import evolve

BATCH_PACKETS = 50
"""Packets between two flushes of the compressor: a live run sends a batch each 50 ms."""


def known_packets(directory: Path) -> list[Packet]:
    """The packets of the capture."""
    found: list[Packet] = []
    with opened([str(known_capture.make(directory / "known.k8st"))]) as capture:
        runner.replay(capture, PacketCollector(found.append), replay_request({}), StopRequest())
    return found


def stream(packets: list[Packet], count: int) -> bytes:
    """The stream of one node."""
    writer, encoder = FrameWriter(compresses=True), PacketEncoder()
    pieces = [PREAMBLE, writer.frame(FrameKind.HELLO, to_bytes(encode(Hello(node="n"))))]
    for number in range(count):
        packet = packets[number % len(packets)]
        ends = Endpoints(packet.endpoints.src, 1024 + number * 7 % 60000, packet.endpoints.dst, packet.endpoints.dport)
        changed = evolve(
            packet, time=packet.time + number * 100_003, number=number, endpoints=ends, seq=number * 7919 % (1 << 32)
        )
        pieces += [writer.frame(*frame) for frame in encoder.frames(changed)]
        if number % BATCH_PACKETS == BATCH_PACKETS - 1:
            pieces += [writer.frame(FrameKind.BATCH, to_bytes(encode(BatchEnd(number)))), writer.flush()]
    pieces += [writer.frame(FrameKind.END, to_bytes(encode(End()))), writer.flush()]
    return b"".join(pieces)


def client(nodes: int, path: str) -> None:
    """Runs the client, and prints what it cost."""
    commands = [NodeCommand(f"node-{number}", ["cat", path]) for number in range(nodes)]
    with open(os.devnull, "w") as out:
        before = resource.getrusage(resource.RUSAGE_SELF)
        run = ClusterRun(commands, OneLineOutput(out, sys.stderr), SingleViews())
        totals = run.run(StopRequest())
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert not totals.failed, totals.failed
    memory = {"mib": after.ru_maxrss / 1024, "began": before.ru_maxrss / 1024}
    print(json.dumps({"wire": totals.wire_bytes, "seconds": seconds, **memory}))


def main() -> None:
    nodes, count = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (200, 1000)
    with tempfile.TemporaryDirectory() as scratch:
        packets = known_packets(Path(scratch))
        began = time.process_time()
        data = stream(packets, count)
        encoding = time.process_time() - began
        path = Path(scratch, "stream")
        path.write_bytes(data)
        done = subprocess.run(
            [sys.executable, __file__, "client", str(nodes), str(path)], capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout)
    total = nodes * count
    print(
        f"nodes={nodes} packets={total} bytes_per_packet={found['wire'] / total:.0f}"
        f" client_us_per_packet={1e6 * found['seconds'] / total:.0f} client_mib={found['mib']:.0f}"
        f" (before the run {found['began']:.0f}) agent_us_per_packet={1e6 * encoding / count:.0f}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(int(sys.argv[2]), sys.argv[3])
    else:
        main()
