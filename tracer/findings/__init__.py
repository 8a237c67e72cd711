# SPDX-License-Identifier: Apache-2.0
"""Findings: a problem with its evidence. Each finding is one file of this package, found by its file name.

A file has `find(packet, context)`, which returns a Finding or None. A finding that rests on the verdict of a SYN has
`find_syn(verdict, context)` instead. This module adds the name, the times and the number of packets. Packets with the same key
have the same cause and make one finding. A new file needs a test tests/unit/findings/test_NAME.py, a page
docs/findings/NAME.md and a case in tests/kernel/cures.

A file that asks questions about the node declares them as ASKS (tracer/node/node_questions.py) and asks them by `context.ask`.
A recording without explanation asks the questions of all files ahead. In a replay an answer may be NotAsked: then the finding
omits the statement that rests on it, or is not made.

`find` is not called again for packets on the path of a packet in which it found nothing and asked nothing. So it must not count
packets that it finds nothing in, and must not depend on a packet's times, lengths, sequence numbers, or on a port that a client
chose.

Must not know: how packets are caught or shown, other findings.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cache
from typing import NamedTuple, TypeVar

from tracer.findings.context import FindingContext, Questions
from tracer.findings.found import FoundFindings
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Outcome, Packet
from tracer.packets.shared_packet import SharedPacket
from tracer.packets.shared_path import SharedPath, shared_hops
from tracer.util.lru_dict import LruDict
from tracer.util.questions import Answer, Journal, Question
from tracer.util.registry import Registry

T = TypeVar("T")
Finder = Callable[[Packet, FindingContext], Finding | None]
SynFinder = Callable[[HandshakeVerdict, FindingContext], Finding | None]
Again = Callable[[Finding], None]

_HELPERS = ("context", "found", "proofs")
_FINDERS: Registry[Finder] = Registry(__name__, "find", _HELPERS, instead=("find_syn",))
_SYN_FINDERS: Registry[SynFinder] = Registry(__name__, "find_syn", _HELPERS, instead=("find",))

MOST_WAITING = 4096
"""Maximum number of dropped TCP segments without a finding that wait for the verdict of their SYN."""


@cache
def finders() -> tuple[tuple[str, Finder], ...]:
    """Returns (file name, function) of all findings from packets."""
    return _FINDERS.entries()


@cache
def syn_finders() -> tuple[tuple[str, SynFinder], ...]:
    """Returns (file name, function) of all findings from SYN verdicts."""
    return _SYN_FINDERS.entries()


def declared_questions() -> dict[str, Questions]:
    """Returns the questions about the node that each finding declares, by its file name."""
    none: Questions = ()
    return _FINDERS.values("ASKS", none)


class _LookedAt(NamedTuple):
    """What looking at a packet of a path showed.

    Attributes:
        version: Version of the cluster.
        lookups: Number of look-ups in the CNI cache by the other findings, which had nothing and asked nothing.
        looking: The findings that look at each packet of the path: they found something, or asked about the node.
    """

    version: Hashable
    lookups: int
    looking: tuple[tuple[str, Finder], ...]


class Findings:
    """The findings of one run.

    Attributes:
        drops_without: Number of dropped packets that no finding explains.
    """

    def __init__(self, context: FindingContext | None = None) -> None:
        context = context or FindingContext()
        self._context, self._asked = replace(context, journal=self._counted(context.journal)), 0
        self._contexts = {name: self._context.restricted(questions) for name, questions in declared_questions().items()}
        self._found = FoundFindings()
        self.drops_without = 0
        self._waiting: LruDict[int, None] = LruDict(MOST_WAITING, "dropped segments without a finding")

    @property
    def all(self) -> list[Finding]:
        """All findings: certain ones first, then in the order in which they were found."""
        return self._found.all

    def look(self, packet: Packet, again: Again | None = None) -> list[Finding]:
        """Processes a packet with owners; returns the findings that have become certain.

        Args:
            packet: The packet.
            again: Called with each finding that was certain before and that this packet shows again.
        """
        hops = shared_hops(packet)
        earlier = self._earlier(hops.path) if hops else None
        if earlier:
            found = [(name, find(packet, self._contexts[name])) for name, find in earlier.looking]
            self._count(packet, found)
            return self._join(found, packet, again) if found else []
        cluster, found, looking, lookups = self._context.cluster, [], [], 0
        version = cluster.version
        for name, find in finders():
            asked, before = self._asked, cluster.sandboxes.lookups
            finding = find(packet, self._contexts[name])
            found.append((name, finding))
            if finding or asked != self._asked:
                looking.append((name, find))
            else:
                lookups += cluster.sandboxes.lookups - before
        if hops and version == cluster.version:
            hops.path.kept[self] = _LookedAt(version, lookups, tuple(looking))
        self._count(packet, found)
        return self._join(found, packet, again)

    def repeats_nothing(self, packet: SharedPacket) -> bool:
        """Whether nothing is found in a packet, because no finding has to look at packets on its path again."""
        earlier = self._looked_at(packet.way.path)
        return earlier is not None and not earlier.looking and self._context.cluster.sandboxes.skip(earlier.lookups)

    def _count(self, packet: Packet, found: Iterable[tuple[str, Finding | None]]) -> None:
        """Counts a dropped packet that has no finding. The verdict of its SYN may still give it one."""
        if packet.outcome is Outcome.DROPPED and not any(finding for _, finding in found):
            self.drops_without += 1
            if packet.tcp_flags:
                self._waiting[packet.number] = None

    def _earlier(self, path: SharedPath) -> _LookedAt | None:
        """What looking at an earlier packet of this path showed; None = all findings look at the next one."""
        earlier = self._looked_at(path)
        return earlier if earlier and self._context.cluster.sandboxes.skip(earlier.lookups) else None

    def _looked_at(self, path: SharedPath) -> _LookedAt | None:
        """What looking at an earlier packet of this path showed, if that may still be so.

        Findings depend on the path, on the objects of the cluster, and on connections that have a finding already.
        """
        earlier = path.kept.get(self)
        if not isinstance(earlier, _LookedAt) or len(self._context.reported):
            return None
        return earlier if earlier.version == self._context.cluster.version else None

    def _counted(self, journal: Journal) -> Journal:
        """The same journal; counts the questions."""

        def ask(question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
            self._asked += 1
            return journal(question, ask, default, requests)

        return ask

    def look_syn(self, verdict: HandshakeVerdict, again: Again | None = None) -> list[Finding]:
        """Processes a SYN's verdict; returns the findings that have become certain. again: as in `look`."""
        if not verdict.attempt:
            return []
        found = [(name, finding) for name, find in syn_finders() if (finding := find(verdict, self._contexts[name]))]
        for packet in (verdict.attempt.syn, *verdict.attempt.acks) if found else ():
            if packet.number in self._waiting:
                del self._waiting[packet.number]
                self.drops_without -= 1
        return self._join(found, verdict.attempt.syn, again)

    def _join(self, found: Iterable[tuple[str, Finding | None]], packet: Packet, again: Again | None) -> list[Finding]:
        added = (self._found.add(name, finding, packet, again) for name, finding in found if finding)
        return [finding for finding in added if finding]
