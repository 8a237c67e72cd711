# SPDX-License-Identifier: Apache-2.0
"""The rows of one interval of `top`, at most MOST_ROWS at a time. What has no row of its own any more is counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracer.analysis.durations import PathDurations
from tracer.analysis.top.dimensions import DIMENSIONS, UNKNOWN, RowKey
from tracer.analysis.top.row import Row, merged
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.model.loss import LEFT_OUT
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.render.base import LostEvents
from tracer.util.lru_dict import LruDict

MOST_ROWS = 400
"""Number of rows of an interval that are counted separately."""
NONE: Mapping[str, int] = {}


@dataclass(frozen=True)
class Losses:
    """What an interval lacks.

    Attributes:
        events: Lost events.
        shed: Packets of which nothing was recorded, because the ring buffer was nearly full.
        unexplained: Packets that were seen, but not explained before the end.
        not_sent: Packets and other results that another node did not send, because this client was too slow.
    """

    events: int = 0
    shed: int = 0
    unexplained: int = 0
    not_sent: int = 0

    def __add__(self, other: Losses) -> Losses:
        return Losses(
            self.events + other.events,
            self.shed + other.shed,
            self.unexplained + other.unexplained,
            self.not_sent + other.not_sent,
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self.events + self.shed + self.unexplained + self.not_sent


@dataclass(frozen=True)
class NodeLosses:
    """What an interval lacks of one node of several.

    Attributes:
        losses: What is missing.
        by_probe: Lost events by probe, and shed packets as `packet`.
    """

    losses: Losses
    by_probe: dict[str, int]


@dataclass(frozen=True)
class Interval:
    """One interval, finished.

    Attributes:
        dimension: What the rows stand for, a name in DIMENSIONS.
        began: Time of its first packet, ns since the epoch; 0 = it has no packet.
        seconds: Its length, s.
        rows: The rows by their text, in no order.
        rest: All further rows together.
        evicted: Number of evictions of rows into `rest`.
        losses: What is missing in it.
        lost_by_probe: Lost events by probe, and shed packets as `packet`.
        so_far: What is missing in all intervals up to this one.
        nodes: Number of nodes; 0 = a run on one node.
        by_node: What is missing in it, by the name of a node that lacks something; of a run on several nodes.
        each_once: Each packet once, where a packet of several nodes is in a row for each of them; None = each is in one row.
    """

    dimension: str
    began: int
    seconds: float
    rows: dict[str, Row]
    rest: Row = field(default_factory=Row)
    evicted: int = 0
    losses: Losses = field(default_factory=Losses)
    lost_by_probe: dict[str, int] = field(default_factory=dict)
    so_far: Losses = field(default_factory=Losses)
    nodes: int = 0
    by_node: dict[str, NodeLosses] = field(default_factory=dict)
    each_once: Row | None = None

    @cached_property
    def total(self) -> Row:
        """All packets, each once."""
        return self.each_once or merged([*self.rows.values(), self.rest])


class Measurement:
    """Keys and times of packets. It lives as long as the run: what packets on a shared path have in common is kept with it."""

    def __init__(self) -> None:
        self.durations = PathDurations()
        self.keys = {name: PathMemo(dimension.of_packet) for name, dimension in DIMENSIONS.items()}


class IntervalCounter:
    """Counts the packets of one interval.

    Args:
        dimension: What the rows stand for, a name in DIMENSIONS.
        measurement: Gives keys and times.
        node: Name of the node of a run on one node.
    """

    def __init__(self, dimension: str, measurement: Measurement, node: str = "") -> None:
        self.dimension = dimension
        self._kind, self._durations, self._keys = DIMENSIONS[dimension], measurement.durations, measurement.keys[dimension]
        self._node = RowKey(node or UNKNOWN)
        self._rest = Row()
        self._rows: LruDict[str, Row] = LruDict(MOST_ROWS, "rows of top", lambda key, row: self._rest.merge(row))
        self._each_once: Row | None = None
        self._lost: Counter[str] = Counter()
        self._lost_by_node: dict[str, Counter[str]] = {}
        self._not_sent: Counter[str] = Counter()
        self._began = 0

    # ---- a run on one node ----

    def packet(self, packet: Packet) -> None:
        """Counts a packet, unless the table is one of SYNs."""
        if self._kind.of_syn is None:
            self._add(self._row(self._key(packet)), packet)

    def syn(self, verdict: HandshakeVerdict) -> None:
        """Counts a SYN that has its cause."""
        syn = verdict.attempt.syn if verdict.attempt else None
        if self._kind.of_syn is not None:
            row = self._row(self._kind.of_syn(verdict))
            if syn:
                self._add(row, syn)
        elif syn:
            row = self._row(self._key(syn))
        else:
            row = self._rest
        row.add_syn(verdict)

    def _key(self, packet: Packet) -> RowKey:
        return self._node if self._kind.is_by_node else self._keys.of(packet)

    def _add(self, row: Row, packet: Packet) -> None:
        self._began = self._began or packet.time
        row.add(packet, list(self._durations.legs(packet)), self._durations.whole(packet))

    # ---- a run on several nodes ----

    def joined(self, joined: JoinedPacket) -> None:
        """Counts a packet of several nodes, unless the table is one of SYNs."""
        if self._kind.of_syn is not None:
            return
        if not self._kind.is_by_node:
            self._add_joined(self._row(self._joined_key(joined)), joined, joined.views)
            return
        self._add_joined(self._once(), joined, joined.views)
        for node in joined.nodes:
            self._add_joined(self._row(RowKey(node)), joined, [view for view in joined.views if view.node == node])

    def joined_syn(self, verdict: HandshakeVerdict, joined: JoinedPacket) -> None:
        """Counts a SYN of several nodes that has its cause. The rows of nodes have their own verdicts on it (`node_syn`)."""
        if self._kind.is_by_node:
            row = self._once()
        elif self._kind.of_syn is not None:
            row = self._row(self._kind.of_syn(verdict))
            self._add_joined(row, joined, joined.views)
        else:
            row = self._row(self._joined_key(joined))
        row.add_syn(verdict)

    def node_syn(self, node: str, verdict: HandshakeVerdict) -> None:
        """Counts a SYN of which a node has a verdict, in the row of the node."""
        if self._kind.is_by_node:
            self._row(RowKey(node)).add_syn(verdict)

    def _once(self) -> Row:
        """The row with each packet once, beside the rows of nodes."""
        if self._each_once is None:
            self._each_once = Row()
        return self._each_once

    def _joined_key(self, joined: JoinedPacket) -> RowKey:
        """The row of a packet: that of the first view that knows it."""
        keys = [self._keys.of(view.packet) for view in self._kind.order(joined)]
        return next(filter(self._kind.is_known, keys), keys[0])

    def _add_joined(self, row: Row, joined: JoinedPacket, views: Sequence[NodeView]) -> None:
        self._began = self._began or views[0].time
        row.add_joined(joined, views)
        for view in views:
            row.add_ways(view.node, self._durations.legs(view.packet))
            if (whole := self._durations.whole(view.packet)) is not None:
                row.whole.add(whole)

    # ---- what is missing ----

    def lost(self, loss: LostEvents, node: str = "") -> None:
        """Counts lost events, or shed packets. node: where; "" = the only node of the run."""
        self._lost[loss.probe] += loss.count
        if node:
            self._lost_by_node.setdefault(node, Counter())[loss.probe] += loss.count

    def not_sent(self, node: str, count: int) -> None:
        """Counts results that a node did not send."""
        self._not_sent[node] += count

    def close(
        self,
        seconds: float,
        before: Losses,
        unexplained: int = 0,
        nodes: int = 0,
        unexplained_by_node: Mapping[str, int] = NONE,
    ) -> Interval:
        """The finished interval.

        Args:
            seconds: Its length, s.
            before: What was missing before it.
            unexplained: Packets that were seen in it, but not explained.
            nodes: Number of nodes; 0 = a run on one node.
            unexplained_by_node: The same by node, of a run on several nodes.
        """
        losses = _losses(self._lost, unexplained, self._not_sent.total())
        rows, lost = dict(self._rows.items()), _counted(self._lost)
        by_node: dict[str, NodeLosses] = {}
        for node in {*self._lost_by_node, *self._not_sent, *unexplained_by_node}:
            found = self._lost_by_node.get(node, Counter())
            missing = _losses(found, unexplained_by_node.get(node, 0), self._not_sent[node])
            if missing.total:
                by_node[node] = NodeLosses(missing, _counted(found))
        return Interval(
            self.dimension,
            self._began,
            seconds,
            rows,
            self._rest,
            self._rows.evicted,
            losses,
            lost,
            before + losses,
            nodes,
            by_node,
            self._each_once,
        )

    def _row(self, key: RowKey) -> Row:
        row = self._rows.get(key.text)
        if row is None:
            row = self._rows[key.text] = Row()
        row.add_owner(key.owner)
        return row


def _losses(lost: Counter[str], unexplained: int, not_sent: int) -> Losses:
    shed = lost[LEFT_OUT]
    return Losses(lost.total() - shed, shed, unexplained, not_sent)


def _counted(lost: Counter[str]) -> dict[str, int]:
    return {probe: count for probe, count in lost.items() if count}
