# SPDX-License-Identifier: Apache-2.0
"""Made views of packets on three nodes, with what really happened to each packet: the truth that joins are compared with.

`Packet.identity` is the number of the packet on the wire: views with the same number are one packet. All that makes joining
hard is in it: loss, duplicates and reordering on the way, retransmissions that equal the first segment, reused IP
identifications, equal datagrams in bursts, translation loops, packets that pass three nodes or the same node twice, merged or
divided segments, translations between the nodes, lost events, and clocks that are apart and drift.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tracer.model.endpoints import Endpoints
from tracer.model.hop import HookHop, Hop, Nat, NatHop
from tracer.model.joined_packet import NodeView
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet

EPOCH = 1_769_868_202_000_000_000
NODES = ("node-a", "node-b", "node-c")
MICRO, MILLI, SECOND = 1_000, 1_000_000, 1_000_000_000
INSIDE_NS = 30 * MICRO
"""Time that a packet spends in a node, ns."""
PING_ERROR_NS = 250 * MICRO
"""Largest error of a clock's offset, as pings measure it, ns."""
LOSS, DUPLICATED, DELAYED = 0.02, 0.004, 0.03
"""Shares of the packets that the network loses, duplicates and delays by up to 30 ms."""
QUIET_NS, LOSSY_NS, EVENTS_LOST = 6 * SECOND, 10 * MILLI, 0.3
"""Mean time between two periods in which a node loses events, their length, ns, and the share of views that are lost then."""


@dataclass(frozen=True)
class MadeView:
    """A view in the order in which a client gets it, or a report of lost events.

    Attributes:
        time: The true time, ns.
        node: The node.
        view: The view; None = the node may have lost events in the time of LOSSY_NS before.
    """

    time: int
    node: str
    view: NodeView | None


@dataclass
class Clock:
    """A node's clock, and what pings say about it.

    Attributes:
        apart: What it is ahead of the true time, ns.
        ppm: How much faster it is, parts per million.
        seen: Error of the measured offset, ns.
    """

    apart: int
    ppm: float
    seen: int

    def time(self, true: int) -> int:
        """Its time at a true time, ns."""
        return true + self.apart + int((true - EPOCH) * self.ppm / 1e6)

    def offset(self, true: int) -> int:
        """The measured offset at a true time, ns."""
        return true - self.time(true) + self.seen


@dataclass
class Header:
    """What is on the wire."""

    ends: Endpoints
    protocol: str = "TCP"
    flags: str = ""
    length: int = 52
    seq: int = 0
    ack: int = 0
    ident: int = 0
    raw: bytes = b""

    def through(self, ends: Endpoints) -> Header:
        """The same packet after a translation."""
        return Header(ends, self.protocol, self.flags, self.length, self.seq, self.ack, self.ident, self.raw)


@dataclass
class Counts:
    """What happened.

    Attributes:
        packets: Packets that were sent.
        crossings: Packets that left one node and arrived at another, each time; views of both are there.
        lost: Packets that the network lost between two nodes.
        views_lost: Views that a node lost.
    """

    packets: int = 0
    crossings: int = 0
    lost: int = 0
    views_lost: int = 0


_ARRIVED = (HookHop(0, HOST, Hook.PREROUTING, in_iface="eth0", verdict=Verdict.ACCEPT),)
_LEFT = HookHop(INSIDE_NS, HOST, Hook.POSTROUTING, out_iface="eth0", verdict=Verdict.ACCEPT)
_MADE = HookHop(0, HOST, Hook.OUTPUT, out_iface="eth0", verdict=Verdict.ACCEPT)


