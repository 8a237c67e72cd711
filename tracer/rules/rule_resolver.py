# SPDX-License-Identifier: Apache-2.0
"""Resolves the rules that packets met: the rule trace of each table run, and the rule behind a connection's translation.

Only the first packet of a connection passes the nat table. Its later packets and the replies are rewritten from conntrack. So
the rule is kept here by the connection's original tuple, zone and namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tracer.events import record, table_trace
from tracer.events.nft_trace import HIT_DTYPE, NftHit
from tracer.events.packet_groups import PacketGroups
from tracer.events.record import Event, EventArray, EventRow, Flag, Kind
from tracer.events.table_trace import STEPS, TableLookup, TableReplaced, TableTrace
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.netfilter import IP_HOOKS, Hook
from tracer.model.rule import RuleTrace
from tracer.node import netns
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.path_cache import TestedPort
from tracer.rules.nftables import reconstruct
from tracer.util.lru_dict import LruDict

CONNECTIONS_KEPT = 65536
"""Most connections kept with the rule trace of their translation; the least recently used is evicted first."""
PACKETS_KEPT = 65536
"""Most open packets kept with their table traces."""
TRACES_KEPT = 4096
"""Most different rule traces kept."""
GENERATIONS_KEPT = 4096
"""Most generations of nftables' rules that a recording waits for."""
DESTINATION_HOOKS = (IP_HOOKS.index(Hook.PREROUTING), IP_HOOKS.index(Hook.OUTPUT))
"""Hooks where the nat table changes destinations; at the other hooks it changes sources."""
TRANSLATIONS = frozenset({"dnat", "snat", "masquerade", "redirect", "netmap"})
"""Targets of nftables that translate addresses."""
NEW = 2
"""Value of event.ct_info: no packet of this connection has left yet."""
DECIDED_EARLIER = RuleTrace(undecided="decided before tracing began")
UNSEEN = RuleTrace(undecided="the packet that decided was not seen: it came before tracing began, or events were lost")
NO_LONGER_KEPT = RuleTrace(undecided="decided before tracing began, or too many connections ago")
UNKNOWN_HEADER = RuleTrace(undecided="the packet's header is not known: events were lost")
DECISION_PROBES = ("hook", "table", "chain", "nat", "nft", "steps", "ruleset", "ipvs", "any", LEFT_OUT, "capture")
"""Name prefixes of probes and event kinds. After a loss there, a new connection may have replaced an old one unnoticed."""


SideKey: TypeAlias = tuple[bool, int, int, int, bytes, int, bytes, int]
"""One side of a connection: whether it is the destination; then what ConnectionKey has, as an event has it: inode of the
namespace, zone, protocol number, original tuple. Nothing of it is decoded, because each event with a rewrite is looked up."""


class _TableTraces(NamedTuple):
    """Table traces of one packet in one batch, as bytes. alike: what they say, without the values of the packet."""

    rows: bytes
    alike: bytes


class _Translation(NamedTuple):
    """The translation of one side of a connection.

    Attributes:
        packet: Identity of the packet that decided it.
        trace: Rule trace of that packet through the nat table. None = something else than a watched rule translates.
        time: Time of the decision, ns, CLOCK_MONOTONIC.
        to: The address and port after translation.
        losses_before: Number of losses before it.
    """

    packet: int
    trace: RuleTrace | None
    time: int
    to: tuple[bytes, int]
    losses_before: int


class ResolvedRules(NamedTuple):
    """The rules that acted at one event.

    Attributes:
        trace: Rules that acted; for a translation, the rules that decided it. None = no rules are watched there.
        from_conntrack: An earlier packet of the connection decided the translation.
        table: The table's whole name with its family, "" = as in the event.
        chain: The base chain's whole name, "" = as in the event.
    """

    trace: RuleTrace | None = None
    from_conntrack: bool = False
    table: str = ""
    chain: str = ""


