# SPDX-License-Identifier: Apache-2.0
"""The nouns of SYN verdicts: an attempt to connect, its cause, and the line that tells it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.model.evidence import Evidence
from tracer.model.other_host import for_another_host
from tracer.model.packet import Endpoints, Hop, Packet


@dataclass(frozen=True)
class Cause:
    """Why a SYN ended as it did. name: in a word or two, the same for all SYNs of that cause. text: the whole of it.

    good: the SYN got where it should, and was answered.
    """

    name: str
    text: str
    evidence: Evidence = Evidence.OBSERVED
    good: bool = False


@dataclass
class ConnectionAttempt:
    """One SYN, and what came of it.

    again: SYNs of the same connection and sequence number before it. clients: how many were seen to share the source address
    that a SNAT gave it, 0 = it has its own. synacks, acks, resets, errors: packets that answered it, oldest first: SYN-ACKs,
    the client's last ACK, resets of either side, ICMP errors. doubtful: packets were lost while it was open, so that none was
    seen proves nothing; unexplained: they are there, and the run ended before it explained them. partial: the run wrote only
    what ends packets, and packets that open connections (--drops-only), so the client's last ACK is seen where a listener of
    this machine gets it, and nowhere else.
    """

    syn: Packet
    began: int
    again: int = 0
    clients: int = 0
    synacks: list[Packet] = field(default_factory=list)
    acks: list[Packet] = field(default_factory=list)
    resets: list[Packet] = field(default_factory=list)
    errors: list[Packet] = field(default_factory=list)
    doubtful: bool = False
    unexplained: bool = False
    partial: bool = False

    @property
    def asked(self) -> Endpoints:
        return self.syn.endpoints

    @property
    def reached(self) -> Endpoints:
        """Its ends after the last rewrite that was seen."""
        return next((h.nat.after for h in reversed(self.syn.hops) if h.nat and not h.clone), self.syn.endpoints)

    @property
    def place(self) -> str:
        """The namespace where the client's last ACK made the connection; else the one that the SYN was last seen in, of those
        that it was for."""
        last = next((h for h in self._made if h.handshake), None)
        own = (h for h in reversed(self.syn.hops) if h.netns and not h.clone and not for_another_host(h.drop))
        return last.netns if last else next((h.netns for h in own), self.syn.netns)

    @property
    def where(self) -> str:
        """ " in pod-a"; nothing for the node itself."""
        return f" in {self.place}" if self.place not in ("", "node") else ""

    @property
    def _made(self) -> list[Hop]:
        """The hops of the last ACK that made the connection; none where that was not seen."""
        made = [p for p in self.acks if p.handshake and p.handshake.stage == "ACK" and p.handshake.accepted]
        return [h for h in reversed(made[0].hops) if not h.clone] if made else []

    @property
    def process(self) -> str:
        """The listener's process: "http-proxy (pid 219)", or "a listener" when it was not found."""
        own = (h.socket for h in (*reversed(self.syn.hops), *self._made) if h.socket)
        found = next((socket for socket in own if socket.pid), None)
        return f"{found.command} (pid {found.pid})" if found else "a listener"


@dataclass(frozen=True)
class HandshakeVerdict:
    """The one line of a SYN. time: of the SYN, ns since the epoch; after: ns from then to its answer, 0 = none seen."""

    number: int
    time: int
    asked: Endpoints
    reached: Endpoints
    netns: str
    cause: Cause
    again: int = 0
    after: int = 0
    attempt: ConnectionAttempt | None = field(default=None, compare=False, repr=False)
