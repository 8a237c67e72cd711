# SPDX-License-Identifier: Apache-2.0
"""Findings that only the views of several nodes together show. Each finding is one file of this package, named in a table here.

A file of DEPARTURES has `find(departure, context)`, which is asked about each packet that left a node for another traced one
and was joined with no packet there. It is asked when all that can have come of the packet has come. It returns a Finding,
Undecided with the reason when something that is missing could contradict it, or None.

A file of VIEWS has `find(view, context)`, which is asked about each view of a packet at once, and returns a Finding of that
node, or None.

A file of SUSPICIONS has `suspect(joined, at, context)`, which is asked about each view of a packet at once, notes what it
shows, and returns a Suspicion or None. Its `find(suspicion, context)` is asked when all has come that could contradict, and
returns a Finding of that node, or None.

A file of ENDS has `find(context)`, which is asked when the run ends, and yields findings, each with a packet that shows it.

A new file needs a test tests/unit/cluster_findings/test_NAME.py and a page docs/findings/NAME.md.

Must not know: how packets are caught, transported or shown; other findings.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from tracer.cluster_findings import (
    asymmetric_return,
    local_policy_no_endpoint,
    lost_between_nodes,
    nodeport_on_some_nodes,
    overlay_mtu,
    service_rules_differ,
)
from tracer.cluster_findings.cluster_context import ClusterContext, NodeWay, Suspicion, UnansweredDeparture, Undecided
from tracer.cluster_findings.seen_packets import KEPT_NS
from tracer.findings.found import FoundFindings
from tracer.joining import wire_headers
from tracer.joining.pair_clocks import UNKNOWN_ERROR_NS
from tracer.joining.traced_nodes import LONGEST_OPEN_NS, NOT_SENT
from tracer.model.finding import Finding
from tracer.model.joined_packet import Certainty, JoinedPacket, NodeView
from tracer.model.packet import Packet
from tracer.util.evictions import evictions

DepartureFinder = Callable[[UnansweredDeparture, ClusterContext], Finding | Undecided | None]
DEPARTURES: tuple[tuple[str, DepartureFinder], ...] = (("lost_between_nodes", lost_between_nodes.find),)
"""The findings about packets that came nowhere, by the names of their files."""
ViewFinder = Callable[[NodeView, ClusterContext], Finding | None]
VIEWS: tuple[tuple[str, ViewFinder], ...] = (
    ("nodeport_on_some_nodes", nodeport_on_some_nodes.find),
    ("overlay_mtu", overlay_mtu.find),
)
"""The findings about single views, and what other nodes did with packets like them."""
Suspecter = Callable[[JoinedPacket, int, ClusterContext], Suspicion | None]
SuspicionFinder = Callable[[Suspicion, ClusterContext], Finding | None]
SUSPICIONS: tuple[tuple[str, Suspecter, SuspicionFinder], ...] = (
    ("service_rules_differ", service_rules_differ.suspect, service_rules_differ.find),
    ("local_policy_no_endpoint", local_policy_no_endpoint.suspect, local_policy_no_endpoint.find),
    ("asymmetric_return", asymmetric_return.suspect, asymmetric_return.find),
)
"""The findings that a view begins, and that what comes after it confirms or not."""
EndFinder = Callable[[ClusterContext], Iterable[tuple[Packet, Finding]]]
ENDS: tuple[tuple[str, EndFinder], ...] = (("overlay_mtu", overlay_mtu.find_at_end),)
"""The findings that rest on the whole run."""

SETTLED_NS = LONGEST_OPEN_NS + 1_000_000_000
"""Time after its departure when all that can have come of a packet was sent, ns."""
SLACK_NS = 100_000_000
"""A node must have lost nothing for this time before the departure, ns."""
LATE_NS = 30_000_000_000
"""Time after its departure when a packet waits no longer for a node that is slower than the others, ns."""
ON_ITS_WAY_NS = 4_000_000_000
"""Longest time of a packet until it comes, or until its node gives it up, ns: a node waits 3 s for a neighbour's address. If
the nodes have ended their runs, and have explained all that they saw, this is enough."""
MOST_WAITING = 1 << 16
"""Most departures that wait for this time."""
MOST_SUSPICIONS = 1 << 14
"""Most suspicions that wait for this time."""

MANY_EQUAL = "several packets can be the one that came"
GIVEN_UP = "too many packets waited"
INCOMPLETE = "events of the packet were lost"


class ClusterFindings:
    """The findings of a run on several nodes.

    Args:
        context: What findings can use.

    Attributes:
        undecided: Number of packets for which nothing can be said, by the reason.
    """

    def __init__(self, context: ClusterContext) -> None:
        self.context = context
        self.undecided: Counter[str] = Counter()
        self._found = FoundFindings()
        self._waiting: deque[UnansweredDeparture] = deque()
        self._suspicions: deque[tuple[str, SuspicionFinder, Suspicion]] = deque()
        self._new: list[tuple[str, Finding]] = []

    @property
    def all(self) -> list[Finding]:
        """All findings, the certain ones first."""
        return self._found.all

    def look(self, joined: JoinedPacket) -> None:
        """Takes a packet of which no further view comes."""
        self.context.note(joined)
        departed: dict[int, bool] = {}
        for link in joined.links:
            if link.earlier is None:
                continue
            is_certain = link.certainty is not Certainty.AMBIGUOUS
            departed[link.earlier] = departed.get(link.earlier, False) or is_certain
            if is_certain and link.later is not None:
                self._note_way(joined.views[link.earlier], joined.views[link.later])
        for view in joined.views:
            for name, find in VIEWS:
                if (finding := find(view, self.context)) and (new := self._found.add(name, finding, view.packet)):
                    self._new.append((view.node, new))
        self._suspect(joined)
        for at, view in enumerate(joined.views):
            if not departed.get(at) and (departure := self._departure(view)):
                if at in departed:
                    self.undecided[MANY_EQUAL] += 1
                elif not joined.complete:
                    self.undecided[GIVEN_UP] += 1
                elif not view.packet.complete:
                    self.undecided[INCOMPLETE] += 1
                else:
                    self._wait(departure)

    def _suspect(self, joined: JoinedPacket) -> None:
        for name, suspect, find in SUSPICIONS:
            for at in range(len(joined.views)):
                if suspicion := suspect(joined, at, self.context):
                    self._suspicions.append((name, find, suspicion))
                    if len(self._suspicions) > MOST_SUSPICIONS:
                        self._suspicions.popleft()
                        evictions.add("packets that may show a finding")

    def _wait(self, departure: UnansweredDeparture) -> None:
        self._waiting.append(departure)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.undecided[GIVEN_UP] += 1
            evictions.add("packets that seem to be lost")

    def take(self, horizon: int) -> list[tuple[str, Finding]]:
        """Findings that have become certain, each with the node that the packet left.

        Args:
            horizon: All that the nodes saw up to this time has been given to `look`, ns, of the reference clock.
        """
        settled: list[UnansweredDeparture] = []
        later: list[UnansweredDeparture] = []
        while self._waiting and self._waiting[0].time + SETTLED_NS <= horizon:
            departure = self._waiting.popleft()
            (later if self._is_late(departure, departure.nodes, horizon) else settled).append(departure)
        self._waiting.extendleft(reversed(later))
        found = [*self._read_new(), *self._found_in(settled, SETTLED_NS), *self._confirmed(horizon)]
        self.context.seen.forget(horizon - KEPT_NS)
        self.context.nodes.forget_losses(horizon - KEPT_NS)
        return found

    def close(self) -> list[tuple[str, Finding]]:
        """The same, when nothing comes any more."""
        settled = list(self._waiting)
        self._waiting.clear()
        found = [*self._read_new(), *self._found_in(settled, ON_ITS_WAY_NS), *self._confirmed(None)]
        for name, find in ENDS:
            for packet, finding in find(self.context):
                self._found.add(name, finding, packet)
        return found

    def _read_new(self) -> list[tuple[str, Finding]]:
        new, self._new = self._new, []
        return new

    def _found_in(self, settled: Iterable[UnansweredDeparture], waited: int) -> Iterable[tuple[str, Finding]]:
        for departure in settled:
            why = self._gap(departure, departure.nodes, waited)
            for name, find in DEPARTURES:
                finding = Undecided(why) if why else find(departure, self.context)
                if isinstance(finding, Undecided):
                    self.undecided[finding.why] += 1
                    continue
                if finding and finding.certain:
                    self.context.note_lost(departure)
                if finding and (new := self._found.add(name, finding, departure.packet)):
                    yield departure.node, new

    def _confirmed(self, horizon: int | None) -> Iterable[tuple[str, Finding]]:
        """The findings of suspicions for which all has come up to a time, ns; None = nothing comes any more."""
        later: list[tuple[str, SuspicionFinder, Suspicion]] = []
        while self._suspicions and (horizon is None or self._suspicions[0][2].time + SETTLED_NS <= horizon):
            waiting = name, find, suspicion = self._suspicions.popleft()
            if horizon is not None and self._is_late(suspicion, suspicion.watched, horizon):
                later.append(waiting)
            elif not self._gap(suspicion, suspicion.watched, ON_ITS_WAY_NS if horizon is None else SETTLED_NS):
                finding = find(suspicion, self.context)
                if finding and (new := self._found.add(name, finding, suspicion.view.packet)):
                    yield suspicion.view.node, new
        self._suspicions.extendleft(reversed(later))

    def _is_late(self, seen: UnansweredDeparture | Suspicion, watched: Sequence[str], horizon: int) -> bool:
        """Whether one of the nodes will soon say that it has sent all: what counts is the batch before its last one."""
        if horizon > seen.time + LATE_NS or self._gap(seen, watched, SETTLED_NS) != NOT_SENT:
            return False
        behind = (node for node in watched if self._gap_of(node, seen, SETTLED_NS) == NOT_SENT)
        return not any(map(self.context.nodes.has_ended, behind))

    def _gap(self, seen: UnansweredDeparture | Suspicion, watched: Sequence[str], waited: int) -> str:
        """Why nodes may not have shown something that came of a packet, a clause; "" = all was shown."""
        if watched and self.context.seen.forgotten >= _since(seen):
            return GIVEN_UP
        return next(filter(None, (self._gap_of(node, seen, waited) for node in watched)), "")

    def _gap_of(self, node: str, seen: UnansweredDeparture | Suspicion, waited: int) -> str:
        """The same of one of the nodes."""
        return self.context.nodes.gap(node, _since(seen), seen.time + ON_ITS_WAY_NS, seen.time + waited)

    def _note_way(self, earlier: NodeView, later: NodeView) -> None:
        left = wire_headers.headers_of(earlier.packet).departure
        if left and (owner := self.context.nodes.owner(left.endpoints.dst)):
            way = NodeWay(earlier.packet.family, earlier.node, left.iface, later.node, owner.is_pod)
            self.context.note_way(way, earlier.packet.length, left.time + earlier.shift)

    def _departure(self, view: NodeView) -> UnansweredDeparture | None:
        """The departure of a packet for another traced node; None = it stays, goes elsewhere, or its time is not known."""
        packet, nodes = view.packet, self.context.nodes
        left = wire_headers.departed_from_host(packet)
        if not left or packet.continues:
            return None
        owner = nodes.owner(left.endpoints.dst)
        if not owner or owner.node == view.node or not nodes.is_traced(owner.node):
            return None
        return UnansweredDeparture(view.node, packet, left, owner, left.time + view.shift, _error(view))


def _since(seen: UnansweredDeparture | Suspicion) -> int:
    """From when on the nodes must have shown everything, ns."""
    return seen.time - 2 * seen.error - SLACK_NS


def _error(view: NodeView) -> int:
    return view.error if view.offset is not None else UNKNOWN_ERROR_NS