class TranslationUse(NamedTuple):
    """One event of a packet that decided the translation of its connection, or that carried it out.

    Attributes:
        side: The side of the connection.
        to: The address and port of that side after translation.
        time: Time of the event, ns, CLOCK_MONOTONIC.
        decided: Rule trace that decided it, None = the event carried out a translation.
        is_new: No packet of the connection had left before.
    """

    side: SideKey
    to: tuple[bytes, int]
    time: int
    decided: RuleTrace | None
    is_new: bool


RulesKey: TypeAlias = tuple[tuple[int, bool], ...]
"""The identities of the rules behind translations, and whether an earlier packet decided each."""
NO_RULES = ResolvedRules()
"""The event is none of a table, a chain or a translation, or rules are not watched."""


class RuleResolver:
    """Resolves the rules that acted on packets.

    Args:
        legacy: Generations of legacy tables, None = not available in this run.
        nft: Snapshots of nftables' rules, None = not available in this run.

    Attributes:
        is_settled: Whether no rules that acted at the events of the last batch are still to be read.
        replaced: Called for replaced rules with the time (ns, CLOCK_MONOTONIC), a name of the rules, and the thread that
            replaced them (0 = not known).
    """

    def __init__(self, legacy: TableGenerations | None = None, nft: reconstruct.RefreshedSnapshots | None = None) -> None:
        self._legacy, self._nft = legacy, nft
        self._table_traces: LruDict[int, list[_TableTraces]] = LruDict(PACKETS_KEPT, "table traces of packets")
        self._traces_of_packet: dict[int, list[TableTrace]] = {}
        self._runs: dict[reconstruct.RunKey, reconstruct.ChainRun] = {}
        self._is_whole = True
        self._connections: LruDict[SideKey, _Translation] = LruDict(
            CONNECTIONS_KEPT, "translations of connections", self._note_evicted
        )
        self._has_evicted_rule = False
        self._loss_count = 0
        self._replaced_at = 0
        self.is_settled = True
        self.replaced: Callable[[int, str, int], None] | None = None
        self._traces: LruDict[Hashable, RuleTrace] = LruDict(TRACES_KEPT, "rule traces of packets")
        self._interned_at = self.changes
        self._uses: list[tuple[TranslationUse, ResolvedRules]] = []
        self._tested: set[TestedPort] = set()
        self._generations_met: LruDict[tuple[int, int], None] = LruDict(GENERATIONS_KEPT, "awaited generations of nftables")

    def feed(self, batch: EventArray) -> EventArray:
        """Takes all rows but events out of a batch; returns the events. Must be called for every drain, also an empty one."""
        if self._nft:
            self._nft.refresh()
        if not len(batch):  # most batches of a node without matching packets
            if self._legacy:
                self._legacy.add_changes([])
            self.is_settled = True
            return batch
        events, rows, rulesets = table_trace.split(batch)
        if self._legacy:
            if len(rows):
                self._add_table_traces(rows)
            changes = list(table_trace.changes(rulesets))
            self._request_tables(self._legacy, events, changes)
            self._report(changes)
        self.is_settled = self._has_settled(events)
        return events

    def _add_table_traces(self, rows: EventArray) -> None:
        groups, kept = PacketGroups(rows["packet"]), self._table_traces
        alike = groups.octets(table_trace.without_values(rows))
        for packet, own, same in zip(groups.identities, groups.octets(rows), alike, strict=True):
            traces, before = _TableTraces(own, same), kept.get(packet)
            if before is None:
                kept[packet] = [traces]
            else:
                before.append(traces)

    def _has_settled(self, events: EventArray) -> bool:
        """Whether no rules that acted at these events are still to be read."""
        legacy, nft = self._legacy, self._nft
        tables = np.flatnonzero(record.of_kinds(events, Kind.EVENT_TABLE))
        if legacy and len(tables):
            met = zip(events["object"][tables].tolist(), events["netns"][tables].tolist(), strict=True)
            last = dict(zip(met, tables.tolist(), strict=True))
            if not all([legacy.is_settled(record.event(events[at])) for at in last.values()]):
                return False
        return not (nft and any(nft.is_coming(*g) for g in _generations(events)))

    def _report(self, changes: list[TableLookup | TableReplaced]) -> None:
        for change in changes:
            if isinstance(change, TableReplaced):
                self._replaced_at = max(self._replaced_at, change.time)
                if self.replaced:
                    self.replaced(change.time, change.table, change.thread)

    def nft_changed(self, at: int) -> None:
        """Takes a change of nftables' rules. `at`: time when it was noticed, ns, CLOCK_MONOTONIC."""
        self._replaced_at = max(self._replaced_at, at)
        if self.replaced:
            self.replaced(at, "nftables' rules (noticed within 0.1 s)", 0)

    @staticmethod
    def _request_tables(legacy: TableGenerations, events: EventArray, changes: list[TableLookup | TableReplaced]) -> None:
        """Requests the tables that these events met."""
        legacy.add_changes(changes)
        tables = record.chosen(events, record.of_kinds(events, Kind.EVENT_TABLE))
        for at in np.unique(tables["object"], return_index=True)[1] if len(tables) else ():
            legacy.request_for(record.event(tables[at]))

    def prefetch(self, batch: EventArray) -> EventArray:
        """In place of `feed`, where no packet is explained: requests all rules that a batch met and keeps nothing of it."""
        events, _, rulesets = table_trace.split(batch)
        if self._legacy:
            changes = list(table_trace.changes(rulesets))
            self._request_tables(self._legacy, events, changes)
            self._report(changes)
        if self._nft:
            self._nft.refresh()
            self._generations_met.update(dict.fromkeys(_generations(events)))
            for g in self._generations_met:
                if not self._nft.is_coming(*g):
                    del self._generations_met[g]
        return events

    @property
    def is_reading(self) -> bool:
        """Whether rules that `prefetch` requested are being read."""
        nft, legacy = self._nft, self._legacy
        return bool((legacy and legacy.is_reading) or (nft and any([nft.is_coming(*g) for g in self._generations_met])))

    def is_waiting_for(self, records: Sequence[EventRow]) -> bool:
        """Whether rules that acted on a packet are being read. `records`: its events and hits."""
        legacy, nft = self._legacy, self._nft
        if legacy and any([legacy.is_waiting_for(e) for e in records if isinstance(e, Event) and e.kind == Kind.EVENT_TABLE]):
            return True
        return nft is not None and any([nft.is_coming(*g) for g in reconstruct.generations(records)])

    def begin_packet(self, records: Sequence[EventRow], is_whole: bool) -> None:
        """Prepares for the hops of one packet. `records`: its events and hits, in order. `is_whole`: none was lost."""
        self._runs, self._is_whole = reconstruct.runs(records) if self._nft else {}, is_whole
        self._uses, self._tested, self._traces_of_packet = [], set(), {}
        kept = self._table_traces.get(records[0].packet) if self._legacy and records else None
        if kept:
            self._traces_of_packet = table_trace.table_traces(np.frombuffer(b"".join([each.rows for each in kept]), STEPS))

    def resolve(self, e: Event) -> ResolvedRules:
        """Which rules acted at an event. Must be called in the order of a packet's events."""
        if self._legacy and e.kind == Kind.EVENT_TABLE:
            if e.flags & Flag.FLAG_NO_HEADER:
                return ResolvedRules(UNKNOWN_HEADER)
            rule_trace = self._interned(self._legacy.reconstruct(e, self._traces_of_packet.get(e.time, [])))
            self._tested |= self._legacy.tested
            if e.flags & Flag.FLAG_HAS_CT and e.table.split(b"\0")[0] == b"nat":
                self._decide(e, rule_trace)
            return ResolvedRules(rule_trace)
        run = self._runs.get(reconstruct.run_key(e)) if self._nft and e.kind == Kind.EVENT_CHAIN else None
        if self._nft and run and run.hits:
            rule_trace = self._interned(reconstruct.reconstruct(e, run, self._nft, self._is_whole))
            connection = _side_key(e, e.hook in DESTINATION_HOOKS)
            is_known = e.flags & Flag.FLAG_HAS_CT and not e.flags & Flag.FLAG_NO_HEADER
            if is_known and (translates(rule_trace) or (rule_trace.undecided and connection not in self._connections)):
                self._decide(e, rule_trace)
            table, chain = reconstruct.hop_names(e, run, self._nft)
            return ResolvedRules(rule_trace, table=table, chain=chain)
        if (self._legacy or self._nft) and e.kind == Kind.EVENT_NAT:
            # In the reply direction a rewritten source undoes a DNAT.
            destination = bool(e.manip & 1) != bool(e.manip & 2)
            use = TranslationUse(_side_key(e, destination), _translated_end(e, destination), e.time, None, e.ct_info == NEW)
            resolved = ResolvedRules(*self._translation(use, e.time, e.packet))
            self._uses.append((use, resolved))
            return resolved
        return NO_RULES

    def _interned(self, trace: RuleTrace) -> RuleTrace:
        """The same object for equal traces through one ruleset, so that packets with the same path are recognised."""
        if self._interned_at != self.changes:
            self._traces.clear()  # they keep replaced rules in memory
            self._interned_at = self.changes
        key = (trace.hits, trace.undecided, trace.possible, id(trace.ruleset))
        known = self._traces.get(key)
        if known is None or known.ruleset is not trace.ruleset:
            known = self._traces[key] = trace
        return known

    @property
    def uses(self) -> tuple[tuple[TranslationUse, ResolvedRules], ...]:
        """What the packet that was resolved last did with translations, in the order of its events, with the rules of each."""
        return tuple(self._uses)

    @property
    def tested_ports(self) -> frozenset[TestedPort]:
        """Ports of the packet that was resolved last on which its rule traces depend, with the ranges of these tests."""
        return frozenset(self._tested)

    @property
    def changes(self) -> tuple[int, int]:
        """Changes with each change of what is known of rules."""
        return (self._legacy.changes if self._legacy else 0, self._nft.updates if self._nft else 0)

    @property
    def tables_replaced_at(self) -> int:
        """Time of the last known replacement of a legacy table, ns, CLOCK_MONOTONIC; -1 = legacy tables are not watched."""
        return self._legacy.replaced_at if self._legacy else -1

    def fingerprint(self, packet: int) -> bytes:
        """What the table traces of a packet say; equal for packets that took the same steps through legacy tables."""
        traces = self._table_traces.get(packet) if self._legacy else None
        if not traces:
            return b""
        return traces[0].alike if len(traces) == 1 else b"".join([t.alike for t in traces])

    def map_keys(self, hits: Sequence[NftHit]) -> list[tuple[NftHit, int, int]] | None:
        """(hit, begin, end) of the key in the registers of each hit that looked up a verdict map.

        None if what a hit says also depends on its time, because elements of its map time out.
        """
        return reconstruct.map_keys(hits, self._nft) if self._nft else []

    def repeat(self, uses: Sequence[tuple[TranslationUse, int]], times: Sequence[int], packet: int) -> RulesKey:
        """Does for another packet what `resolve` did at the events of a packet with the same path.

        Args:
            uses: The uses with the connection of the other packet, with the place of the time of each. Their own time does not
                count.
            times: Times of the rows of the other packet, ns, CLOCK_MONOTONIC.
            packet: Identity of the other packet, which is whole.

        Returns:
            The rules behind the uses, as `rules_key` gives them.
        """
        self._is_whole = True
        found, kept, losses = [], self._connections.get, self._loss_count
        for use, at in uses:
            if use.decided:
                self._keep(use, times[at], packet, use.decided)
                found.append((id(use.decided), False))
            elif (decided := kept(use.side)) and decided.losses_before == losses:
                found.append((id(decided.trace), decided.packet != packet))
            else:
                trace, is_earlier = self._translation(use, times[at], packet)
                found.append((id(trace), is_earlier))
        return tuple(found)

    def _translation(self, use: TranslationUse, time: int, packet: int) -> tuple[RuleTrace | None, bool]:
        """The rules that decided a translation which a packet carries out, and whether an earlier packet decided it."""
        decided = self._connections.get(use.side)
        if decided and (decided.losses_before == self._loss_count or self._is_still(decided, use)):
            return decided.trace, decided.packet != packet
        if use.is_new and self._is_whole and not self._has_evicted_rule:
            return self._keep(use, time, packet, None).trace, False
        return self._unknown_translation, True

    @property
    def _unknown_translation(self) -> RuleTrace:
        """Why the rule behind a translation is not known."""
        if self._loss_count or not self._is_whole:
            return UNSEEN
        return NO_LONGER_KEPT if self._connections.evicted else DECIDED_EARLIER

    def _note_evicted(self, _: object, evicted: _Translation) -> None:
        """From now on the rule of an earlier packet may have translated a connection that is not kept."""
        self._has_evicted_rule = self._has_evicted_rule or evicted.trace is not None

    def forget(self, packets: Iterable[int]) -> None:
        """Drops the table traces of packets that have been explained."""
        if self._legacy:
            for packet in packets:
                self._table_traces.pop(packet, None)

    def add_losses(self, losses: Sequence[Loss]) -> None:
        """Takes losses: after one, a kept connection may have been replaced by another with the same addresses and ports."""
        self._loss_count += any(loss.probe.startswith(DECISION_PROBES) for loss in losses)

    def close(self) -> None:
        """Stops reading rules. What has been read stays available."""
        if self._legacy:
            self._legacy.close()

    def _decide(self, e: Event, trace: RuleTrace) -> None:
        """Keeps the translation that the rules at an event decided."""
        destination = e.hook in DESTINATION_HOOKS
        use = TranslationUse(_side_key(e, destination), _translated_end(e, destination), e.time, trace, e.ct_info == NEW)
        self._uses.append((use, ResolvedRules(trace)))
        self._keep(use, e.time, e.packet, trace)

    def _is_still(self, decided: _Translation, use: TranslationUse) -> bool:
        """Whether a kept translation is used after a loss.

        It is if this packet has the same translation and no rules were replaced since: a connection that began unseen would
        then have met the same rules.
        """
        return decided.to == use.to and decided.time >= self._replaced_at

    def _keep(self, use: TranslationUse, time: int, packet: int, trace: RuleTrace | None) -> _Translation:
        decided = _Translation(packet, trace, time, use.to, self._loss_count)
        self._connections[use.side] = decided
        return decided


