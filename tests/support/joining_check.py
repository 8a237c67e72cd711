# SPDX-License-Identifier: Apache-2.0
"""Joins made views and compares the result with the truth: `python -m tests.support.joining_check PACKETS=2000000 SEED=1`.

The last line is `packets=… joined=… wrong=0 ambiguous=… lost=…`: packets that were made, joined pairs of views, pairs that
are not one packet, departures that more than one arrival can belong to, packets that the network lost. The status is 1 if a
pair is wrong.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.made_traffic import LOSSY_NS, MILLI, MadeTraffic, MadeView
from tracer.joining.packet_joiner import PacketJoiner
from tracer.model.joined_packet import Certainty, JoinedPacket

TAKE_NS, BEHIND_NS = 20 * MILLI, 5 * MILLI
"""How often packets are taken, and how far the horizon is behind the newest view, ns."""


@dataclass
class JoinResult:
    """What was joined.

    Attributes:
        packets: Packets that were made.
        views: Views of them.
        joined: Pairs of views.
        wrong: Pairs that are not one packet.
        ambiguous: Departures for which several arrivals come into question, or a lost view.
        lost: Packets that the network lost.
        most_waiting: Most views that waited.
        seconds: CPU time of the joiner alone, s.
    """

    packets: int = 0
    views: int = 0
    joined: int = 0
    wrong: int = 0
    ambiguous: int = 0
    lost: int = 0
    most_waiting: int = 0
    seconds: float = 0.0

    def add(self, found: JoinedPacket) -> None:
        """Counts a joined packet."""
        for link in found.links:
            if link.earlier is None or link.later is None:
                assert link.certainty is Certainty.AMBIGUOUS
                self.ambiguous += link.later is None
                continue
            self.joined += 1
            earlier, later = found.views[link.earlier], found.views[link.later]
            self.wrong += earlier.packet.identity != later.packet.identity

    @property
    def line(self) -> str:
        """The result in one line."""
        return f"packets={self.packets} joined={self.joined} wrong={self.wrong} ambiguous={self.ambiguous} lost={self.lost}"


def check(
    packets: int, seed: int = 1, rate: int = 20_000, has_pings: bool = True, joiner: PacketJoiner | None = None
) -> JoinResult:
    """Joins the views of so many made packets."""
    traffic, joiner, result = MadeTraffic(seed, rate, has_pings), joiner or PacketJoiner(), JoinResult()
    for made in in_chunks(traffic.views(packets)):
        began = time.process_time()
        for each in made:
            if each.view is None:
                joiner.note_loss(each.node, each.time - LOSSY_NS - MILLI, each.time + MILLI)
            else:
                joiner.feed(each.view)
                result.views += 1
        result.most_waiting = max(result.most_waiting, joiner.waiting)
        found = joiner.take(made[-1].time - BEHIND_NS)
        result.seconds += time.process_time() - began
        for packet in found:
            result.add(packet)
    for packet in joiner.close():
        result.add(packet)
    result.packets, result.lost = traffic.counts.packets, traffic.counts.lost
    return result


def in_chunks(views: Iterator[MadeView]) -> Iterator[list[MadeView]]:
    """The views, in the parts in which a client takes them."""
    chunk: list[MadeView] = []
    for each in views:
        if chunk and each.time - chunk[0].time > TAKE_NS:
            yield chunk
            chunk = []
        chunk.append(each)
    if chunk:
        yield chunk


def main(words: list[str]) -> int:
    """Runs the check with these words, as PACKETS=1000."""
    options = dict(word.split("=", 1) for word in words)
    result = check(int(options.get("PACKETS", "100000")), int(options.get("SEED", "1")), int(options.get("RATE", "20000")))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rate = f"{result.views / result.seconds:,.0f} a second of CPU time"
    print(f"{result.views} views, {rate}, {result.most_waiting} waiting at most,")
    print(f"{memory} MB of memory at most, with the maker of the packets")
    print(result.line)
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
