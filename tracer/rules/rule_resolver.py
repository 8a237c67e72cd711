# SPDX-License-Identifier: Apache-2.0
"""Joins packets and rules: the walk of each table run, and which rule a connection's translation came from.

Only the first packet of a connection is asked of the nat table; its later packets, and the replies, are rewritten by what
conntrack remembers. So the rule is remembered here by the connection's original tuple, zone and namespace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.events import table_trace
from tracer.events.record import HIT_DTYPE, HOOKS, Event, Flag, Kind
from tracer.events.table_trace import TableLookup, TableReplaced, TableTrace
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.rule import RuleTrace
from tracer.node import netns
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.nftables import reconstruct
from tracer.util.bounded import Bounded

CONNECTIONS_KEPT = 65536
PACKETS_KEPT = 65536
"""Packets under way of which it is kept what their tables did."""
MET_KEPT = 4096
"""Generations of nftables' rules that a recording asks for, until they have been read."""
DESTINATION_HOOKS = (HOOKS.index("PREROUTING"), HOOKS.index("OUTPUT"))
"""Where the nat table changes destinations; elsewhere it changes sources."""
TRANSLATIONS = frozenset({"dnat", "snat", "masquerade", "redirect", "netmap"})
NEW = 2
"""Of event.ct_info: no packet of this connection has left yet."""
BEFORE = RuleTrace(undecided="decided before tracing began")
LOST = RuleTrace(undecided="the packet that decided was not seen: it came before tracing began, or events were lost")
NO_HEADER = RuleTrace(undecided="the packet's header is not known: events were lost")
DECIDING = ("hook", "table", "chain", "nat", "nft", "steps", "ruleset", "ipvs", "any", LEFT_OUT, "capture")
"""How probes and kinds of events begin without which it may be missed that a new connection has taken an old one's place."""


@dataclass(frozen=True)
class _Translation:
    """A connection's translation on one side: by which packet, and its walk through the nat table.

    walk: None = no rules that are watched were asked, so something else translates here. time: when (ns, CLOCK_MONOTONIC). to:
    the address and port that it gave. era: how often events had been lost before.
    """

    packet: int
    trace: RuleTrace | None
    time: int
    to: tuple[bytes, int]
    era: int


