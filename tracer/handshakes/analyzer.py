# SPDX-License-Identifier: Apache-2.0
"""Takes the packets of a run and gives each SYN one verdict, in the order in which the verdicts become final."""

from __future__ import annotations

from collections import Counter

from tracer.handshakes.causes import cause_of
from tracer.handshakes.correlator import HandshakeCorrelator
from tracer.handshakes.counter_check import CounterCheck, explained_by
from tracer.handshakes.snat_clients import SnatClients, find_snat
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.handshake import ConnectionAttempt, HandshakeVerdict
from tracer.model.packet import Packet
from tracer.node.namespace_questions import NamespaceInspector
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import SharedPacket, hop_time


class HandshakeAnalyzer:
    """The SYN verdicts of one run.

    Args:
        inspector: answers questions about namespaces.
        wall_offset: ns to add to CLOCK_MONOTONIC to get ns since the epoch.
        partial: see ConnectionAttempt.
        one_sided: see ConnectionAttempt.

    Attributes:
        by_cause: number of verdicts by cause.
    """

    def __init__(
        self,
        inspector: NamespaceInspector | None = None,
        wall_offset: int = 0,
        partial: bool = False,
        one_sided: bool = False,
    ) -> None:
        self._inspector = inspector or NamespaceInspector()
        self._offset = wall_offset
        self._correlator = HandshakeCorrelator(self._judge, partial, one_sided)
        self._counter_check = CounterCheck(self._inspector)
        self._snat_clients = SnatClients()
        self._is_counted = PathMemo(lambda packet: any(explained_by(packet)) or find_snat(packet) is not None)
        self._verdicts: list[HandshakeVerdict] = []
        self._number = 0
        self.by_cause: Counter[str] = Counter()

    def feed(self, packet: Packet) -> None:
        """Takes a closed packet, with its owners."""
        if packet.protocol == "TCP" or packet.protocol.startswith("ICMP"):
            self._counter_check.feed(packet)
            self._snat_clients.feed(packet)
            self._correlator.feed(packet)

    def repeat(self, packet: SharedPacket) -> bool:
        """Takes a packet on a shared path. Returns whether it was taken: an ICMP error has to be whole."""
        protocol = packet.way.sample.protocol
        if protocol == "TCP":
            if self._is_counted.of(packet):
                self._counter_check.feed(packet)
                self._snat_clients.feed(packet)
            self._correlator.repeat(packet)
        return not protocol.startswith("ICMP")

    def add_loss(self, now: int, unexplained: bool = False) -> None:
        """Notes that packets were lost or left unexplained up to `now`: the answer to an open SYN may be among them."""
        self._correlator.add_loss(now, unexplained)

    def expire(self, now: int) -> list[HandshakeVerdict]:
        """The verdicts that are final at `now` (ns, CLOCK_MONOTONIC)."""
        self._correlator.expire(now)
        return self._take()

    def flush(self) -> list[HandshakeVerdict]:
        """The verdicts of all SYNs that are still open at the end of the run."""
        self._correlator.flush()
        return self._take()

    @property
    def early(self) -> int:
        """Number of verdicts that were given too early, because too many attempts were open."""
        return self._correlator.early

    def differences(self) -> list[CounterMismatch]:
        """The kernel's counters, compared with the packets of this run."""
        return self._counter_check.differences()

    def _take(self) -> list[HandshakeVerdict]:
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    def _judge(self, attempt: ConnectionAttempt) -> None:
        attempt.clients = self._snat_clients.clients(attempt.syn)
        cause = cause_of(attempt, self._inspector)
        self._number += 1
        self.by_cause[cause.name] += 1
        answers = [hop_time(p, 0) for p in (*attempt.synacks, *attempt.resets, *attempt.errors) if p.hops]
        after = max(0, min(answers) - attempt.began) if answers else 0
        syn = attempt.syn
        self._verdicts.append(
            HandshakeVerdict(
                self._number, attempt.began + self._offset, attempt.asked, attempt.reached, syn.netns, cause, attempt.again,
                after, attempt,
            )
        )  # fmt: skip
