# SPDX-License-Identifier: Apache-2.0
"""One verdict for each SYN that several nodes saw, each of which has a verdict of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracer.analysis.top.row import NOT_KNOWN
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.util.lru_dict import LruDict

MOST_WAITING = 20_000
"""Number of SYNs that wait for the verdicts of all nodes that saw them."""
WAIT_NS = 5_000_000_000
"""Longest time from the first verdict on a SYN to the last one, ns: a node decides a second after the SYN."""
NO_ANSWER = "no answer"
"""Cause of a SYN that was sent on: what became of it is known elsewhere."""


class SynCount(NamedTuple):
    """A SYN that can be counted: the verdict on it, and the SYN."""

    verdict: HandshakeVerdict
    joined: JoinedPacket


class _WaitingSyn:
    """A SYN of several nodes."""

    def __init__(self, joined: JoinedPacket) -> None:
        self.joined, self.is_counted = joined, False
        self.verdicts: dict[tuple[str, int], HandshakeVerdict] = {}

    @property
    def is_complete(self) -> bool:
        return len(self.verdicts) == len({_key(view) for view in self.joined.views})


class JoinedSyns:
    """The SYNs of a run on several nodes that wait for verdicts.

    A packet comes here before the verdicts on it: a node sends them in this order, and they are shown in it.
    """

    def __init__(self) -> None:
        self._waiting: LruDict[tuple[str, int], _WaitingSyn] = LruDict(
            MOST_WAITING, "SYNs that wait for the verdicts of all nodes", lambda key, syn: self._settle(syn)
        )
        self._begun: dict[_WaitingSyn, int] = {}
        """Those that have a verdict, with the time of the first one, ns; the oldest comes first."""
        self._settled: list[SynCount] = []

    def packet(self, joined: JoinedPacket) -> None:
        """Takes a packet. Only a SYN with several views waits for verdicts."""
        if len(joined.views) > 1 and joined.views[0].packet.tcp_flags == "SYN":
            syn = _WaitingSyn(joined)
            for view in joined.views:
                self._waiting[_key(view)] = syn

    def verdict(self, node: str, verdict: HandshakeVerdict, now: int) -> None:
        """Takes the verdict of a node on a SYN. now: ns, CLOCK_MONOTONIC."""
        if verdict.attempt is None:
            return
        view = NodeView(node, verdict.attempt.syn)
        syn = self._waiting.get(_key(view))
        if syn is None:
            self._settled.append(SynCount(verdict, JoinedPacket((view,))))
            return
        self._begun.setdefault(syn, now)
        syn.verdicts[_key(view)] = verdict
        if syn.is_complete:
            self._settle(syn)

    def take(self, now: int) -> Iterator[SynCount]:
        """Yields the SYNs that can be counted. now: ns, CLOCK_MONOTONIC."""
        while self._begun and (syn := next(iter(self._begun))) and self._begun[syn] + WAIT_NS <= now:
            self._settle(syn)
        settled, self._settled = self._settled, []
        yield from settled

    def close(self) -> Iterator[SynCount]:
        """Yields all SYNs that have a verdict: no further one comes."""
        for syn in list(self._begun):
            self._settle(syn)
        return self.take(0)

    def _settle(self, syn: _WaitingSyn) -> None:
        """Lets a SYN be counted, once."""
        for view in syn.joined.views:
            self._waiting.pop(_key(view), None)
        self._begun.pop(syn, None)
        if syn.verdicts and not syn.is_counted:
            syn.is_counted = True
            in_order = [found for view in syn.joined.views if (found := syn.verdicts.get(_key(view)))]
            self._settled.append(SynCount(chosen(in_order), syn.joined))


def _key(view: NodeView) -> tuple[str, int]:
    return view.node, view.packet.number


def chosen(verdicts: Sequence[HandshakeVerdict]) -> HandshakeVerdict:
    """The verdict that counts. verdicts: Those of the nodes, in the order in which the SYN passed them.

    If the first node saw the answer, the SYN was answered. Else the last node that knows why it was not says it. That a SYN was
    sent on without an answer, or that nothing is known, says less than any other verdict.
    """
    first = verdicts[0]
    if first.cause.good:
        return first
    failed = (each for each in reversed(verdicts) if not each.cause.good and each.cause.name not in (NO_ANSWER, NOT_KNOWN))
    known = (each for each in verdicts if each.cause.name != NOT_KNOWN)
    return next(failed, None) or next(known, first)
