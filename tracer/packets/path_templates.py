# SPDX-License-Identifier: Apache-2.0
"""Explains packets that take the path of an earlier packet by filling in their own values.

The first packet of a path is explained from its events and leaves a template. A later packet with the same signature
(path_signature.py) is equal to it except for its values, if everything agrees that the explanation takes from elsewhere: names
of namespaces and kernel functions, owners of sockets, rules behind translations, keys in verdict maps, and the answers of
matches that compare its ports. These are looked up for each packet. Any change of what is known of rules drops all templates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tracer.events import record
from tracer.events.decision_detail import TSVAL
from tracer.events.nft_trace import NftHit
from tracer.events.record import Event, EventRow, Flag, Kind
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import DecisionDetail, DetailHop, DropHop, IpvsHop, RewriteHop, RuleHop, Socket, SocketHop
from tracer.model.packet import Packet
from tracer.model.rule import RuleTrace
from tracer.packets.hop_builder import HopBuilder, SocketUse
from tracer.packets.open_packet import OpenPacket
from tracer.packets.outcome import BAD
from tracer.packets.path_signature import PathSignature
from tracer.packets.shared_packet import ConnectionPath, RowPlaces, SharedPacket
from tracer.packets.shared_path import EndpointsPattern, HopPattern, Ports, SharedPath, place_of
from tracer.rules.rule_resolver import ResolvedRules, RuleResolver, RulesKey, TranslationUse, rules_key
from tracer.util.evictions import evictions
from tracer.util.frozen import evolve
from tracer.util.lru_dict import LruDict

PATHS_KEPT = 2048
"""Most signatures kept with their templates; the least recently used one is evicted first."""
VARIANTS_KEPT = 64
"""Most templates of one signature, which differ in what was looked up. Beyond that packets are explained on their own."""
TEMPLATES_KEPT = 8192
"""Most templates; when there would be more, all are dropped."""

CONNECTIONS_KEPT = 4096
"""Most pairs of a signature and a connection of which is kept what their packets have in common; it is found again."""
PORT_RANGES_KEPT = 256
"""Most ranges that the chosen ports of one signature are compared with. Beyond that packets are explained on their own."""


LISTEN = "LISTEN"
"""State of a listening socket."""
_SocketOwner = tuple[int, str, Evidence, bool]
"""Pid and command of the process that holds a socket, how that is known, and whether the socket has an inode."""


class _Use(NamedTuple):
    """A use of a translation, and where its values come from.

    Attributes:
        use: The use in the packet that was explained.
        time: Place of its time among the times of the packet's rows.
        ports: Places of the ports of the original tuple and of the translated end among the chosen ports, -1 = not chosen.
    """

    use: TranslationUse
    time: int
    ports: tuple[int, int, int]

    def fill(self, ports: Ports) -> TranslationUse:
        """The use in a packet with these ports; its time is that of the packet that was explained."""
        use, (source, destination, to) = self.use, self.ports
        is_destination, netns, zone, protocol, src, sport, dst, dport = use.side
        sport = sport if source < 0 else ports[source]
        dport = dport if destination < 0 else ports[destination]
        translated = use.to if to < 0 else (use.to[0], ports[to])
        side = (is_destination, netns, zone, protocol, src, sport, dst, dport)
        return TranslationUse(side, translated, use.time, use.decided, use.is_new)


class _SocketPlace(NamedTuple):
    """A socket that received the packet.

    Attributes:
        use: The socket in the packet that was explained.
        row: Place of its row.
        port: Place of its port among the chosen ports, -1 = not chosen.
    """

    use: SocketUse
    row: int
    port: int


@dataclass(eq=False)
class PathTemplate:
    """A packet that was explained.

    Attributes:
        packet: The packet.
        path: Its hops.
        endpoints: Its endpoints.
        flow: The original and the reply tuple of its connection.
        rows: Places among its rows.
        tracked: Inodes of the namespaces that track it.
        rules: Rules behind its translations.
    """

    packet: Packet
    path: SharedPath
    endpoints: EndpointsPattern
    flow: tuple[EndpointsPattern, EndpointsPattern]
    rows: RowPlaces
    tracked: tuple[int, ...]
    rules: tuple[ResolvedRules, ...]

    def way(self, ports: Ports) -> ConnectionPath:
        """What packets with these chosen ports have in common."""
        assert self.packet.flow
        orig, reply = self.flow
        flow = evolve(self.packet.flow, orig=orig.fill(ports), reply=reply.fill(ports))
        sample = evolve(self.packet, endpoints=self.endpoints.fill(ports), flow=flow)
        return ConnectionPath(sample, self.path, ports, self.rows)


@dataclass(eq=False)
class _Variant:
    """Packets of one signature for which names, sockets and keys of maps agree.

    Attributes:
        uses: What they do with translations.
        templates: Templates by the identities of the rules behind these translations, which the templates keep.
    """

    uses: tuple[_Use, ...]
    templates: dict[RulesKey, PathTemplate] = field(default_factory=dict)


class _PortRange(NamedTuple):
    """A range of ports that a chosen port was compared with. port: its place among the chosen ports."""

    port: int
    low: int
    high: int


@dataclass(eq=False)
class _Group:
    """Packets of one signature.

    Attributes:
        key: Their signature.
        namespaces: Inodes of the namespaces in their rows, and how often explaining a packet asks for their names.
        functions: Addresses of kernel functions in their rows.
        sockets: Sockets that received them.
        details: Places of the rows of decision details.
        keys: For each rule that looked up a map: place of its row, begin and end of the key in the registers.
        untracked: Namespace where the packet had no conntrack entry, 0 = it had one.
        tested: Ranges that computed matches of legacy tables compare chosen ports with.
        variants: By what was looked up.
    """

    key: bytes
    namespaces: tuple[tuple[int, int], ...]
    functions: tuple[int, ...]
    sockets: tuple[_SocketPlace, ...]
    details: tuple[int, ...]
    keys: tuple[tuple[int, int, int], ...]
    untracked: int
    tested: tuple[_PortRange, ...] = ()
    variants: dict[Hashable, _Variant] = field(default_factory=dict)


@dataclass(eq=False)
class _GroupConnection:
    """Packets of one signature and one connection.

    Attributes:
        variant: Those of them for which names, sockets and keys of maps agree.
        uses: What they do with translations, with the place of the time of each.
        version: Version of the answers by which `variant` was found; None = it has to be found for each packet.
        sockets: Inodes of the sockets that received the packet for which it was found.
        ways: Their template and what they have in common, by the identities of the rules behind their translations.
    """

    variant: _Variant
    uses: tuple[tuple[TranslationUse, int], ...]
    version: int | None
    sockets: tuple[int, ...]
    ways: dict[RulesKey, tuple[PathTemplate, ConnectionPath]] = field(default_factory=dict)


class PathTemplates:
    """The templates of a run.

    Args:
        hops: Looks up names and sockets.
        rules: Looks up rules.
        tracked: Namespaces (inodes) known to use conntrack.
        wall_offset: Added to CLOCK_MONOTONIC to get ns since the epoch.
    """

    def __init__(self, hops: HopBuilder, rules: RuleResolver, tracked: LruDict[int, None], wall_offset: int) -> None:
        self._hops, self._rules, self._tracked, self._offset = hops, rules, tracked, wall_offset
        self._groups: LruDict[tuple[bytes, bytes], _Group] = LruDict(PATHS_KEPT, "paths of packets")
        self._connections: LruDict[tuple[_Group, Ports], _GroupConnection] = LruDict(CONNECTIONS_KEPT, "connections on paths")
        self._changes, self._count = rules.changes, 0
        self._version: int | None = None
        self._replaced_at, self._touched = 0, tuple[int, ...]()

    def refresh(self) -> None:
        """Takes what is known now. Call it before packets are looked up, and again when one was explained meanwhile."""
        rules = self._rules
        if rules.changes != self._changes:
            self._clear()
        self._replaced_at, self._version, self._touched = rules.tables_replaced_at, self._hops.version, ()

    def find(self, identity: int, packet: OpenPacket, signature: PathSignature) -> SharedPacket | None:
        """Finds the template of a packet; None = it has none. All side effects are those of explaining it on its own."""
        key, digest, ports, header, values, start, order = signature
        group = self._groups.get((digest, self._rules.fingerprint(identity)))
        times = values.time[start : start + len(order)]
        if group is None or group.key != key or times[0] <= self._replaced_at:
            return None
        details = tuple([packet.detail(order[at]) for at in group.details]) if group.details else ()
        sockets = tuple([values.object.item(start + place.row) for place in group.sockets]) if group.sockets else ()
        connection = self._connection(group, packet, signature, sockets, details)
        found = self._way(connection, identity, times, ports) if connection else None
        if found is None:
            self._hops.lookups.settle()
            return None
        template, way = found
        if template.tracked != self._touched:
            self._tracked.update(dict.fromkeys(template.tracked))
            self._touched = template.tracked
        return SharedPacket(identity, way, times[way.rows.began] + self._offset, times, sockets, details, header)

    def _connection(
        self,
        group: _Group,
        packet: OpenPacket,
        signature: PathSignature,
        inodes: tuple[int, ...],
        details: tuple[DecisionDetail, ...],
    ) -> _GroupConnection | None:
        """What is known of packets of this group and connection, if the same is looked up for this packet; None = nothing."""
        ports, version = signature.ports, self._version
        known = self._connections.get((group, ports))
        if known and version is not None and known.version == version and known.sockets == inodes:
            return known
        looked_up, is_lasting = self._looked_up(group, packet, signature, inodes, details)
        if group.sockets:
            self._version = self._hops.version  # a listener may have been noted
        variant = group.variants.get(looked_up)
        if variant is None:
            return None
        if known is None or known.variant is not variant:
            uses = tuple([(use.fill(ports), use.time) for use in variant.uses])
            known = self._connections[group, ports] = _GroupConnection(variant, uses, None, ())
        known.version, known.sockets = version if is_lasting else None, inodes
        return known

    def _way(
        self, connection: _GroupConnection, identity: int, times: Sequence[int], ports: Ports
    ) -> tuple[PathTemplate, ConnectionPath] | None:
        """Does what the packet does with translations. Returns its template for the rules behind them, None = none."""
        name = self._rules.repeat(connection.uses, times, identity) if connection.uses else ()
        found = connection.ways.get(name)
        if found is None:
            template = connection.variant.templates.get(name)
            if template is None:
                return None
            found = connection.ways[name] = template, template.way(ports)
        return found

    def keep(
        self, identity: int, opened: OpenPacket, signature: PathSignature, packet: Packet, events: Sequence[Event]
    ) -> None:
        """Keeps a packet that was explained on its own as a template, if its kind allows it.

        Args:
            identity: Identity of the packet.
            opened: Its rows.
            signature: Its signature.
            packet: The packet with its outcome.
            events: Its events, completed, in order.
        """
        rows = sorted(opened.events, key=lambda e: e.time)
        if self._rules.changes != self._changes or rows[0].time <= self._rules.tables_replaced_at:
            return
        uses, rules = [use for use, _ in self._rules.uses], tuple(resolved for _, resolved in self._rules.uses)
        lookups = self._hops.lookups
        lookups.settle()
        if not (
            lookups.is_consistent and _is_template(packet, signature.ports) and _begins_whole(rows) and _is_repeatable(uses)
        ):
            return
        keys = self._rules.map_keys([row for row in rows if isinstance(row, NftHit)])
        if keys is None:
            return
        group = self._group_of(signature, self._rules.fingerprint(identity), rows, keys, events)
        if group is None:
            return
        looked_up = self._seen(group, opened, signature, packet)
        times = [row.time for row in rows]
        variant = group.variants.get(looked_up)
        if variant is None:
            if len(group.variants) >= VARIANTS_KEPT:
                return
            variant = group.variants[looked_up] = _Variant(tuple(_use(use, times, signature.ports) for use in uses))
        elif not _is_same_use(variant.uses, uses):
            return
        if len(variant.templates) < VARIANTS_KEPT:
            variant.templates[rules_key(rules)] = _template(packet, rows, events, signature.ports, rules)
            self._count += 1
        if self._count >= TEMPLATES_KEPT:
            evictions.add("templates of packets", self._count)
            self._clear()

    def _clear(self) -> None:
        self._groups.clear()
        self._connections.clear()
        self._changes, self._count = self._rules.changes, 0

    def _group_of(
        self,
        signature: PathSignature,
        fingerprint: bytes,
        rows: Sequence[EventRow],
        keys: Sequence[tuple[NftHit, int, int]],
        events: Sequence[Event],
    ) -> _Group | None:
        """The group of a packet that was explained last, which may be new; None = it may have none."""
        name, ports = (signature.digest, fingerprint), signature.ports
        tested = {
            _PortRange(place_of(t.port, ports), t.low, t.high) for t in self._rules.tested_ports if place_of(t.port, ports) >= 0
        }
        group = self._groups.get(name)
        if group is None or group.key != signature.key:
            sockets = [e for e in events if e.kind == Kind.EVENT_SOCKET]
            if len(sockets) > 1 and any(record.TCP_STATES[e.state : e.state + 1] == ("LISTEN",) for e in sockets):
                return None  # a listener that was noted at one of them may be the owner of another
            group = self._groups[name] = self._group(signature.key, rows, keys, events, ports)
        if not tested.issubset(group.tested):
            if len(tested.union(group.tested)) > PORT_RANGES_KEPT:
                return None
            # Templates without the new ranges are dropped: they would also hold for packets that the new tests tell apart.
            group.variants.clear()
            self._connections.clear()
            group.tested = tuple(sorted(tested.union(group.tested)))
        return group

    def _group(
        self,
        key: bytes,
        rows: Sequence[EventRow],
        keys: Sequence[tuple[NftHit, int, int]],
        events: Sequence[Event],
        ports: Ports,
    ) -> _Group:
        places = {id(row): at for at, row in enumerate(rows)}
        at_socket = [row for row in rows if isinstance(row, Event) and row.kind == Kind.EVENT_SOCKET]
        completed = [e for e in events if e.kind == Kind.EVENT_SOCKET]
        sockets = []
        for row, e in zip(at_socket, completed, strict=True):
            use = self._hops.socket_use(e)
            sockets.append(_SocketPlace(use, places[id(row)], place_of(use.port, ports)))
        late = untracked_at(events)
        requests = Counter(e.netns for e in events)
        requests[next(e for e in events if e.flags & Flag.FLAG_HAS_CT and not e.flags & Flag.FLAG_NO_HEADER).netns] += 1
        return _Group(
            key,
            tuple(requests.items()),
            tuple(e.object for e in events if e.kind == Kind.EVENT_DROP),
            tuple(sockets),
            tuple(at for at, row in enumerate(rows) if row.kind == Kind.EVENT_CLUE),
            tuple((places[id(hit)], start, end) for hit, start, end in keys),
            late.netns if late and late.ct_info != record.UNTRACKED else 0,
        )

    def _looked_up(
        self,
        group: _Group,
        opened: OpenPacket,
        signature: PathSignature,
        inodes: Sequence[int],
        details: Sequence[DecisionDetail],
    ) -> tuple[Hashable, bool]:
        """What a packet's explanation looks up outside of its rows, besides rules of translations: asks for it.

        Returns:
            It, and whether it is the same for all packets of this group, connection and sockets until an answer changes.
        """
        sockets = [self._owner(place, inode, signature.ports) for place, inode in zip(group.sockets, inodes, strict=True)]
        # A listener is noted each time, for sockets without a process.
        is_listening = any([place.use.state == LISTEN for place in group.sockets])
        is_lasting = not (group.details or group.keys or group.untracked or is_listening)
        return self._key(group, opened, signature, details, tuple(sockets)), is_lasting

    def _seen(self, group: _Group, opened: OpenPacket, signature: PathSignature, packet: Packet) -> Hashable:
        """The same of a packet that was explained: with the answers that are in it."""
        details = [hop.detail for hop in packet.hops if isinstance(hop, DetailHop)]
        sockets = [_seen_owner(hop.socket, hop.evidence) for hop in packet.hops if isinstance(hop, SocketHop)]
        return self._key(group, opened, signature, details, tuple(sockets))

    def _key(
        self,
        group: _Group,
        opened: OpenPacket,
        signature: PathSignature,
        details: Sequence[DecisionDetail],
        sockets: tuple[Hashable, ...],
    ) -> Hashable:
        lookups, ports = self._hops.lookups, signature.ports
        names = lookups.names(group.namespaces)
        functions = tuple([lookups.function(address) for address in group.functions]) if group.functions else ()
        keys: tuple[bytes, ...] = ()
        if group.keys:
            keys = tuple([opened.registers(signature.order[at])[start:end] for at, start, end in group.keys])
        # The facts in their order, because outputs show them in it.
        facts = tuple(
            [(d.what, *((n, v if n != TSVAL else None) for n, v in d.facts.items())) for d in details] if details else ()
        )
        tests = tuple([t.low <= ports[t.port] <= t.high for t in group.tested]) if group.tested else ()
        return names, functions, sockets, keys, facts, tests, bool(group.untracked) and group.untracked in self._tracked

    def _owner(self, place: _SocketPlace, inode: int, ports: Ports) -> _SocketOwner:
        _, state, netns, address, port = place.use
        use = SocketUse(inode, state, netns, address, port if place.port < 0 else ports[place.port])
        return _seen_owner(*self._hops.find_socket(use))


def untracked_at(events: Sequence[Event]) -> Event | None:
    """The last event after PREROUTING, if the packet had no conntrack entry there."""
    late = [e for e in events if e.kind in (Kind.EVENT_HOOK, Kind.EVENT_TABLE, Kind.EVENT_CHAIN) and e.hook in (1, 2, 4)]
    late = [e for e in late if not e.flags & Flag.FLAG_NO_HEADER and e.pf not in (record.NETDEV, record.BRIDGE)]
    return late[-1] if late and not late[-1].flags & Flag.FLAG_HAS_CT else None


def _is_template(packet: Packet, ports: Ports) -> bool:
    """Whether packets with the same signature as this one are equal to it except for their values."""
    if not packet.complete or packet.continues or packet.raw or packet.flow is None or packet.outcome in BAD:
        return False
    if any(str(port) in packet.verdict for port in ports if port):
        return False
    if any(isinstance(h, DropHop) and h.drop.program for h in packet.hops):
        return False
    return not any(isinstance(h, IpvsHop) or (isinstance(h, RuleHop) and _is_undecided(h.rule_trace)) for h in packet.hops)


def _begins_whole(rows: Sequence[EventRow]) -> bool:
    """Whether the first event has a header of its own."""
    first = next((row for row in rows if isinstance(row, Event) and row.kind != Kind.EVENT_CLUE), None)
    return first is not None and not first.flags & (Flag.FLAG_SAME | Flag.FLAG_NO_HEADER)


def _is_repeatable(uses: Sequence[TranslationUse]) -> bool:
    """Whether a packet may do twice what it does with translations: as a packet that is looked up and then explained.

    The second time would meet a translation that the packet itself decided after it had used an earlier one.
    """
    firsts: dict[Hashable, TranslationUse] = {}
    for use in uses:
        first = firsts.setdefault(use.side, use)
        if first is not use and (use.decided or (not first.decided and first.is_new != use.is_new)):
            return False
    return True


def _is_same_use(before: Sequence[_Use], uses: Sequence[TranslationUse]) -> bool:
    """Whether the same rules decide the translations of two packets."""
    decided = [(a.use.decided, b.decided) for a, b in zip(before, uses, strict=False)]
    return len(before) == len(uses) and all(
        a is b or (a is not None and b is not None and a == b and a.ruleset is b.ruleset) for a, b in decided
    )


def _seen_owner(socket: Socket, evidence: Evidence) -> _SocketOwner:
    return socket.pid, socket.command, evidence, bool(socket.inode)


def _is_undecided(trace: RuleTrace | None) -> bool:
    return bool(trace and trace.undecided)


def _template(
    packet: Packet, rows: Sequence[EventRow], events: Sequence[Event], ports: Ports, rules: tuple[ResolvedRules, ...]
) -> PathTemplate:
    assert packet.flow
    times = [row.time for row in rows]
    own = [at for at, row in enumerate(rows) if isinstance(row, Event)]
    with_header = next(at for at in own if not rows[at].flags & Flag.FLAG_NO_HEADER)
    return PathTemplate(
        packet,
        _path(packet, times, ports),
        EndpointsPattern.of(packet.endpoints, ports),
        (EndpointsPattern.of(packet.flow.orig, ports), EndpointsPattern.of(packet.flow.reply, ports)),
        RowPlaces(own[0], tuple(sorted({with_header, *_completing(rows, own)}))),
        tuple(dict.fromkeys(e.netns for e in events if e.flags & Flag.FLAG_HAS_CT and not e.flags & Flag.FLAG_NO_HEADER)),
        rules,
    )


def _completing(rows: Sequence[EventRow], own: Sequence[int]) -> Sequence[int]:
    """Places of the last whole event and of the rewrites after it: they give the header that a late short event refers to."""
    last = max(at for at in own if not rows[at].flags & (Flag.FLAG_SAME | Flag.FLAG_NO_HEADER))
    return [at for at in own if at == last or (at > last and rows[at].kind == Kind.EVENT_NAT)]


def _path(packet: Packet, times: Sequence[int], ports: Ports) -> SharedPath:
    ends: dict[Endpoints, int] = {}
    hops = []
    socket = detail = -1
    for hop in packet.hops:
        before = after = -1
        if isinstance(hop, RewriteHop):
            patterns = [EndpointsPattern.of(each, ports) for each in (hop.nat.before, hop.nat.after)]
            if any(p.source >= 0 or p.destination >= 0 for p in patterns):
                before, after = (ends.setdefault(p.ends, len(ends)) for p in patterns)
        socket += isinstance(hop, SocketHop)
        detail += isinstance(hop, DetailHop)
        hops.append(HopPattern(hop, times.index(hop.time), before, after, socket, detail))
    return SharedPath(tuple(hops), tuple(EndpointsPattern.of(each, ports) for each in ends))


def _use(use: TranslationUse, times: Sequence[int], ports: Ports) -> _Use:
    source, destination, to = (place_of(port, ports) for port in (use.side[5], use.side[7], use.to[1]))
    return _Use(use, times.index(use.time), (source, destination, to))
