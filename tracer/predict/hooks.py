# SPDX-License-Identifier: Apache-2.0
"""Simulates one hook for a packet: its tables and chains in order, and the translation by a rule.

A random match, or a match that cannot be computed, splits a path here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import combinations, groupby, permutations
from math import inf
from typing import TypedDict

from tracer.model.condition import Assumed, Condition
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import ChainHop, HookHop, Nat, NatHop, RewriteHop, TableHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import AnyVerdict, Hook, Verdict
from tracer.model.packet import Outcome, Packet
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
"""Text that is in each condition about the order of chains of one priority, and in no other condition."""
STACKED = ("vlan", "macvlan", "macvtap", "ipvlan", "vrf")
"""Kinds of interfaces on top of another one, which may be a bridge."""
MERGE_PATHS = 64
"""Number of paths beyond which equivalent paths are merged before they have ended."""
MOST_ORDERS = 24
"""Most orders of chains of one priority that are simulated."""


class _Decision(TypedDict):
    """The fields of a RuleHop that the rules decide."""

    table: str
    verdict: AnyVerdict
    reject: str
    rule_trace: RuleTrace


@dataclass(frozen=True)
class _NodeContext:
    """The match context at one point of one path."""

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
        if face and kind is None:  # the devices could not be listed
            return None
        if not face or not self.bridges or kind not in ("bridge", *STACKED):
            return False
        return face in self.bridges if kind == "bridge" else None

    def type_of(self, address: str) -> str:
        if ip_address(address).is_multicast:
            return "MULTICAST"
        kind = self.routes.to(address).kind
        return {"martian": "", "unicast": "UNICAST"}.get(kind, kind.upper())


@dataclass
class HookSimulator:
    """Simulates the hooks of one node for one query.

    Attributes:
        query: The packet.
        entries: The entries of each hook, in order.
        routes: The node's routes.
        sets: The node's ipsets.
        bridges: Names of the bridges that pass their packets to the IP hooks (bridging.seen_bridges).
    """

    query: PathQuery
    entries: Mapping[Hook, Sequence[HookEntry]]
    routes: Routes
    sets: IpSetReader
    bridges: frozenset[str] = frozenset()
    _equal: dict[Hook, list[list[HookEntry]]] = field(init=False)

    def __post_init__(self) -> None:
        self._equal = {hook: [list(g) for _, g in groupby(found, lambda s: s.priority)] for hook, found in self.entries.items()}

    @property
    def loose(self) -> frozenset[tuple[str, str, str]]:
        """(hook, table, chain) of all entries with an unknown position: the kernel runs first what was registered last."""
        groups = ((hook, group) for hook, found in self._equal.items() for group in found)
        return frozenset((hook, s.table, s.chain) for hook, group in groups if len({s.table for s in group}) > 1 for s in group)

    def through(self, hook: Hook, state: PathState, part: tuple[float, float] = EVERY) -> list[PathState]:
        """Simulates a hook.

        Args:
            hook: The hook.
            state: The path before it.
            part: Only entries with a priority in [first, second) are run.

        Returns:
            The paths after it.

        Raises:
            TooManyPaths: There are more than MAX_PATHS paths, or too many orders.
        """
        states = [state]
        for group in self._equal[hook]:
            if not part[0] <= group[0].priority < part[1]:
                continue
            states = [after for m in states for after in ([m] if m.ended else self._after_group(hook, group, m))]
            if len(states) > MERGE_PATHS:
                states = merged(states)
            if len(states) > MAX_PATHS:
                raise TooManyPaths(f"more than {MAX_PATHS} paths")
        return [m if m.ended or part[1] < EVERY[1] else _passed(m, hook) for m in states]

    def _after_group(self, hook: Hook, group: Sequence[HookEntry], m: PathState) -> list[PathState]:
        """The paths after all entries of one priority, in each order in which they may run."""
        orders = list(self._orders(group, m))
        if len(orders) == 1:
            return self._in_order(hook, orders[0], m)
        behind = [(order, self._in_order(hook, order, m)) for order in orders]
        by_first: dict[str, list[tuple[list[HookEntry], list[PathState]]]] = {}
        for order, states in behind:
            by_first.setdefault(order[0].name, []).append((order, states))
        if all(len({_outcomes(outcomes, hook) for _, outcomes in same}) == 1 for same in by_first.values()):
            # The order of the entries after the first one changes nothing.
            behind = [same[0] for same in by_first.values()]
        if len(behind) == 1:
            return behind[0][1]
        clauses = [_registered(hook, order, [o for o, _ in behind]) for order, _ in behind]
        of = (ORDER, hook, tuple(sorted(clauses)))
        out = []
        for clause, (_, states) in zip(clauses, behind, strict=True):
            condition = Condition(clause, of=of, options=len(clauses))
            out += [replace(each, conditions=(*each.conditions, condition)) for each in states]
        return out

    def _in_order(self, hook: Hook, order: Sequence[HookEntry], m: PathState) -> list[PathState]:
        states = [m]
        for hook_entry in order:
            states = [after for each in states for after in self._through_entry(hook, hook_entry, each)]
        return states

    def _orders(self, group: Sequence[HookEntry], m: PathState) -> Iterator[list[HookEntry]]:
        """The orders in which entries of one priority may run; a single one if the order changes nothing.

        The order of chains of one table is known.
        """
        tables = {s.table for s in group}
        acting = [s for s in group if len(tables) > 1 and self._acts(s, m)]
        if any(self._marks(s, m) for s in acting):
            # A mark set by one entry may make another entry act.
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
        return any(w.rewrite or w.verdict is not Verdict.ACCEPT or w.mark != m.mark for w in self._rule_paths(entry, m))

    def _marks(self, entry: HookEntry, m: PathState) -> bool:
        return any(w.mark != m.mark for w in self._rule_paths(entry, m))

    def _through_entry(self, hook: Hook, entry: HookEntry, m: PathState) -> list[PathState]:
        """The paths after one entry."""
        if m.ended or entry.translates in m.done:
            return [m]
        return [self._after(hook, entry, way, m) for way in self._rule_paths(entry, m)]

    def _rule_paths(self, entry: HookEntry, m: PathState) -> list[RulePath]:
        translated = any(isinstance(h, RewriteHop) and h.nat.kind == "DNAT" for h in m.hops)
        states = frozenset({"NEW", "DNAT"} if translated else {"NEW"})
        context = _NodeContext(self.routes, self.sets, states, self.bridges, m.assumed)
        return entry.simulate(self._packet_view(m), bool(m.ends.sport), context)

    def _packet_view(self, m: PathState) -> PacketView:
        q, ends = self.query, m.ends
        src, dst = int(ip_address(ends.src)), int(ip_address(ends.dst))
        icmp = (128 if q.protocol == "icmpv6" else 8, 0) if q.protocol.startswith("icmp") else (0, 0)
        flags = SYN if q.protocol == "tcp" else 0
        arrives, leaves = (int.from_bytes(encoded(name).ljust(16, b"\0"), "big") for name in (m.in_iface, m.out_iface))
        return PacketView(q.family, src, dst, arrives, leaves, q.number, False, ends.sport, ends.dport, icmp, flags, m.mark)

    def _after(self, hook: Hook, entry: HookEntry, rule_path: RulePath, m: PathState) -> PathState:
        verdict = rule_path.verdict
        trace = RuleTrace(rule_path.hits, ruleset=entry.ruleset)
        step = (0, HOST, hook, Evidence.DERIVED, m.in_iface, m.out_iface, rule_path.mark or 0)
        did: _Decision = {"table": entry.table, "verdict": verdict, "reject": rule_path.reject, "rule_trace": trace}
        passed = TableHop(*step, **did) if entry.is_legacy else ChainHop(*step, chain=entry.chain, **did)
        conditions = (*m.conditions, *(d for d in rule_path.conditions if d not in m.conditions))
        after = replace(m, hops=(*m.hops, passed), mark=rule_path.mark, share=m.share * rule_path.share, conditions=conditions,
                       assumed=m.assumed | rule_path.assumed)  # fmt: skip
        if rule_path.rewrite:
            return self._translated(after, hook, entry, rule_path.rewrite, trace)
        if verdict is Verdict.ACCEPT:
            return after
        if verdict is Verdict.QUEUE:
            return after.end_with(f"taken over in {hook}: queued for a program", Outcome.STOLEN)
        packet = Packet(0, 0, HOST, "", "", "", after.ends, hops=after.hops)
        return replace(after, ended=classify(packet))

    def _translated(self, m: PathState, hook: Hook, entry: HookEntry, rewrite: Rewrite, trace: RuleTrace) -> PathState:
        before = m.ends
        if entry.translates == "dst":
            address = rewrite.address or self._own(before, m.in_iface)
            after = replace(before, dst=address, dport=rewrite.port or before.dport)
            kind = "DNAT"
        else:
            after = replace(before, src=rewrite.address or self.routes.to(before.dst).source or before.src, sport=rewrite.port)
            kind = "MASQUERADE" if rewrite.kind == "MASQUERADE" else "SNAT"
        nat = NatHop(0, HOST, hook, Evidence.DERIVED, m.in_iface, m.out_iface, nat=Nat(kind, before, after), rule_trace=trace)
        return replace(m, ends=after, hops=(*m.hops, nat), done=m.done | {entry.translates})

    def _own(self, ends: Endpoints, face: str) -> str:
        """The address that REDIRECT sets: that of this machine, by the input interface of the packet."""
        if not face:
            return "::1" if ":" in ends.dst else "127.0.0.1"
        return self.routes.to(ends.src).source or ends.dst


def _passed(m: PathState, hook: Hook) -> PathState:
    end = HookHop(0, HOST, hook, Evidence.DERIVED, m.in_iface, m.out_iface, verdict=Verdict.ACCEPT)
    return replace(m, hops=(*m.hops, end))


def _registered(hook: Hook, order: Sequence[HookEntry], orders: Sequence[Sequence[HookEntry]]) -> str:
    """The condition of an order: which table runs first, or the whole order if the first one is not unique."""
    if len({o[0].name for o in orders}) == len(orders):
        others = " and ".join(o[0].name for o in orders if o[0].name != order[0].name)
        return f"in {hook} {order[0].name} {ORDER}after {others}, and so runs first"
    return f"in {hook} what {ORDER}last was {', before it '.join(dict.fromkeys(s.name for s in order))}"


def _outcomes(states: Sequence[PathState], hook: Hook) -> Hashable:
    """The outcomes of paths, regardless of the rules behind them. The mark is not used after POSTROUTING."""
    found: Counter[Hashable] = Counter()
    for m in states:
        mark = m.mark if hook is not Hook.POSTROUTING else 0
        found[m.ends, mark, m.done, m.ended, m.conditions] += m.share  # type: ignore[assignment]
    return frozenset(found.items())
