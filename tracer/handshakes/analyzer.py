# SPDX-License-Identifier: Apache-2.0
"""Watches a run's packets and gives each SYN its one verdict, in the order in which they are settled."""

from __future__ import annotations

from collections import Counter

from tracer.handshakes.causes import cause_of
from tracer.handshakes.correlator import HandshakeCorrelator
from tracer.handshakes.counter_check import CounterCheck
from tracer.handshakes.snat_clients import SnatClients
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.handshake import ConnectionAttempt, HandshakeVerdict
from tracer.model.packet import Packet
from tracer.node.namespace_view import NamespaceInspector


class HandshakeAnalyzer:
    """Those of one run. wall_offset: what to add to CLOCK_MONOTONIC to get ns since the epoch. partial: see Attempt. by_cause:
    how many of each."""

    def __init__(self, inspector: NamespaceInspector | None = None, wall_offset: int = 0, partial: bool = False) -> None:
        self._spaces = inspector or NamespaceInspector()
        self._offset = wall_offset
        self._attempts = HandshakeCorrelator(self._read, partial)
        self._reconcile = CounterCheck(self._spaces)
        self._behind = SnatClients()
        self._told: list[HandshakeVerdict] = []
        self._number = 0
        self.by_cause: Counter[str] = Counter()

    def feed(self, packet: Packet) -> None:
        """Takes a packet that is over, with its owners."""
        if packet.protocol == "TCP" or packet.protocol.startswith("ICMP"):
            self._reconcile.feed(packet)
            self._behind.feed(packet)
            self._attempts.feed(packet)

    def add_loss(self, now: int, unexplained: bool = False) -> None:
        """Packets were lost by now, or left unexplained: the answer to an open SYN may be among them."""
        self._attempts.add_loss(now, unexplained)

    def expire(self, now: int) -> list[HandshakeVerdict]:
        """The verdicts that can be told by now (ns, CLOCK_MONOTONIC)."""
        self._attempts.expire(now)
        return self._take()

    def flush(self) -> list[HandshakeVerdict]:
        """The verdicts of all SYNs that are still open; the run is over."""
        self._attempts.flush()
        return self._take()

    @property
    def early(self) -> int:
        """Verdicts that had to be told before their time, for want of room."""
        return self._attempts.early

    def differences(self) -> list[CounterMismatch]:
        """What the kernel counted, and what this run explains of it."""
        return self._reconcile.differences()

    def _take(self) -> list[HandshakeVerdict]:
        told, self._told = self._told, []
        return told

    def _read(self, attempt: ConnectionAttempt) -> None:
        attempt.clients = self._behind.clients(attempt.syn)
        cause = cause_of(attempt, self._spaces)
        self._number += 1
        self.by_cause[cause.name] += 1
        answers = [p.hops[0].time for p in (*attempt.synacks, *attempt.resets, *attempt.errors) if p.hops]
        after = max(0, min(answers) - attempt.began) if answers else 0
        syn = attempt.syn
        self._told.append(
            HandshakeVerdict(
                self._number, attempt.began + self._offset, attempt.asked, attempt.reached, syn.netns, cause, attempt.again,
                after, attempt,
            )
        )  # fmt: skip
