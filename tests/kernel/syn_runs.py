# SPDX-License-Identifier: Apache-2.0
"""Traces one scene of SYNs; compares the verdict of each SYN with the kernel's counters and with tcpdump."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel import pcap
from tests.kernel.syn_scenes import Scene
from tests.kernel.watching import Watch
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.filter import Filter
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet

SYN_ONLY = "(tcp[tcpflags]&(tcp-syn|tcp-ack)==tcp-syn or (ip6 proto 6 and ip6[53]&18==2))"
"""tcpdump does not know the flags of TCP over IPv6."""


@dataclass
class Result:
    """The result of a scene. dumped: number of SYNs that tcpdump saw at the client. differences: counters that changed."""

    scene: Scene
    verdicts: list[HandshakeVerdict] = field(default_factory=list)
    differences: list[CounterMismatch] = field(default_factory=list)
    dumped: int = 0
    packets: list[Packet] = field(default_factory=list)
    lost: int = 0

    @property
    def causes(self) -> Counter[str]:
        return Counter(v.cause.name for v in self.verdicts)

    @property
    def explained(self) -> int:
        """Number of SYNs with the expected cause, or with one that comes with it."""
        return sum(n for name, n in self.causes.items() if name in (self.scene.cause, *self.scene.also))

    @property
    def errors(self) -> int:
        """Number of errors: SYNs with a wrong cause or without any, missing causes, counters that do not agree."""
        missing = max(0, self.scene.least - self.causes[self.scene.cause])
        wrong = len(self.verdicts) - self.explained
        return missing + wrong + abs(self.dumped - len(self.verdicts)) + sum(d.open for d in self.differences)

    @property
    def text(self) -> str:
        lines = [
            f"{self.scene.name}: {len(self.verdicts)} SYNs, tcpdump saw {self.dumped}"
            + f", {self.errors} OPEN" * bool(self.errors)
        ]
        for text, count in Counter(f"[{v.cause.name}, {v.cause.evidence}] {v.cause.text}" for v in self.verdicts).items():
            lines.append(f"    {count} x {text}")
        lines += [f"    {d.text}" for d in self.differences]
        if self.errors:
            lines += [f"    {p.tcp_flags} {p.endpoints} in {p.netns} => {p.verdict}" for p in self.packets]
            lines += [f"    {self.lost} events lost"] * bool(self.lost)
        return "\n".join(lines)


def run(watch: Watch, scene: Scene) -> Result:
    """Makes the scene while the tracer and tcpdump run."""
    result, view = Result(scene), ClusterView(ObjectStore(), CniCache())
    before = watch.lost
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        dump = Path(directory) / "client.pcap"
        with pcap.tcpdump(dump, "eth0", "client", f"{SYN_ONLY} and port {scene.port}"):
            syns = HandshakeAnalyzer()
            with watch(Filter(ports=(scene.port,))) as seen:
                stack.enter_context(scene.up())
        result.dumped = len(pcap.read(dump))
        for packet in (attribute(p, view) for p in seen.packets):
            syns.feed(packet)
            result.verdicts += syns.expire(packet.hops[-1].time)
        result.verdicts += syns.flush()
        result.differences = syns.differences()
    result.packets, result.lost = seen.packets, watch.lost - before
    return result