class RuleResolver:
    """What rules did to packets. legacy, nft: None = this run cannot tell.

    replaced: told of replaced rules, with the time, what they are, and the thread that did it (0 = not known). given_up: of so
    many packets it was not kept what their tables did.
    """

    def __init__(self, legacy: TableGenerations | None = None, nft: reconstruct.RefreshedSnapshots | None = None) -> None:
        self._legacy, self._nft = legacy, nft
        self._noted: OrderedDict[int, dict[int, list[TableTrace]]] = OrderedDict()
        self.shed = 0
        self._runs: dict[reconstruct.RunKey, reconstruct.ChainRun] = {}
        self._whole = True
        self._connections: Bounded[object, _Translation] = Bounded(CONNECTIONS_KEPT)
        self._loss_count = 0
        self._replaced_at = 0
        self.replaced: Callable[[int, str, int], None] | None = None
        self._generations_met: Bounded[tuple[int, int], None] = Bounded(MET_KEPT)

    def feed(self, batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Takes out of a batch what is not an event; returns the events. To be called for every drain, also an empty one."""
        if self._nft:
            self._nft.refresh()
        events, rows, rulesets = table_trace.split(batch)
        if self._legacy:
            for packet, time, noted in table_trace.noted(rows):
                self._noted.setdefault(packet, {}).setdefault(time, []).append(noted)
            while len(self._noted) > PACKETS_KEPT:
                self._noted.popitem(last=False)
                self.shed += 1
            changes = list(table_trace.changes(rulesets))
            self._request_tables(self._legacy, events, changes)
            self._report(changes)
        return events

    def _report(self, changes: list[TableLookup | TableReplaced]) -> None:
        for change in changes:
            if isinstance(change, TableReplaced):
                self._replaced_at = max(self._replaced_at, change.time)
                if self.replaced:
                    self.replaced(change.time, change.table, change.thread)

    def nft_changed(self, at: int) -> None:
        """nftables' rules were seen to have changed. at: ns, CLOCK_MONOTONIC, when that was noticed."""
        self._replaced_at = max(self._replaced_at, at)
        if self.replaced:
            self.replaced(at, "nftables' rules (noticed within 0.1 s)", 0)

    @staticmethod
    def _request_tables(legacy: TableGenerations, events: npt.NDArray[Any], changes: list[TableLookup | TableReplaced]) -> None:
        """Has the tables read that these events met."""
        legacy.add_changes(changes)
        tables = events[events["kind"] == Kind.EVENT_TABLE]
        for at in np.unique(tables["object"], return_index=True)[1] if len(tables) else ():
            legacy.request_for(table_trace.event(tables[at]))

    def prefetch(self, batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """In place of `take`, where nothing will be explained: has all rules read that a batch met, and keeps nothing of it."""
        events, _, rulesets = table_trace.split(batch)
        if self._legacy:
            changes = list(table_trace.changes(rulesets))
            self._request_tables(self._legacy, events, changes)
            self._report(changes)
        if self._nft:
            self._nft.refresh()
            hits = events[events["kind"] == Kind.EVENT_NFT_RULE].view(HIT_DTYPE)
            spaces = map(netns.identity, hits["netns"].tolist(), hits["cookie"].tolist())
            met = set(zip(spaces, hits["generation"].tolist(), strict=True))
            self._generations_met.update(dict.fromkeys(met))
            for g in self._generations_met:
                if not self._nft.is_coming(*g):
                    del self._generations_met[g]
        return events

    @property
    def is_reading(self) -> bool:
        """Whether rules that `ahead` asked for are being read."""
        nft, legacy = self._nft, self._legacy
        return bool((legacy and legacy.is_reading) or (nft and any([nft.is_coming(*g) for g in self._generations_met])))

    def is_waiting_for(self, records: Sequence[Any]) -> bool:
        """Whether rules that acted on a packet are being read. records: its events and hits."""
        legacy, nft = self._legacy, self._nft
        if legacy and any([legacy.is_waiting_for(e) for e in records if e.kind == Kind.EVENT_TABLE]):
            return True
        return nft is not None and any([nft.is_coming(*g) for g in reconstruct.generations(records)])

    def begin_packet(self, records: Sequence[Any], whole: bool) -> None:
        """A packet is about to be explained. records: its events and hits, in order. whole: nothing of it was lost."""
        self._runs, self._whole = reconstruct.runs(records) if self._nft else {}, whole

    def resolve(self, e: Event) -> dict[str, Any]:
        """The fields of an event's hop that tell which rules acted. To be called in the order of a packet's events."""
        if self._legacy and e.kind == Kind.EVENT_TABLE:
            if e.flags & Flag.FLAG_NO_HEADER:
                return {"rule_trace": NO_HEADER}
            walk = self._legacy.reconstruct(e, self._noted.get(e.packet, {}).get(e.time, []))
            if e.flags & Flag.FLAG_HAS_CT and e.table.split(b"\0")[0] == b"nat":
                self._remember(e, e.hook in DESTINATION_HOOKS, walk)
            return {"rule_trace": walk}
        run = self._runs.get(reconstruct.run_key(e)) if self._nft and e.kind == Kind.EVENT_CHAIN else None
        if self._nft and run and run.hits:
            walk = reconstruct.reconstruct(e, run, self._nft, self._whole)
            connection = _connection(e, e.hook in DESTINATION_HOOKS)
            known = e.flags & Flag.FLAG_HAS_CT and not e.flags & Flag.FLAG_NO_HEADER
            if known and (translates(walk) or (walk.undecided and connection not in self._connections)):
                self._remember(e, e.hook in DESTINATION_HOOKS, walk)
            return {"rule_trace": walk, **reconstruct.named(e, run, self._nft)}
        if (self._legacy or self._nft) and e.kind == Kind.EVENT_NAT:
            # In the reply direction a rewritten source undoes a DNAT.
            destination = bool(e.manip & 1) != bool(e.manip & 2)
            decided = self._decided(e, destination)
            if not decided and e.ct_info == NEW and self._whole:
                decided = self._remember(e, destination, None)
            caused = decided.trace if decided else LOST if self._loss_count or not self._whole else BEFORE
            return {"rule_trace": caused, "from_conntrack": not decided or decided.packet != e.packet}
        return {}

    def forget(self, packet: int) -> None:
        """A packet has been explained: what was noted for it is no longer needed."""
        self._noted.pop(packet, None)

    def add_losses(self, losses: Sequence[Loss]) -> None:
        """Events were lost: a connection that is remembered may be another one by now, with the same addresses and ports."""
        self._loss_count += any(loss.probe.startswith(DECIDING) for loss in losses)

    def close(self) -> None:
        """Ends the reading of rules; what has been read stays known."""
        if self._legacy:
            self._legacy.close()

    def _decided(self, e: Event, destination: bool) -> _Translation | None:
        """What is remembered of an event's connection. Where events were lost since, it counts only if a connection that began
        unseen would have met the same rules, and got the same translation as this packet has."""
        decided = self._connections.get(_connection(e, destination))
        if (
            decided
            and decided.era != self._loss_count
            and (decided.to != _given(e, destination) or decided.time < self._replaced_at)
        ):
            return None
        return decided

    def _remember(self, e: Event, destination: bool, trace: RuleTrace | None) -> _Translation:
        connection = _connection(e, destination)
        decided = _Translation(e.packet, trace, e.time, _given(e, destination), self._loss_count)
        self._connections[connection] = decided
        return decided


def translates(trace: RuleTrace) -> bool:
    """Whether a walk through an nftables chain ended in a translation."""
    last = trace.hits[-1] if trace.hits else None
    return bool(last and last.rule and last.rule.target.lower() in TRANSLATIONS)


def _given(e: Event, destination: bool) -> tuple[bytes, int]:
    """The address and port that a connection's translation gave it, on one side."""
    return (e.reply_src, e.reply_sport) if destination else (e.reply_dst, e.reply_dport)


def _connection(e: Event, destination: bool) -> object:
    return (destination, e.netns, e.zone, e.protocol, e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport)
