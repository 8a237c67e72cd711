"""What one hook does to a packet that nobody has sent: its tables and chains in turn, and the translation that a rule makes.

What a rule leaves to chance, or what cannot be computed, parts a story here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import groupby

from tracer.explain.model import Moment
from tracer.explain.question import Question
from tracer.explain.sets import Sets
from tracer.explain.stations import Station
from tracer.model import Endpoints, Evidence, Hop, Nat, Packet
from tracer.octets import encoded
from tracer.routes import Routes
from tracer.rules.matches import Seen
from tracer.rules.model import Walk
from tracer.rules.predict import MOST, Rewrite, TooMany, Way
from tracer.verdict import judge

SYN = 2


@dataclass(frozen=True)
class _World:
    """What matches may ask, at one moment of one story."""

    routes: Routes
    sets: Sets
    states: frozenset[str] = frozenset({"NEW"})

    def in_set(self, name: str, flags: tuple[str, ...], packet: Seen) -> bool | None:
        return self.sets.has(name, flags, packet)

    def type_of(self, address: str) -> str:
        if ip_address(address).is_multicast:
            return "MULTICAST"
        kind = self.routes.to(address).kind
        return {"martian": "", "unicast": "UNICAST"}.get(kind, kind.upper())


@dataclass
class Hooks:
    """The hooks of one node, for one question. stations: by hook, in order."""

    question: Question
    stations: Mapping[str, Sequence[Station]]
    routes: Routes
    sets: Sets
    _equal: dict[str, list[list[Station]]] = field(init=False)

    def __post_init__(self) -> None:
        self._equal = {
            hook: [list(g) for _, g in groupby(found, lambda s: s.priority)] for hook, found in self.stations.items()
        }

    @property
    def loose(self) -> frozenset[tuple[str, str, str]]:
        """(hook, table, chain) of all whose place is not known: the kernel asks the one that was registered last first."""
        groups = ((hook, group) for hook, found in self._equal.items() for group in found)
        return frozenset((hook, s.table, s.chain) for hook, group in groups if len({s.table for s in group}) > 1 for s in group)

    def through(self, hook: str, begun: Moment) -> list[Moment]:
        """The stories behind a hook. Raises TooMany."""
        moments = [begun]
        for group in self._equal[hook]:
            moments = [after for m in moments for after in ([m] if m.over else self._asked(hook, group, m))]
            if len(moments) > MOST:
                raise TooMany(f"more than {MOST} ways")
        return [m if m.over else _passed(m, hook) for m in moments]

    def _asked(self, hook: str, group: Sequence[Station], m: Moment) -> list[Moment]:
        """Behind all of one priority."""
        out = []
        for order, doubt in self._orders(group, m):
            moments = [replace(m, doubts=(*m.doubts, doubt)) if doubt and doubt not in m.doubts else m]
            for station in order:
                moments = [after for each in moments for after in self._station(hook, station, each)]
            out += moments
        return out

    def _orders(self, group: Sequence[Station], m: Moment) -> Iterator[tuple[Sequence[Station], str]]:
        """The orders in which those of one priority may be asked, each with what it depends on; one if it is all the same."""
        tables = list(dict.fromkeys(s.table for s in group))
        if len(tables) > 1:
            tables = [t for t in tables if any(s.table == t and self._decides(s, m) for s in group)]
        if len(tables) < 2:
            yield group, ""
            return
        names = {s.table: s.name for s in group}
        for first in tables:
            others = " and ".join(names[t] for t in tables if t != first)
            doubt = f"{names[first]} was registered after {others}, and so is asked first"
            yield [s for s in group if s.table == first] + [s for s in group if s.table != first], doubt

    def _decides(self, station: Station, m: Moment) -> bool:
        return station.translates not in m.done and any(w.rewrite or w.verdict != "ACCEPT" for w in self._ways(station, m))

    def _station(self, hook: str, station: Station, m: Moment) -> list[Moment]:
        """Behind one of them."""
        if m.over or station.translates in m.done:
            return [m]
        return [self._after(hook, station, way, m) for way in self._ways(station, m)]

    def _ways(self, station: Station, m: Moment) -> list[Way]:
        translated = any(h.nat and h.nat.kind == "DNAT" for h in m.hops)
        states = frozenset({"NEW", "DNAT"} if translated else {"NEW"})
        return station.ways(self._seen(m), bool(m.ends.sport), _World(self.routes, self.sets, states))

    def _seen(self, m: Moment) -> Seen:
        q, ends = self.question, m.ends
        src, dst = int(ip_address(ends.src)), int(ip_address(ends.dst))
        icmp = (128 if q.protocol == "icmpv6" else 8, 0) if q.protocol.startswith("icmp") else (0, 0)
        flags = SYN if q.protocol == "tcp" else 0
        arrives, leaves = (int.from_bytes(encoded(name).ljust(16, b"\0"), "big") for name in (m.in_face, m.out_face))
        return Seen(q.family, src, dst, arrives, leaves, q.number, False, ends.sport, ends.dport, icmp, flags, m.mark)

    def _after(self, hook: str, station: Station, way: Way, m: Moment) -> Moment:
        verdict = way.verdict
        walk = Walk(way.visits, ruleset=station.ruleset)
        hop = Hop(
            0, station.what, "node", hook, station.table, station.chain, verdict, Evidence.DERIVED, m.in_face, m.out_face,
            way.mark or 0, way.reject, walk=walk,
        )  # fmt: skip
        doubts = (*m.doubts, *(d for d in way.doubts if d not in m.doubts))
        told = replace(m, hops=(*m.hops, hop), mark=way.mark, share=m.share * way.share, doubts=doubts)
        if way.rewrite:
            return self._translated(told, hook, station, way.rewrite, walk)
        if verdict == "ACCEPT":
            return told
        if verdict == "QUEUE":
            return told.end(f"taken over in {hook}: queued for a program", "stolen")
        packet = Packet(0, 0, "node", "", "", "", told.ends, hops=list(told.hops))
        return replace(told, over=judge(packet))

    def _translated(self, m: Moment, hook: str, station: Station, rewrite: Rewrite, walk: Walk) -> Moment:
        before = m.ends
        if station.translates == "dst":
            address = rewrite.address or self._own(before, m.in_face)
            after = replace(before, dst=address, dport=rewrite.port or before.dport)
            kind = "DNAT"
        else:
            after = replace(before, src=rewrite.address or self.routes.to(before.dst).source or before.src, sport=rewrite.port)
            kind = "MASQUERADE" if rewrite.kind == "MASQUERADE" else "SNAT"
        nat = Hop(0, "nat", "node", hook, evidence=Evidence.DERIVED, nat=Nat(kind, before, after), walk=walk,
                  in_iface=m.in_face, out_iface=m.out_face)  # fmt: skip
        return replace(m, ends=after, hops=(*m.hops, nat), done=m.done | {station.translates})

    def _own(self, ends: Endpoints, face: str) -> str:
        """Where REDIRECT sends to: this machine, by the interface that the packet came in by."""
        if not face:
            return "::1" if ":" in ends.dst else "127.0.0.1"
        return self.routes.to(ends.src).source or ends.dst


def _passed(m: Moment, hook: str) -> Moment:
    end = Hop(0, "hook", "node", hook, verdict="ACCEPT", evidence=Evidence.DERIVED, in_iface=m.in_face, out_iface=m.out_face)
    return replace(m, hops=(*m.hops, end))
