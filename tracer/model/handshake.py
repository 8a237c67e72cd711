# SPDX-License-Identifier: Apache-2.0
"""Connection attempts: a SYN with its answers, its cause, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import HandshakeHop, RewriteHop, SocketHop, alike, alike_of, places_of
from tracer.model.namespace_name import Netns, in_netns
from tracer.model.other_host import for_another_host
from tracer.model.packet import Packet


def last_ends(packet: Packet) -> Endpoints:
    """The packet's endpoints after the last observed rewrite."""
    for at in reversed(places_of(packet.hops, RewriteHop)):
        if not alike(packet.hops)[at].clone and isinstance(own := packet.hops[at], RewriteHop):
            return own.nat.after
    return packet.endpoints


@dataclass(frozen=True)
class Cause:
    """Why a SYN ended as it did.

    Attributes:
        name: One or two words, the same for all SYNs with this cause.
        text: The full description.
        evidence: How the cause is known.
        good: The SYN reached its destination and was answered.
    """

    name: str
    text: str
    evidence: Evidence = Evidence.OBSERVED
    good: bool = False


@dataclass
class ConnectionAttempt:
    """One SYN and the packets that answered it.

    Attributes:
        syn: The SYN.
        began: Time of the SYN, ns, CLOCK_MONOTONIC.
        again: Number of earlier SYNs of the same connection with the same sequence number.
        clients: Number of clients seen with the source address that SNAT gave this one; 0 = its own address, or not known.
        synacks: SYN-ACKs, oldest first.
        acks: The client's last ACKs of the handshake, oldest first.
        resets: Resets of either side, oldest first.
        errors: ICMP errors, oldest first.
        doubtful: Packets were lost or not awaited while the attempt was open, so a missing answer proves nothing.
        unexplained: The answers were captured, but the run ended before it explained them.
        limited: There were too many attempts or answers: this one was closed early, or answers to it were not kept.
        partial: The run only wrote events that end a packet, and packets that open a connection (--drops-only). The
            client's last ACK is then only seen where a listener of this machine receives it.
        one_sided: The filter selects packets of one direction: an answer that was not seen proves nothing.
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
    limited: bool = False
    partial: bool = False
    one_sided: bool = False

    @property
    def asked(self) -> Endpoints:
        return self.syn.endpoints

    @property
    def reached(self) -> Endpoints:
        """The SYN's endpoints after the last observed rewrite."""
        return last_ends(self.syn)

    @property
    def place(self) -> Netns:
        """The namespace where the client's last ACK made the connection.

        Without such an ACK: the last namespace of the SYN in which it was not a copy for another host.
        """
        made = self._accepted
        last = alike_of(made.hops, HandshakeHop)[-1] if made else None
        own = (h for h in reversed(alike(self.syn.hops)) if h.netns and not h.clone and not for_another_host(h))
        return last.netns if last else next((h.netns for h in own), self.syn.netns)

    @property
    def where(self) -> str:
        """ " in pod-a"; "" for the node itself."""
        return in_netns(self.place)

    @property
    def _accepted(self) -> Packet | None:
        """The ACK that made the connection; None = it was not seen."""
        shakes = ((packet, packet.handshake) for packet in self.acks)
        return next((packet for packet, shake in shakes if shake and shake.stage == "ACK" and shake.accepted), None)

    @property
    def process(self) -> str:
        """The listener's process: "http-proxy (pid 219)"; "a listener" if the process was not found."""
        of_syn = (h.socket for h in reversed(alike(self.syn.hops)) if isinstance(h, SocketHop))
        made = self._accepted
        own = chain(of_syn, (h.socket for h in reversed(alike_of(made.hops, SocketHop) if made else ())))
        found = next((socket for socket in own if socket.pid), None)
        return f"{found.command} (pid {found.pid})" if found else "a listener"


@dataclass(frozen=True)
class HandshakeVerdict:
    """The verdict on one SYN: one line of output.

    Attributes:
        number: Running number of the verdict, from 1.
        time: Time of the SYN, ns since the epoch.
        asked: Endpoints of the SYN as the client sent it.
        reached: Endpoints after the last rewrite.
        netns: The namespace where the SYN was first seen.
        cause: Why it ended as it did.
        again: Number of earlier SYNs of the same connection with the same sequence number.
        after: Time from the SYN to its answer, ns; 0 = no answer seen.
        attempt: The attempt itself.
    """

    number: int
    time: int
    asked: Endpoints
    reached: Endpoints
    netns: Netns
    cause: Cause
    again: int = 0
    after: int = 0
    attempt: ConnectionAttempt | None = field(default=None, compare=False, repr=False)
