# SPDX-License-Identifier: Apache-2.0
"""Formats a packet that several nodes saw: one header, then a section for each node.

    14:03:22.118  TCP 10.244.1.7:40812 -> 10.96.0.10:80  SYN  60 B  node cali12ab  NEW
                  on node-a
        +0.01 ms  PREROUTING  DNAT         10.96.0.10:80 -> 10.244.2.8:8080
              =>  forwarded to flannel.1
                  on node-b  +0.41 ms +-0.08 ms
        +0.02 ms              socket       LISTEN, nginx (pid 4242)
              =>  SYN answered by pid 4242 nginx

The time of a section is that from the packet's first hop to its arrival at this node; the times of hops count from there.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, JoinLink
from tracer.packets.shared_packet import hop_time
from tracer.render._format import count, relative
from tracer.render._packet import MARGIN, PacketLines
from tracer.render._style import Styler, plain

_REASONS = {
    JoinKey.HEADER: "equal headers, told apart by their times",
    JoinKey.PAYLOAD: "equal datagrams, told apart by their times",
    JoinKey.RANGE: "its bytes are a part of the other's",
    JoinKey.SEQUENCE: "same initial sequence number, other addresses",
}


def joined_lines(joined: JoinedPacket, lines: PacketLines, style: Styler) -> Iterator[str]:
    """Yields the lines of a packet."""
    first = joined.views[0].packet
    yield lines.header(first)
    yield from lines.ends(first)
    for at, view in enumerate(joined.views):
        remark = "  ".join(part for part in (delay(joined, at), _why(joined, at)) if part)
        text = style("place", plain(f"on {view.node}")) + (f"  {style('quiet', remark)}" if remark else "")
        yield style.fold(" " * MARGIN + text, MARGIN + 4)
        yield from lines.hops(view.packet)
        yield lines.end(view.packet)
    for doubt in doubts(joined):
        yield style.fold(" " * MARGIN + style("doubt", plain(doubt)), MARGIN + 4)


def delay(joined: JoinedPacket, at: int) -> str:
    """The time from the packet's first hop to its arrival at a node, with its error; "" = the first node."""
    total = error = 0
    while link := _link_to(joined, at):
        if link.delay is None:
            return "clocks not compared"
        assert link.earlier is not None
        total, error, at = total + link.delay + _inside(joined, link.earlier), error + link.error, link.earlier
    return f"{relative(total)} +-{error / 1e6:.2f} ms" if at == 0 and error else relative(total) if total else ""


def _inside(joined: JoinedPacket, at: int) -> int:
    """The time that a packet spent at a node, ns."""
    packet = joined.views[at].packet
    return hop_time(packet, len(packet.hops) - 1) - hop_time(packet, 0) if packet.hops else 0


def _link_to(joined: JoinedPacket, at: int) -> JoinLink | None:
    return next((link for link in joined.links if link.later == at and link.earlier is not None), None)


def _why(joined: JoinedPacket, at: int) -> str:
    """Why a view is taken as this packet, if that was concluded."""
    link = _link_to(joined, at)
    if link is None or link.certainty is not Certainty.DERIVED:
        return ""
    before = [view.node for view in joined.views[:at]]
    if link.key is JoinKey.HEADER and len(before) == len(set(before)) and len(joined.views) > 2:
        return "(derived: header as on the other nodes)"
    return f"(derived: {_REASONS[link.key]})"


def doubts(joined: JoinedPacket) -> Iterator[str]:
    """Yields what is not certain about the packet's way, a sentence each."""
    for link in joined.links:
        if link.certainty is not Certainty.AMBIGUOUS:
            continue
        found, more = count(link.candidates, "packet"), ""
        if link.candidates == 1:
            more = ", but another equal one may exist, or may have been lost"
        if link.later is None and link.earlier is not None:
            yield f"ambiguous: {found} elsewhere can be the one that left {joined.views[link.earlier].node}{more}"
        elif link.later is not None:
            yield f"ambiguous: {found} elsewhere can be the one that arrived at {joined.views[link.later].node}{more}"
    if not joined.complete:
        yield "incomplete: there were too many packets to wait for its views on other nodes"
