# SPDX-License-Identifier: Apache-2.0
"""What one hook does to a packet that nobody has sent: its tables and chains in turn, and the translation that a rule makes.

What a rule leaves to chance, or what cannot be computed, parts a story here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import combinations, groupby, permutations
from math import inf

from tracer.model.condition import Assumed, Condition
from tracer.model.evidence import Evidence
from tracer.model.packet import Endpoints, Hop, Nat, Packet
from tracer.model.prediction import PathState
from tracer.model.rule import RuleTrace
from tracer.node.routes import Routes
from tracer.packets.outcome import classify
from tracer.predict.hook_entries import HookEntry
from tracer.predict.ipsets import IpSetReader
from tracer.predict.merge import merged
from tracer.predict.query import PathQuery
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import MAX_PATHS, Rewrite, RulePath, TooManyPaths
from tracer.util.octets import encoded

SYN = 2
EVERY = (-inf, inf)
"""Chains of all priorities."""


ORDER = "was registered "
"""In each doubt about the order of chains of one priority, and in no other."""
STACKED = ("vlan", "macvlan", "macvtap", "ipvlan", "vrf")
"""Kinds of interfaces that stand on another one, which may be a bridge."""
MANY = 64
"""Of more stories than that, those that come to the same are merged before they have ended."""
MOST_ORDERS = 24
"""So many orders of chains of one priority are gone through."""


@dataclass(frozen=True)
class _NodeContext:
    """What matches may ask, at one moment of one story."""

    routes: Routes
    sets: IpSetReader
    states: frozenset[str] = frozenset({"NEW"})
    bridges: frozenset[str] = frozenset()
    assumed: Assumed = frozenset()

    def in_set(self, name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
        return self.sets.has(name, flags, packet)

    def in_recent(self, name: str, address: str) -> bool | None:
        return self.sets.recently(name, address)

    def by_bridge(self, face: str) -> bool | None:
        kind = next((link.kind for link in self.routes.links() if link.name == face), None)
        if not face or not self.bridges or kind not in (None, "bridge", *STACKED):
            return False
        return face in self.bridges if kind == "bridge" else None

    def type_of(self, address: str) -> str:
        if ip_address(address).is_multicast:
            return "MULTICAST"
        kind = self.routes.to(address).kind
        return {"martian": "", "unicast": "UNICAST"}.get(kind, kind.upper())


@dataclass
class HookSimulator:
    """The hooks of one node, for one question. stations: by hook, in order. bridges: see bridging.seen_bridges()."""

    query: PathQuery
    stations: Mapping[str, Sequence[HookEntry]]
    routes: Routes
    sets: IpSetReader
    bridges: frozenset[str] = frozenset()
    _equal: dict[str, list[list[HookEntry]]] = field(init=False)

    def __post_init__(self) -> None:
        self._equal = {
            hook: [list(g) for _, g in groupby(found, lambda s: s.priority)] for hook, found in self.stations.items()
        }

    @property
    def loose(self) -> frozenset[tuple[str, str, str]]:
        """(hook, table, chain) of all whose place is not known: the kernel asks the one that was registered last first."""
        groups = ((hook, group) for hook, found in self._equal.items() for group in found)
        return frozenset((hook, s.table, s.chain) for hook, group in groups if len({s.table for s in group}) > 1 for s in group)

    def through(self, hook: str, state: PathState, part: tuple[float, float] = EVERY) -> list[PathState]:
        """The stories behind a hook, or behind those of its chains whose priority is in `part`. Raises TooManyPaths."""
        moments = [state]
        for group in self._equal[hook]:
            if not part[0] <= group[0].priority < part[1]:
                continue
            moments = [after for m in moments for after in ([m] if m.ended else self._asked(hook, group, m))]
            if len(moments) > MANY:
                moments = merged(moments)
            if len(moments) > MAX_PATHS:
                raise TooManyPaths(f"more than {MAX_PATHS} ways")
        return [m if m.ended or part[1] < EVERY[1] else _passed(m, hook) for m in moments]

    def _asked(self, hook: str, group: Sequence[HookEntry], m: PathState) -> list[PathState]:
        """Behind all of one priority, in each order that they may be asked in."""
        orders = list(self._orders(group, m))
        if len(orders) == 1:
            return self._in_order(hook, orders[0], m)
        behind = [(order, self._in_order(hook, order, m)) for order in orders]
        by_first: dict[str, list[tuple[list[HookEntry], list[PathState]]]] = {}
        for order, moments in behind:
            by_first.setdefault(order[0].name, []).append((order, moments))
        if all(len({_outcomes(moments, hook) for _, moments in same}) == 1 for same in by_first.values()):
            # Whatever comes behind the first one changes nothing.
            behind = [same[0] for same in by_first.values()]
        if len(behind) == 1:
            return behind[0][1]
        clauses = [_registered(hook, order, [o for o, _ in behind]) for order, _ in behind]
        of = (ORDER, hook, tuple(sorted(clauses)))
        out = []
        for clause, (_, moments) in zip(clauses, behind, strict=True):
            doubt = Condition(clause, of=of, options=len(clauses))
            out += [replace(each, conditions=(*each.conditions, doubt)) for each in moments]
        return out

    def _in_order(self, hook: str, order: Sequence[HookEntry], m: PathState) -> list[PathState]:
        moments = [m]
        for hook_entry in order:
            moments = [after for each in moments for after in self._through_entry(hook, hook_entry, each)]
        return moments

    def _orders(self, group: Sequence[HookEntry], m: PathState) -> Iterator[list[HookEntry]]:
        """The orders in which those of one priority may be asked, one if it is all the same. Of one table it is known."""
        tables = {s.table for s in group}
        acting = [s for s in group if len(tables) > 1 and self._acts(s, m)]
        if any(self._marks(s, m) for s in acting):
            # A mark that one sets may make another act.
            acting = list(group)
        if len({s.table for s in acting}) < 2:
            yield list(group)
            return
        others = [s for s in group if s not in acting]
        count = 0
        for order in permutations(acting):
            if all(group.index(a) < group.index(b) for a, b in combinations(order, 2) if a.table == b.table):
                count += 1
                if count > MOST_ORDERS:
                    raise TooManyPaths(f"more than {MOST_ORDERS} orders of chains of one priority")
                yield [*order, *others]

    def _acts(self, entry: HookEntry, m: PathState) -> bool:
        if entry.translates in m.done:
            return False
        return any(w.rewrite or w.verdict != "ACCEPT" or w.mark != m.mark for w in self._rule_paths(entry, m))

    def _marks(self, entry: HookEntry, m: PathState) -> bool:
        return any(w.mark != m.mark for w in self._rule_paths(entry, m))

    def _through_entry(self, hook: str, entry: HookEntry, m: PathState) -> list[PathState]:
        """Behind one of them."""
        if m.ended or entry.translates in m.done:
            return [m]
        return [self._after(hook, entry, way, m) for way in self._rule_paths(entry, m)]

    def _rule_paths(self, entry: HookEntry, m: PathState) -> list[RulePath]:
        translated = any(h.nat and h.nat.kind == "DNAT" for h in m.hops)
        states = frozenset({"NEW", "DNAT"} if translated else {"NEW"})
        world = _NodeContext(self.routes, self.sets, states, self.bridges, m.assumed)
        return entry.ways(self._seen(m), bool(m.ends.sport), world)

    def _seen(self, m: PathState) -> PacketView:
        q, ends = self.query, m.ends
        src, dst = int(ip_address(ends.src)), int(ip_address(ends.dst))
        icmp = (128 if q.protocol == "icmpv6" else 8, 0) if q.protocol.startswith("icmp") else (0, 0)
        flags = SYN if q.protocol == "tcp" else 0
        arrives, leaves = (int.from_bytes(encoded(name).ljust(16, b"\0"), "big") for name in (m.in_iface, m.out_iface))
        return PacketView(q.family, src, dst, arrives, leaves, q.number, False, ends.sport, ends.dport, icmp, flags, m.mark)

    def _after(self, hook: str, entry: HookEntry, rule_path: RulePath, m: PathState) -> PathState:
        verdict = rule_path.verdict
        walk = RuleTrace(rule_path.hits, ruleset=entry.ruleset)
        hop = Hop(
            0, entry.what, "node", hook, entry.table, entry.chain, verdict, Evidence.DERIVED, m.in_iface, m.out_iface,
            rule_path.mark or 0, rule_path.reject, rule_trace=walk,
        )  # fmt: skip
        doubts = (*m.conditions, *(d for d in rule_path.conditions if d not in m.conditions))
        told = replace(m, hops=(*m.hops, hop), mark=rule_path.mark, share=m.share * rule_path.share, conditions=doubts,
                       assumed=m.assumed | rule_path.assumed)  # fmt: skip
        if rule_path.rewrite:
            return self._translated(told, hook, entry, rule_path.rewrite, walk)
        if verdict == "ACCEPT":
            return told
        if verdict == "QUEUE":
            return told.end_with(f"taken over in {hook}: queued for a program", "stolen")
        packet = Packet(0, 0, "node", "", "", "", told.ends, hops=list(told.hops))
        return replace(told, ended=classify(packet))

    def _translated(self, m: PathState, hook: str, entry: HookEntry, rewrite: Rewrite, trace: RuleTrace) -> PathState:
        before = m.ends
        if entry.translates == "dst":
            address = rewrite.address or self._own(before, m.in_iface)
            after = replace(before, dst=address, dport=rewrite.port or before.dport)
            kind = "DNAT"
        else:
            after = replace(before, src=rewrite.address or self.routes.to(before.dst).source or before.src, sport=rewrite.port)
            kind = "MASQUERADE" if rewrite.kind == "MASQUERADE" else "SNAT"
        nat = Hop(0, "nat", "node", hook, evidence=Evidence.DERIVED, nat=Nat(kind, before, after), rule_trace=trace,
                  in_iface=m.in_iface, out_iface=m.out_iface)  # fmt: skip
        return replace(m, ends=after, hops=(*m.hops, nat), done=m.done | {entry.translates})

    def _own(self, ends: Endpoints, face: str) -> str:
        """Where REDIRECT sends to: this machine, by the interface that the packet came in by."""
        if not face:
            return "::1" if ":" in ends.dst else "127.0.0.1"
        return self.routes.to(ends.src).source or ends.dst


def _passed(m: PathState, hook: str) -> PathState:
    end = Hop(0, "hook", "node", hook, verdict="ACCEPT", evidence=Evidence.DERIVED, in_iface=m.in_iface, out_iface=m.out_iface)
    return replace(m, hops=(*m.hops, end))


def _registered(hook: str, order: Sequence[HookEntry], orders: Sequence[Sequence[HookEntry]]) -> str:
    """What an order depends on: which table comes first, or where that does not tell it from another, the whole order."""
    if len({o[0].name for o in orders}) == len(orders):
        others = " and ".join(o[0].name for o in orders if o[0].name != order[0].name)
        return f"in {hook} {order[0].name} {ORDER}after {others}, and so is asked first"
    return f"in {hook} what {ORDER}last was {', before it '.join(dict.fromkeys(s.name for s in order))}"


def _outcomes(states: Sequence[PathState], hook: str) -> Hashable:
    """What the stories come to, whichever rules did it. Behind POSTROUTING nobody looks at the mark any more."""
    found: Counter[Hashable] = Counter()
    for m in states:
        mark = m.mark if hook != "POSTROUTING" else 0
        found[m.ends, mark, m.done, m.ended, m.conditions] += m.share  # type: ignore[assignment]
    return frozenset(found.items())
