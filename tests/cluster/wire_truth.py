# SPDX-License-Identifier: Apache-2.0
"""What the plugin printed, compared with the log of the wire: each packet once on each node, and lost where it was.

A packet on the wire is identified by its header (WireHead): addresses, ports, IP identification, sequence number, length. The
wire's log gives how often a node sent it, and how often the other one got it.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lab.wire import Fate, WireFrame

Line = Mapping[str, Any]
WIRE_INTERFACES = frozenset({"eth0", "flannel.1"})
"""The interfaces of a node by which packets leave it for another one, and arrive from it."""
NODE = "node"
"""The network namespace of these interfaces: a pod's own interface is called eth0, too."""
PROTOCOLS = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}
COPIES = {Fate.DROPPED: 0, Fate.DOUBLED: 2}


class WireHead(NamedTuple):
    """A packet's header on the wire."""

    proto: str
    src: str
    sport: int
    dst: str
    dport: int
    ip_id: int
    seq: int
    length: int


@dataclass
class WireCount:
    """Counts by (node, header): sent by the node to the wire, and come to the node from the wire."""

    sent: Counter[tuple[str, WireHead]] = field(default_factory=Counter)
    come: Counter[tuple[str, WireHead]] = field(default_factory=Counter)


def of_log(log: Iterable[WireFrame]) -> WireCount:
    """What the wire did."""
    found = WireCount()
    for each in log:
        head = head_of(each)
        found.sent[each.source, head] += 1
        found.come[each.target, head] += COPIES.get(each.fate, 1)
    found.come = +found.come
    return found


def head_of(frame: WireFrame) -> WireHead:
    """The header of a packet that the wire took."""
    key = frame.key
    return WireHead(PROTOCOLS.get(key.proto, ""), key.src, key.sport, key.dst, key.dport, key.ip_id, key.seq, key.length)


def arrival(view: Line) -> WireHead | None:
    """The header with which a packet came from the wire; None: it did not."""
    return _head(view, view) if view["netns"] == NODE and view.get("ifname") in WIRE_INTERFACES else None


def departure(view: Line) -> WireHead | None:
    """The header with which a packet left for the wire; None: it did not, or the run ended before it was seen to leave."""
    last: Line = {}
    for hop in view["hops"]:
        last = hop if "hook" in hop else last
    is_last_hook = last.get("hook") == "POSTROUTING" and last["netns"] == NODE
    if not is_last_hook or last.get("out_ifname") not in WIRE_INTERFACES or view["outcome"] == "dropped":
        return None
    return last_head(view)


def last_head(view: Line) -> WireHead:
    """The last header of a packet that was seen."""
    ends: Line = view
    for hop in view["hops"]:
        if "nat" in hop:
            ends = hop["nat"]["after"]
    return _head(view, ends)


def _head(view: Line, ends: Line) -> WireHead:
    return WireHead(
        view["proto"],
        ends["src"],
        ends.get("sport", 0),
        ends["dst"],
        ends.get("dport", 0),
        view.get("ip_id", 0),
        view.get("seq", 0),
        view["length"],
    )


def of_views(views: Iterable[Line]) -> WireCount:
    """What the nodes' views say. Each view has `node`."""
    found = WireCount()
    for view in views:
        if head := departure(view):
            found.sent[view["node"], head] += 1
        if head := arrival(view):
            found.come[view["node"], head] += 1
    return found


def differences(truth: Counter[tuple[str, WireHead]], seen: Counter[tuple[str, WireHead]], word: str) -> list[str]:
    """A line for each packet that was not seen as often as the wire had it."""
    return [
        f"{node}: {word} {truth[node, head]} times, seen {seen[node, head]} times: {head}"
        for node, head in sorted(truth.keys() | seen.keys())
        if truth[node, head] != seen[node, head]
    ]