@dataclass
class MadeTraffic:
    """Makes views.

    Args:
        seed: Seed of all choices.
        rate: Packets a second.
        has_pings: The clocks' offsets were measured.

    Attributes:
        counts: What happened.
        arrived: When a packet last arrived at a node, ns, by the node, the packet's number, and its addresses there.
    """

    seed: int = 1
    rate: int = 20_000
    has_pings: bool = True
    counts: Counts = field(default_factory=Counts)
    arrived: dict[tuple[str, int, Endpoints], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._clocks = {
            node: Clock(apart, ppm, self._random.randint(-PING_ERROR_NS, PING_ERROR_NS))
            for node, apart, ppm in zip(NODES, (0, 3 * SECOND, -2 * SECOND), (0.0, 80.0, -45.0), strict=True)
        }
        if not self.has_pings:
            for clock, apart in zip(self._clocks.values(), (0, 40 * MILLI, -70 * MILLI), strict=True):
                clock.apart = apart
        self._waiting: list[tuple[int, int, MadeView]] = []
        self._later: list[tuple[int, int, Callable[[int], None]]] = []
        self._count = 0
        self._idents: dict[str, int] = {}
        self._lossy = dict.fromkeys(NODES, EPOCH + QUIET_NS)
        for node, until in self._lossy.items():
            self._push(MadeView(until, node, None))
        self._kinds: tuple[tuple[Callable[[int], None], int], ...] = (
            (self._tcp, 40), (self._service, 12), (self._three_nodes, 6), (self._routed, 4), (self._returning, 3),
            (self._loop, 2), (self._datagram, 12), (self._burst, 1), (self._sequence_numbers_only, 4), (self._divided, 3),
            (self._merged, 1), (self._answer_again, 3), (self._translated_between, 2), (self._same_sequence, 1),
            (self._outside, 4), (self._local, 2),
        )  # fmt: skip

    def views(self, packets: int) -> Iterator[MadeView]:
        """Yields the views of so many packets, in the order of the true times at which they end."""
        kinds, weights = zip(*self._kinds, strict=True)
        step = SECOND // self.rate
        time = EPOCH
        while self.counts.packets < packets:
            time += self._random.randrange(1, 2 * step)
            while self._later and self._later[0][0] <= time:
                when, _, make = heapq.heappop(self._later)
                make(when)
            self._random.choices(kinds, weights)[0](time)
            while self._waiting and self._waiting[0][0] <= time:
                yield heapq.heappop(self._waiting)[2]
        while self._waiting:
            yield heapq.heappop(self._waiting)[2]

    # ---- kinds of packets ----

    def _tcp(self, time: int) -> None:
        """A segment from a pod to a pod on another node."""
        a, b = self._two()
        header = self._segment(self._ends(a, b, self._random.randrange(64)))
        self._send(time, self._new(), header, a, b)

    def _service(self, time: int) -> None:
        """A client outside, a NodePort on one node, a pod on another, the answer on the same way."""
        a, b = self._two()
        port = self._random.randrange(1024, 65536)
        asked = Endpoints("192.0.2.9", port, self._address(a), 30080)
        inside = Endpoints(self._address(a), port, self._pod(b, 1), 8080)
        header = self._segment(asked)
        number = self._new()
        self._view(time, a, number, header, _ARRIVED, Outcome.FORWARDED, inside)
        for when in self._cross(time + INSIDE_NS):
            self._view(when, b, number, header.through(inside), _ARRIVED, Outcome.DELIVERED)
        answer = self._segment(inside.reversed)
        number = self._new()
        self._view(time + MILLI, b, number, answer, (), Outcome.SENT)
        for when in self._cross(time + MILLI + INSIDE_NS):
            self._view(when, a, number, answer, _ARRIVED, Outcome.FORWARDED, asked.reversed)

    def _three_nodes(self, time: int) -> None:
        """A translation on the second of three nodes."""
        a, b, c = self._shuffled()
        first = Endpoints(self._pod(a, 1), self._port(), self._address(b), 30080)
        second = Endpoints(self._address(b), first.sport, self._pod(c, 1), 8080)
        self._pass(time, self._new(), self._segment(first), [(a, first), (b, second), (c, None)])

    def _routed(self, time: int) -> None:
        """The second of three nodes forwards a packet as it is; IPv6 half of the time."""
        a, b, c = self._shuffled()
        ends = self._ends(a, c, self._random.randrange(64), self._random.random() < 0.5)
        self._pass(time, self._new(), self._segment(ends), [(a, ends), (b, ends), (c, None)])

    def _returning(self, time: int) -> None:
        """To another node and back again, as it is or translated."""
        a, b = self._two()
        ends = self._ends(a, a, self._random.randrange(64))
        back = ends if self._random.random() < 0.3 else Endpoints(self._address(b), self._port(), ends.dst, ends.dport)
        self._pass(time, self._new(), self._segment(ends), [(a, ends), (b, back), (a, None)])

    def _loop(self, time: int) -> None:
        """Two nodes translate a packet to each other, until they stop."""
        a, b = self._two()
        number, header = self._new(), None
        ways: list[tuple[str, Endpoints | None]] = []
        for turn in range(self._random.randrange(2, 7)):
            ends = Endpoints(self._address(a), 40000 + turn, self._address(b), 30080 + turn)
            header = header or self._segment(ends)
            ways.append(((a, b)[turn % 2], ends))
        assert header
        self._pass(time, number, header, [*ways, ((a, b)[len(ways) % 2], None)])

    def _datagram(self, time: int) -> None:
        """UDP with few ports and lengths: the identification is missing, or soon the same."""
        a, b = self._two()
        kind = self._random.randrange(3)
        ends = self._ends(a, b, self._random.randrange(200), kind == 2)
        ident = 0 if kind == 2 else self._random.randrange(1, 2048) * (kind == 1)
        raw = b""
        if kind == 0 and self._random.random() < 0.5:
            raw = bytes((0x45, *range(19), *range(8))) + self._random.randbytes(self._random.randrange(2, 20))
        header = Header(ends, "UDP", "", self._random.choice((70, 90, 1228)), ident=ident, raw=raw)
        self._send(time, self._new(), header, a, b)

    def _burst(self, time: int) -> None:
        """Equal datagrams at about the same time."""
        a, b = self._two()
        header = Header(self._ends(a, b, 7), "UDP", "", 1228)
        for n in range(self._random.choice((2, 2, 2, 3, 3, 4, 5, 5, 8, 150) if self.counts.packets % 3 else (2, 3))):
            self._send(time + n * self._random.choice((50 * MICRO, 2 * MILLI)), self._new(), header, a, b)

    def _sequence_numbers_only(self, time: int) -> None:
        """IPv6: acknowledgements that are equal, as after a lost segment."""
        a, b = self._two()
        header = self._segment(self._ends(a, b, self._random.randrange(32), True))
        header.length = 72
        for n in range(self._random.choice((1, 1, 2, 3))):
            self._send(time + n * self._random.choice((100 * MICRO, 40 * MILLI, 700 * MILLI)), self._new(), header, a, b)

    def _divided(self, time: int) -> None:
        """A long segment that the network card of the sender divides; a part of it is sent again."""
        a, b = self._two()
        is_ipv6 = self._random.random() < 0.3
        whole = self._segment(self._ends(a, b, self._random.randrange(64), is_ipv6))
        size, headers = 1400, 72 if is_ipv6 else 52
        parts = self._random.randrange(2, 12)
        whole.length = headers + parts * size
        self._idents[whole.ends.src] = self._idents.get(whole.ends.src, 0) + parts
        number = self._new()
        self._view(time, a, number, whole, (), Outcome.SENT)
        for part in self._parts(whole, parts, size, headers):
            for when in self._cross(time + INSIDE_NS):
                self._view(when, b, number, part, _ARRIVED, Outcome.DELIVERED)
        if self._random.random() < 0.3:
            at = self._random.randrange(parts)
            again = self._parts(whole, parts, size, headers)[at]
            again.ident = 0 if is_ipv6 else self._ident(whole.ends.src)
            self._later_at(
                time + self._random.choice((3 * MILLI, 210 * MILLI)), lambda when: self._send(when, self._new(), again, a, b)
            )

    def _merged(self, time: int) -> None:
        """Segments that the receiving node merges."""
        a, b = self._two()
        whole = self._segment(self._ends(a, b, self._random.randrange(64)))
        parts = self._random.randrange(2, 8)
        whole.length = 52 + parts * 1448
        self._idents[whole.ends.src] = self._idents.get(whole.ends.src, 0) + parts
        number = self._new()
        for n, part in enumerate(self._parts(whole, parts, 1448, 52)):
            self._view(time + n * 10 * MICRO, a, number, part, (), Outcome.SENT)
        for when in self._cross(time + parts * 10 * MICRO + INSIDE_NS):
            self._view(when, b, number, whole, _ARRIVED, Outcome.DELIVERED)

    def _answer_again(self, time: int) -> None:
        """A SYN ACK without an identification, which is sent again after a second, and after two more."""
        a, b = self._two()
        header = self._segment(self._ends(a, b, self._random.randrange(5000)), "SYN ACK")
        header.ident, header.length = 0, 60
        for after in (0, SECOND, 3 * SECOND)[: self._random.randrange(1, 4)]:
            self._later_at(time + after, lambda when: self._send(when, self._new(), header, a, b))

    def _translated_between(self, time: int) -> None:
        """A SYN by way of a load balancer outside of the nodes, which translates both ends."""
        a, b = self._two()
        header = self._segment(Endpoints(self._pod(a, 3), self._port(), "198.51.100.1", 443), "SYN")
        header.length = 60
        number = self._new()
        self._view(time, a, number, header, (), Outcome.SENT)
        for when in self._cross(time + INSIDE_NS):
            inside = Endpoints("203.0.113.7", self._port(), self._address(b), 30443)
            self._view(when, b, number, header.through(inside), _ARRIVED, Outcome.DELIVERED)

    def _same_sequence(self, time: int) -> None:
        """Two SYNs with one initial sequence number, of which one leaves a node and the other arrives at another."""
        a, b = self._two()
        left = self._segment(Endpoints(self._pod(a, 3), self._port(), "198.51.100.1", 443), "SYN")
        left.length = 60
        self._view(time, a, self._new(), left, (), Outcome.SENT)
        other = left.through(Endpoints("203.0.113.9", self._port(), self._address(b), 30444))
        other.ident = (left.ident + 1) % 65536
        self._view(time + MILLI, b, self._new(), other, _ARRIVED, Outcome.DELIVERED)

    def _outside(self, time: int) -> None:
        """A segment to a place that is not traced, or from there."""
        node = self._random.choice(NODES)
        ends = Endpoints(self._pod(node, 2), self._port(), "198.51.100.80", 443)
        if self._random.random() < 0.5:
            self._view(time, node, self._new(), self._segment(ends), (), Outcome.SENT)
        else:
            self._view(time, node, self._new(), self._segment(ends.reversed), _ARRIVED, Outcome.DELIVERED)

    def _local(self, time: int) -> None:
        """A packet that stays on its node."""
        node = self._random.choice(NODES)
        self._view(time, node, self._new(), self._segment(self._ends(node, node, 3)), (), Outcome.DELIVERED)

    # ---- what the kinds are made of ----

    def _send(self, time: int, number: int, header: Header, a: str, b: str) -> None:
        """A packet that one node makes and another delivers."""
        self._view(time, a, number, header, (), Outcome.SENT)
        for when in self._cross(time + INSIDE_NS):
            self._view(when, b, number, header, _ARRIVED, Outcome.DELIVERED)

    def _pass(self, time: int, number: int, header: Header, ways: list[tuple[str, Endpoints | None]]) -> None:
        """A packet that passes nodes, each of which gives it other addresses; the last one delivers it."""
        (node, ends), rest = ways[0], ways[1:]
        assert ends
        self._view(time, node, number, header, (), Outcome.SENT, None if ends == header.ends else ends)
        self._onwards(time + INSIDE_NS, number, header.through(ends), rest)

    def _onwards(self, time: int, number: int, header: Header, ways: list[tuple[str, Endpoints | None]]) -> None:
        (node, ends), rest = ways[0], ways[1:]
        for when in self._cross(time):
            if ends is None:
                self._view(when, node, number, header, _ARRIVED, Outcome.DELIVERED)
            else:
                after = None if ends == header.ends else ends
                self._view(when, node, number, header, _ARRIVED, Outcome.FORWARDED, after)
                self._onwards(when + INSIDE_NS, number, header.through(ends), rest)

    def _cross(self, time: int) -> list[int]:
        """The times at which a packet that left at a time arrives: none, one, or two."""
        chance = self._random.random()
        self.counts.crossings += 1
        if chance < LOSS:
            self.counts.lost += 1
            return []
        times = [time + self._random.randrange(40, 400) * MICRO]
        if chance > 1 - DUPLICATED:
            times.append(times[0] + self._random.randrange(1, 3000) * MICRO)
        if self._random.random() < DELAYED:
            times[0] += self._random.randrange(30 * MILLI)
        return times

    def _view(
        self,
        time: int,
        node: str,
        number: int,
        header: Header,
        hops: tuple[Hop, ...],
        outcome: Outcome,
        after: Endpoints | None = None,
    ) -> None:
        if hops:
            self.arrived[node, number, header.ends] = time
        if time > self._lossy[node]:
            self._lossy[node] = time + int(self._random.expovariate(1 / QUIET_NS)) + LOSSY_NS
            self._push(MadeView(self._lossy[node], node, None))
        if time > self._lossy[node] - LOSSY_NS and self._random.random() < EVENTS_LOST:
            self.counts.views_lost += 1
            return
        clock = self._clocks[node]
        made = hops or (_MADE,)
        if after:
            made = (*made, NatHop(0, HOST, Hook.POSTROUTING, nat=Nat("SNAT", header.ends, after)))
        if outcome in (Outcome.SENT, Outcome.FORWARDED):
            made = (*made, _LEFT)
        packet = Packet(
            number,
            clock.time(time),
            HOST,
            "eth0",
            "IPv6" if ":" in header.ends.src else "IPv4",
            header.protocol,
            header.ends,
            header.flags,
            header.length,
            header.seq,
            hops=made,
            outcome=outcome,
            ack=header.ack,
            raw=header.raw,
            ident=header.ident,
        )
        offset, error = (clock.offset(time), PING_ERROR_NS) if self.has_pings else (None, 0)
        self._push(MadeView(time + INSIDE_NS, node, NodeView(node, packet, offset, error)))

    def _push(self, made: MadeView) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (made.time, self._count, made))

    def _later_at(self, time: int, make: Callable[[int], None]) -> None:
        self._count += 1
        heapq.heappush(self._later, (time, self._count, make))

    def _parts(self, whole: Header, parts: int, size: int, headers: int) -> list[Header]:
        step, length = 0 if ":" in whole.ends.src else 1, headers + size
        places = [((whole.seq + n * size) % (1 << 32), (whole.ident + n * step) % 65536) for n in range(parts)]
        return [Header(whole.ends, "TCP", "ACK", length, seq, whole.ack, ident) for seq, ident in places]

    def _segment(self, ends: Endpoints, flags: str = "ACK") -> Header:
        ident = 0 if ":" in ends.src else self._ident(ends.src)
        length = self._random.choice((52, 52, 150, 1500))
        return Header(ends, "TCP", flags, length, self._random.getrandbits(32), self._random.getrandbits(32), ident)

    def _ident(self, src: str) -> int:
        """The next identification of a sender; it is never 0."""
        found = self._idents[src] = self._idents.get(src, 0) + 1
        return found % 65535 + 1

    def _new(self) -> int:
        self.counts.packets += 1
        return self.counts.packets

    def _port(self) -> int:
        return self._random.randrange(32768, 61000)

    def _shuffled(self) -> list[str]:
        return self._random.sample(NODES, 3)

    def _two(self) -> list[str]:
        return self._random.sample(NODES, 2)

    def _ends(self, a: str, b: str, n: int, is_ipv6: bool = False) -> Endpoints:
        if is_ipv6:
            return Endpoints(f"fd00:{NODES.index(a)}::1", 32768 + n, f"fd00:{NODES.index(b)}::2", 8080)
        return Endpoints(self._pod(a, 1), 32768 + n, self._pod(b, 2), 8080)

    @staticmethod
    def _pod(node: str, n: int) -> str:
        return f"10.244.{NODES.index(node)}.{n}"

    @staticmethod
    def _address(node: str) -> str:
        return f"192.168.56.{10 + NODES.index(node)}"