def _generations(events: EventArray) -> set[tuple[int, int]]:
    """(namespace, generation) of all rule hits among these rows."""
    places = np.flatnonzero(record.of_kinds(events, Kind.EVENT_NFT_RULE))
    if not len(places):
        return set()
    columns = [events.view(HIT_DTYPE)[name].take(places) for name in ("netns", "cookie", "generation")]
    # Most rows have what the row before them has.
    is_new = np.logical_or.reduce([np.append(True, column[1:] != column[:-1]) for column in columns])
    met = set(zip(*(column[is_new].tolist() for column in columns), strict=True))
    return {(netns.identity(inode, cookie), generation) for inode, cookie, generation in met}


def rules_key(rules: Iterable[ResolvedRules]) -> RulesKey:
    """What packets on one path are told apart by, if different rules translated them."""
    return tuple([(id(resolved.trace), resolved.from_conntrack) for resolved in rules])


def translates(trace: RuleTrace) -> bool:
    """Whether a rule trace of an nftables chain ended in a translation."""
    last = trace.hits[-1] if trace.hits else None
    return bool(last and last.rule and last.rule.target.lower() in TRANSLATIONS)


def _translated_end(e: Event, destination: bool) -> tuple[bytes, int]:
    """The address and port of a connection after translation, on one side."""
    return (e.reply_src, e.reply_sport) if destination else (e.reply_dst, e.reply_dport)


def _side_key(e: Event, destination: bool) -> SideKey:
    return (destination, e.netns, e.zone, e.protocol, e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport)
