"""The journey of a packet that nobody has sent: hook after hook, with the routing between, as the kernel would do it.

What a rule leaves to chance, or what cannot be computed, parts it into several stories. Each is a Packet like one that was
traced, with every hop `derived`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from ipaddress import ip_address

from tracer.explain.ipvs import Virtual
from tracer.explain.question import WITH_PORTS, Question
from tracer.explain.sets import Sets
from tracer.explain.stations import Station, stations
from tracer.findings.node import Node
from tracer.model import Drop, Endpoints, Evidence, Flow, Hop, Nat, Packet, Socket
from tracer.routes import Route, Routes
from tracer.rules.installed import Installed
from tracer.rules.matches import Seen
from tracer.rules.model import Walk
from tracer.rules.predict import MOST, Rewrite, TooMany, Way
from tracer.verdict import judge

SYN = 2


@dataclass(frozen=True)
class Story:
    """One way that the packet may go. share: of all connections; doubts: on what it depends, a clause each."""

    packet: Packet
    share: Fraction
    doubts: tuple[str, ...]


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


@dataclass(frozen=True)
class _Moment:
    """A story so far. done: which ends are translated, or will not be any more. behind: tables that are taken to be asked
    later than another one of the same priority.
    """

    ends: Endpoints
    mark: int | None = 0
    hops: tuple[Hop, ...] = ()
    in_face: str = ""
    out_face: str = ""
    done: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    share: Fraction = Fraction(1)
    doubts: tuple[str, ...] = ()
    over: tuple[str, str] | None = None

    def end(self, sentence: str, outcome: str, *hops: Hop) -> _Moment:
        return replace(self, hops=(*self.hops, *hops), over=(sentence, outcome))


@dataclass
class Journey:
    """Answers questions about one node, at the moment that `installed` was read."""

    installed: Installed
    routes: Routes = field(default_factory=Routes)
    node: Node = field(default_factory=Node)
    virtual: Virtual = field(default_factory=Virtual)
    sets: Sets = field(default_factory=Sets)

    def stories(self, question: Question) -> list[Story]:
        """All ways that the packet may go, the likeliest first. Raises TooMany, NotUnderstood."""
        self._question = question
        self._stations = stations(self.installed, question.family)
        begun = _Moment(Endpoints(question.src, question.sport, question.dst, question.dport))
        sent = self.routes.is_local(question.src) and not question.arrives
        moments = self._sent(begun) if sent else self._arrived(begun)
        found = [self._story(m) for m in moments]
        return sorted(found, key=lambda s: (len(s.doubts), -s.share))

    def _story(self, moment: _Moment) -> Story:
        q = self._question
        src, dst = Endpoints(q.src, q.sport, q.dst, q.dport), moment.ends
        name = {"icmpv6": "ICMPv6"}.get(q.protocol, q.protocol.upper())
        first = next((h.in_iface for h in moment.hops if h.hook), "")
        packet = Packet(
            0, 0, "node", first, "IPv6" if q.family == "ip6" else "IPv4", name, src, "SYN" if q.protocol == "tcp" else "",
            flow=Flow(src, dst.reversed, "NEW", False, 0), hops=list(moment.hops),
        )  # fmt: skip
        packet.verdict, packet.outcome = moment.over or judge(packet)
        return Story(packet, moment.share, moment.doubts)

    # --- the two ways in

    def _arrived(self, begun: _Moment) -> list[_Moment]:
        face = self._question.arrives or self.routes.to(begun.ends.src).out
        out = []
        for m in self._hook("PREROUTING", replace(begun, in_face=face)):
            out += self._routed(m) if not m.over else [m]
        return out

    def _routed(self, m: _Moment) -> list[_Moment]:
        """The routing decision of a packet that came in."""
        mark = m.mark or 0
        route = self.routes.to(m.ends.dst, m.ends.src, m.in_face, mark)
        m = replace(m, hops=(*m.hops, _routing(route, m)))
        if route.kind == "local":
            return self._delivered(m)
        if route.kind != "unicast":
            return [_refused(m, route)]
        setting = "net/ipv6/conf/all/forwarding" if ":" in m.ends.dst else "net/ipv4/ip_forward"
        if self.node.setting(setting) == "0":
            return [m.end(f"dropped: {setting.replace('/', '.')} is 0", "dropped")]
        out = []
        for forwarded in self._hook("FORWARD", replace(m, out_face=route.out)):
            out += self._left(forwarded) if not forwarded.over else [forwarded]
        return out

    def _sent(self, begun: _Moment) -> list[_Moment]:
        route = self.routes.to(begun.ends.dst)
        begun = replace(begun, out_face=route.out, hops=(_routing(route, begun),))
        if route.kind not in ("unicast", "local"):
            return [_refused(begun, route)]
        out = []
        for m in self._hook("OUTPUT", begun):
            if m.over:
                out.append(m)
                continue
            if m.ends.dst != begun.ends.dst:
                # A packet whose destination changed is routed anew (ip_route_me_harder).
                route = self.routes.to(m.ends.dst, mark=m.mark or 0)
                m = replace(m, out_face=route.out, hops=(*m.hops, _routing(route, m)))
                if route.kind not in ("unicast", "local"):
                    out.append(_refused(m, route))
                    continue
            out += self._left(m)
        return out

    # --- the two ways out

    def _left(self, m: _Moment) -> list[_Moment]:
        """POSTROUTING; what leaves by the loopback comes in again, and its translations are made."""
        out = []
        for each in self._hook("POSTROUTING", m):
            if each.over or not self.routes.is_local(each.ends.dst) or m.in_face:
                out.append(each)
                continue
            back = replace(each, in_face="lo", out_face="", done=frozenset({"dst", "src"}))
            for again in self._hook("PREROUTING", back):
                out += self._delivered(again) if not again.over else [again]
        return out

    def _delivered(self, m: _Moment) -> list[_Moment]:
        out = []
        for each in self._hook("INPUT", replace(m, out_face="")):
            out.append(each if each.over else self._socket(each))
        return out

    def _socket(self, m: _Moment) -> _Moment:
        """Who takes it: IPVS, a process that listens, or nobody."""
        q, ends = self._question, m.ends
        if self.virtual.at(ends.dst, ends.dport, q.protocol):
            return m.end(f"taken over in INPUT by IPVS, virtual server {ends.dst}:{ends.dport}: which real server is not"
                         f" computed", "unknown")  # fmt: skip
        if q.protocol not in WITH_PORTS:
            return m
        if q.protocol == "sctp":
            return m.end("accepted in INPUT; who listens for SCTP is not known", "unknown")
        listener = self.node.listener(ends.dst, ends.dport, q.protocol)
        if not listener:
            drop = Hop(0, "drop", "node", evidence=Evidence.DERIVED, drop=Drop("NO_SOCKET", ""))
            return replace(m, hops=(*m.hops, drop))
        socket = Socket(0, "LISTEN" if q.protocol == "tcp" else "", listener.pid, listener.command)
        return replace(m, hops=(*m.hops, Hop(0, "socket", "node", evidence=Evidence.DERIVED, socket=socket)))

    # --- one hook

    def _hook(self, hook: str, begun: _Moment) -> list[_Moment]:
        """The stories behind a hook."""
        moments = [begun]
        for station in self._stations[hook]:
            following: list[_Moment] = []
            for m in moments:
                following += [m] if m.over or station.translates in m.done else self._station(hook, station, m)
            moments = following
            if len(moments) > MOST:
                raise TooMany(f"more than {MOST} ways")
        return [m if m.over else _passed(m, hook) for m in moments]

    def _station(self, hook: str, station: Station, m: _Moment) -> list[_Moment]:
        out: list[_Moment] = []
        ways = self._ways(station, m)
        rival = self._rival(hook, station, m) if any(w.rewrite for w in ways) else ""
        if rival and rival not in m.behind:
            first, second = _asked_before(rival, station.table), _asked_before(station.table, rival)
            out.append(replace(m, behind=m.behind | {station.table}, doubts=(*m.doubts, first)))
            m = replace(m, doubts=(*m.doubts, second))
        return [self._after(hook, station, way, m) for way in ways] + out

    def _ways(self, station: Station, m: _Moment) -> list[Way]:
        translated = any(h.nat and h.nat.kind == "DNAT" for h in m.hops)
        states = frozenset({"NEW", "DNAT"} if translated else {"NEW"})
        return station.ways(self._seen(m), bool(m.ends.sport), _World(self.routes, self.sets, states))

    def _rival(self, hook: str, station: Station, m: _Moment) -> str:
        """The table of another nat chain at the same priority that would translate this packet too, "" = none: which one is
        asked first is not to be read from the rules.
        """
        if not station.translates or station.what != "chain":
            return ""
        for other in self._stations[hook]:
            same = other is not station and (other.priority, other.translates) == (station.priority, station.translates)
            if same and other.table != station.table and any(w.rewrite for w in self._ways(other, m)):
                return other.table
        return ""

    def _seen(self, m: _Moment) -> Seen:
        q, ends = self._question, m.ends
        src, dst = int(ip_address(ends.src)), int(ip_address(ends.dst))
        icmp = (128 if q.protocol == "icmpv6" else 8, 0) if q.protocol.startswith("icmp") else (0, 0)
        flags = SYN if q.protocol == "tcp" else 0
        arrives, leaves = (int.from_bytes(name.encode().ljust(16, b"\0"), "big") for name in (m.in_face, m.out_face))
        return Seen(q.family, src, dst, arrives, leaves, q.number, False, ends.sport, ends.dport, icmp, flags, m.mark)

    def _after(self, hook: str, station: Station, way: Way, m: _Moment) -> _Moment:
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

    def _translated(self, m: _Moment, hook: str, station: Station, rewrite: Rewrite, walk: Walk) -> _Moment:
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


def _asked_before(one: str, other: str) -> str:
    return f"{one} is asked before {other}: their chains have one priority, and the one registered last is the first"


def _passed(m: _Moment, hook: str) -> _Moment:
    end = Hop(0, "hook", "node", hook, verdict="ACCEPT", evidence=Evidence.DERIVED, in_iface=m.in_face, out_iface=m.out_face)
    return replace(m, hops=(*m.hops, end))


def _routing(route: Route, m: _Moment) -> Hop:
    return Hop(0, "route", "node", verdict=route.text or "not known", evidence=Evidence.DERIVED,
               in_iface=m.in_face, out_iface=route.out)  # fmt: skip


def _refused(m: _Moment, route: Route) -> _Moment:
    """No way out: what becomes of it then."""
    told = {
        "martian": "dropped by the routing: its source cannot come in there (rp_filter, or an address of no machine)",
        "blackhole": "dropped by the routing: a blackhole, or an address that cannot come in there",
        "broadcast": "a broadcast: not followed", "multicast": "a multicast: not followed", "": "the routing is not known",
    }  # fmt: skip
    outcome = "unknown" if route.kind in ("", "broadcast", "multicast") else "dropped"
    return m.end(told.get(route.kind, f"dropped by the routing: {route.kind}"), outcome)
