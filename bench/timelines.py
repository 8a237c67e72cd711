# SPDX-License-Identifier: Apache-2.0
"""The cost of open connections for `--follow`: memory and time for 100,000 connections and for several times as many.

    python -m bench.timelines [--connections 10000,100000,400000]

Each connection is a handshake through a NodePort's DNAT and MASQUERADE, and stays open: three packets, made here, three events
of conntrack, the SYN's verdict. All of it goes to verdicts, timelines and text as in a run. Each number of connections runs in
a separate process, so that its memory is measured alone. Figures go to docs/performance.md.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.support.ctnetlink import ADDED, CHANGED, FakeConntrack, message
from tracer.connections.conntrack_events import Datagram
from tracer.connections.tracker import ConnectionTracker
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.endpoints import Endpoints
from tracer.model.hop import Handshake, HandshakeHop, HookHop, Hop, Nat, NatHop, Socket, SocketHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Packet
from tracer.model.summary import RunSummary
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.packets.outcome import classify
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.render.text import TextOutput

A_SECOND = 5000
"""Connections opened per second of the packets' clock."""
TURN = 250
"""Connections between two calls of expire(): 20 calls per second."""
SECOND, MS = 1_000_000_000, 1_000_000
SERVER, POD, GATEWAY = ("192.168.56.10", 30285), ("10.244.0.11", 8080), "10.244.0.1"
LISTENER = Socket(48213, "LISTEN", 4242, "nginx")


class NoSpaces(NamespaceReader):
    """Reads nothing from this machine's namespaces."""

    def names(self) -> list[Netns]:
        return []

    def setting(self, name: str, setting: str, kept_seconds: float = 0) -> str:
        return ""


class Nowhere(io.StringIO):
    """Counts the characters written, and keeps none."""

    size = 0

    def write(self, text: str) -> int:
        self.size += len(text)
        return len(text)


def handshake(n: int) -> tuple[list[Packet], list[Datagram]]:
    """The n-th connection: SYN, SYN-ACK, ACK, and the events of conntrack."""
    began = n * SECOND // A_SECOND
    client, port = f"10.{100 + (n >> 16 & 127)}.{n >> 8 & 255}.{n & 255}", 1024 + n % 60000
    outside, half = Endpoints(client, port, *SERVER), Endpoints(client, port, *POD)
    inside = Endpoints(GATEWAY, 1024 + n * 7 % 60000, *POD)
    packets = []
    for at, flags, back in ((0, "SYN", False), (1, "SYN ACK", True), (2, "ACK", False)):
        time = began + at * MS
        ends = [outside, half, inside] if not back else [e.reversed for e in (inside, half, outside)]
        first, second = ("DNAT", "MASQUERADE") if not back else ("reverse MASQUERADE", "reverse DNAT")
        ifaces = ("eth0", "cni0") if not back else ("cni0", "eth0")
        hops: list[Hop] = [
            HookHop(time, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface=ifaces[0]),
            NatHop(time + 1, HOST, Hook.PREROUTING, nat=Nat(first, ends[0], ends[1])),
            NatHop(time + 2, HOST, Hook.POSTROUTING, nat=Nat(second, ends[1], ends[2])),
            HookHop(time + 3, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, out_iface=ifaces[1]),
        ]
        if not back:
            shake = Handshake(flags, True, 0, 128, 1)
            hops.append(SocketHop(time + 4, Netns("pod-a"), socket=LISTENER))
            hops.append(HandshakeHop(time + 5, Netns("pod-a"), handshake=shake))
        flow = Flow(outside, inside.reversed, "ESTABLISHED" if at else "NEW", back, 0, HOST)
        seq, ack = (n + (at > 0), (n + 1) * (at > 0)) if not back else (n, n + 1)
        made = Packet(3 * n + at, time, HOST, ifaces[0], "IPv4", "TCP", ends[0], flags, 60, seq, flow, tuple(hops), ack=ack)
        verdict, outcome = classify(made)
        made = replace(made, verdict=verdict, outcome=outcome)
        packets.append(made)
    # SYN_SENT, SYN_RECV, ESTABLISHED
    events = [
        (began + at * MS, message(kind, flags, state=at + 1, orig=outside, zone=0))
        for at, (kind, flags) in enumerate((ADDED, CHANGED, CHANGED))
    ]
    return packets, events


def measure(count: int) -> dict[str, float]:
    """Follows `count` connections that stay open."""
    connections, listener, nowhere = ConnectionTracker(), FakeConntrack(), Nowhere()
    output, totals = TextOutput(nowhere, io.StringIO()), RunSummary()
    before, began = memory(), time.process_time()
    making = most = 0.0
    handshakes = HandshakeAnalyzer(NamespaceInspector(NoSpaces()))
    with closing(ConnectionStage(handshakes, connections, conntrack=listener)) as following:
        for n in range(count):
            at = time.process_time()
            packets, events = handshake(n)
            making += time.process_time() - at
            listener.waiting += events
            for packet in packets:
                following.feed(packet, output)
            if n % TURN == TURN - 1:
                following.end_batch(n * SECOND // A_SECOND + SECOND // 5, output)
            if n % 10_000 == 9999:
                most = max(most, memory())
        for later in range(1, 200):
            following.end_batch(count * SECOND // A_SECOND + later * SECOND // 10, output)
        settled = memory()
        open_, unreported = len(connections), len(connections._pending)
        following.flush(totals, output)
    seconds = time.process_time() - began - making
    return {
        "connections": count, "cpu_seconds": round(seconds, 1), "connections_a_second": round(count / seconds),
        "memory_mb": round(max(most, settled) - before), "idle_mb": round(settled - before), "kept": open_,
        "unreported": unreported, "bytes_each": round((settled - before) * (1 << 20) / open_),
        "aged_out": totals.timelines.get("aged out", 0), "verdicts": sum(totals.causes.values()),
        "text_mb": round(nowhere.size / 1e6),
    }  # fmt: skip


def memory() -> float:
    """Resident memory of this process, MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", default="10000,100000,400000")
    parser.add_argument("--one", type=int, help="for the inner processes")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one)), flush=True)
        return 0
    for count in given.connections.split(","):
        subprocess.run([sys.executable, "-m", "bench.timelines", "--one", count], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
