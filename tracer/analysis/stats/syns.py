# SPDX-License-Identifier: Apache-2.0
"""Counts what listeners did with SYNs, and why SYNs were dropped."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.result_table import ResultTable
from tracer.analysis.stats._counter import KeyCounter, titled
from tracer.model.hop import HandshakeHop, SocketHop
from tracer.model.packet import Outcome, Packet

SHOWN = 20


class HandshakeStatistic:
    def __init__(self) -> None:
        self._listeners: KeyCounter[tuple[str, str, str]] = KeyCounter()
        self._causes: KeyCounter[tuple[str, str]] = KeyCounter()

    def feed(self, packet: Packet) -> None:
        shake = packet.handshake
        if packet.tcp_flags != "SYN":
            return
        if shake:
            done = {True: "answered", False: "dropped", None: "not known"}[shake.accepted]
            socket = next((h.socket for h in reversed(packet.hops) if isinstance(h, SocketHop)), None)
            who = f"{socket.command} (pid {socket.pid})" if socket and socket.pid else "process not found"
            netns = next((h.netns for h in reversed(packet.hops) if isinstance(h, HandshakeHop)), "")
            self._listeners.add((netns, who, done))
        if packet.outcome not in (Outcome.DELIVERED, Outcome.FORWARDED, Outcome.SENT):
            reason = packet.drop.reason or packet.drop.function if packet.drop else ""
            self._causes.add((packet.verdict, reason))

    def tables(self) -> Iterator[ResultTable]:
        rows: list[tuple[object, ...]] = [(count, *what) for what, count in self._listeners.most(SHOWN)]
        yield ResultTable(titled("SYNs at their listeners", self._listeners), ("SYNs", "namespace", "listener", "done"), rows)
        rows = [(count, *why) for why, count in self._causes.most(SHOWN)]
        yield ResultTable(titled("SYNs that did not get through", self._causes), ("SYNs", "why", "drop reason"), rows)


STATISTIC = HandshakeStatistic
