# SPDX-License-Identifier: Apache-2.0
"""Simulates many nodes: each is a small program that writes the stream of an agent. Measures the client.

    PYTHONPATH=. python3 bench/cluster_nodes.py [NODES] [PACKETS of each node]

Packets are those of a capture with known answers, each with a port, a time and a sequence number of its own, and each node with
addresses of its own. All nodes together see PACKETS_PER_SECOND: an agent flushes its stream each 50 ms, so that more nodes mean
fewer packets in a piece, and more bytes for each. The client joins packets, looks for findings between nodes, and prints one
line a packet. The nodes wait for no credit: the client reads as fast as it can, a little of each node in turn.

Prints one line: the client's memory, its CPU time for each packet, bytes that the API server passes on for each packet, bytes
of an idle node in a second, and the CPU time of an agent that encodes a packet.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support import known_capture
from tracer.analysis.collector import PacketCollector
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.cluster import cluster_run
from tracer.cluster.cluster_run import ClusterRun, NodeCommand
from tracer.cluster.join_horizon import RecordedHorizon
from tracer.cluster.recorded_clock import RecordedClock
from tracer.cluster_findings import ClusterFindings
from tracer.cluster_findings.cluster_context import ClusterContext
from tracer.commands.read import replay_request
from tracer.joining.packet_joiner import PacketJoiner
from tracer.joining.traced_nodes import TracedNodes
from tracer.kube.store import ObjectStore
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.frames import FrameWriter
from tracer.protocol.limits import PREAMBLE
from tracer.protocol.messages import BatchEnd, Begin, End, FrameKind, Hello, PacketClock
from tracer.protocol.templates import PacketEncoder
from tracer.protocol.tree_codec import encode, to_bytes
from tracer.render.oneline import OneLineOutput
from tracer.util.frozen import evolve

PACKETS_PER_SECOND = 4_000
"""Packets of all nodes together, in the time of their clocks."""
SLOT_NS = 50_000_000
"""Time between two batches of an agent with packets, ns."""
IDLE_SLOTS = 10
"""Batches without packets for which an agent sends no end of a batch: it sends one each 0.5 s at least."""
READ_BYTES = 4096
"""Bytes that the client reads of one node in a turn, so that no node is far ahead of the others."""
ENVELOPE_BYTES = 27
"""Bytes around each piece of a stream on its way through the API server: a channel, a WebSocket header, a TLS record. Counted,
not measured."""


def known_packets(directory: Path) -> list[Packet]:
    """The packets of the capture."""
    found: list[Packet] = []
    with opened([str(known_capture.make(directory / "known.k8st"))]) as capture:
        runner.replay(capture, PacketCollector(found.append), replay_request({}), StopRequest())
    return found


@dataclass(frozen=True)
class Stream:
    """The stream of one node. pieces: number of its flushes."""

    data: bytes
    pieces: int


def stream(packets: list[Packet], count: int, node: int, step: int) -> Stream:
    """Makes the stream of a node.

    Args:
        packets: What its packets are made from.
        count: Number of its packets; 0 = it is idle.
        node: Its number.
        step: Time between two of its packets, ns; of an idle node its whole time.
    """
    writer, encoder = FrameWriter(compresses=True), PacketEncoder()
    began = packets[0].time
    head = (
        (FrameKind.HELLO, Hello(node="n", is_replay=True)),
        (FrameKind.CLOCK, PacketClock(0)),
        (FrameKind.BEGIN, Begin()),
    )
    pieces = [PREAMBLE, *(writer.frame(kind, to_bytes(encode(content))) for kind, content in head)]
    source, flushes, number = f"10.{node >> 8}.{node & 255}.1", 0, 0
    for slot in range(1, (count * step if count else step) // SLOT_NS + 2):
        now, before = began + slot * SLOT_NS, number
        while number < count and number * step < slot * SLOT_NS:
            packet = packets[number % len(packets)]
            ends = Endpoints(source, 1024 + number * 7 % 60000, packet.endpoints.dst, packet.endpoints.dport)
            seq = (number * 7919 + node) % (1 << 32)
            changed = evolve(packet, time=began + number * step, number=number, endpoints=ends, seq=seq)
            pieces += [writer.frame(*frame) for frame in encoder.frames(changed)]
            number += 1
        if number > before or slot % IDLE_SLOTS == 0:
            pieces += [writer.frame(FrameKind.BATCH, to_bytes(encode(BatchEnd(now)))), writer.flush()]
            flushes += 1
    pieces += [writer.frame(FrameKind.SUMMARY, to_bytes(encode(RunSummary(packets=count))))]
    pieces += [writer.frame(FrameKind.END, to_bytes(encode(End()))), writer.flush()]
    return Stream(b"".join(pieces), flushes + 1)


def client(directory: str) -> None:
    """Runs the client for all streams of a directory, and prints what it cost."""
    cluster_run.READ_BYTES = READ_BYTES
    clock = RecordedClock(0, 50_000, 1)
    commands = [NodeCommand(path.name, ["cat", str(path)], clock) for path in sorted(Path(directory).iterdir())]
    nodes = TracedNodes(ObjectStore())
    findings = ClusterFindings(ClusterContext(nodes, lambda node, packet, ends: False))
    with open(os.devnull, "w") as out:
        before = resource.getrusage(resource.RUSAGE_SELF)
        horizon = RecordedHorizon(each.node for each in commands)
        run = ClusterRun(commands, OneLineOutput(out, out), PacketJoiner(), horizon=horizon, findings=findings)
        totals = run.run(StopRequest())
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert not totals.failed, totals.failed
    memory = {"mib": after.ru_maxrss / 1024, "began": before.ru_maxrss / 1024}
    print(json.dumps({"wire": totals.wire_bytes, "seconds": seconds, "packets": totals.summary.packets, **memory}))


def main() -> None:
    nodes, count = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (200, 500)
    step = 1_000_000_000 * nodes // PACKETS_PER_SECOND
    with tempfile.TemporaryDirectory() as scratch:
        packets = known_packets(Path(scratch))
        streams = Path(scratch, "streams")
        streams.mkdir()
        pieces, encoding = 0, time.process_time()
        for node in range(nodes):
            made = stream(packets, count, node, step)
            pieces += made.pieces
            (streams / f"node-{node:03}").write_bytes(made.data)
        encoding = time.process_time() - encoding
        idle_seconds = 60
        idle = stream(packets, 0, 0, idle_seconds * 1_000_000_000)
        done = subprocess.run([sys.executable, __file__, "client", str(streams)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    total = nodes * count
    assert found["packets"] == total
    passed = found["wire"] + pieces * ENVELOPE_BYTES
    quiet = (len(idle.data) + idle.pieces * ENVELOPE_BYTES) / idle_seconds
    print(
        f"nodes={nodes} packets={total} client_mib={found['mib']:.0f} (before the run {found['began']:.0f})"
        f" client_us_per_packet={1e6 * found['seconds'] / total:.0f} api_bytes_per_packet={passed / total:.0f}"
        f" (of the stream {found['wire'] / total:.0f}) idle_bytes_per_s={quiet:.0f}"
        f" agent_us_per_packet={1e6 * encoding / total:.0f}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2])
    else:
        main()
