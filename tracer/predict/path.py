# SPDX-License-Identifier: Apache-2.0
"""Predicts the path of a packet through the node: hook after hook, with the routing decisions between, as in the kernel.

The packet comes in by an interface or from a process, and ends at an interface, a socket, IPVS, or where it is dropped. Each
predicted path is a Packet like a traced one, with every hop `derived`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import Drop, DropHop, IpvsDecision, IpvsRefusalHop, RouteHop, Socket, SocketHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Outcome, Packet
from tracer.model.prediction import PathState, PredictedPath
from tracer.node.node import HostReader
from tracer.node.routes import Route, Routes
from tracer.packets.outcome import classify
from tracer.predict import bridging
from tracer.predict.hook_entries import HookEntry, hook_entries
from tracer.predict.hooks import HookSimulator
from tracer.predict.ipsets import IpSetReader
from tracer.predict.ipvs import VirtualServers
from tracer.predict.merge import finished, merged, notes
from tracer.predict.query import WITH_PORTS, PathQuery
from tracer.rules.inventory import RuleInventory
from tracer.util.endpoint_format import format_endpoint
from tracer.util.frozen import evolve

LOCAL_REQUEST, REMOTE_REQUEST = -98, 98
"""Priorities of IPVS in OUTPUT and INPUT: after the translation of destinations, and before that of sources (ip_vs_ops4 in
net/netfilter/ipvs/ip_vs_core.c)."""


@dataclass
class PathPredictor:
    """Predicts paths through one node, with the rules in force when `installed` was read.

    Attributes:
        installed: The rules.
        routes: The node's routes.
        node: The node's settings and sockets.
        virtual: The virtual servers of IPVS.
        sets: The ipsets.
    """

    installed: RuleInventory
    routes: Routes = field(default_factory=Routes)
    node: HostReader = field(default_factory=HostReader)
    virtual: VirtualServers = field(default_factory=VirtualServers)
    sets: IpSetReader = field(default_factory=IpSetReader)
    _entries: dict[str, dict[Hook, list[HookEntry]]] = field(default_factory=dict, init=False)

    def predict(self, query: PathQuery) -> list[PredictedPath]:
        """Predicts all paths of a packet.

        Returns:
            The paths, those with the fewest conditions and the largest share first.

        Raises:
            TooManyPaths: There are too many paths.
            UnknownOption: A rule could not be parsed.
        """
        self._query = query
        if query.family not in self._entries:
            self._entries[query.family] = hook_entries(self.installed, query.family)
        self._bridges = bridging.seen_bridges(self.node, self.routes.links(), query.family)
        self._hooks = HookSimulator(query, self._entries[query.family], self.routes, self.sets, self._bridges)
        begun = PathState(Endpoints(query.src, query.sport, query.dst, query.dport))
        sent = self.routes.is_local(query.src) and not query.arrives
        states = self._sent(begun) if sent else self._arrived(begun)
        found = [self._predicted(m) for m in merged([finished(m) for m in states])]
        return sorted(found, key=lambda s: (len(s.conditions), -s.share))

    def _predicted(self, state: PathState) -> PredictedPath:
        q = self._query
        src, dst = Endpoints(q.src, q.sport, q.dst, q.dport), state.ends
        name = {"icmpv6": "ICMPv6"}.get(q.protocol, q.protocol.upper())
        first = next((h.in_iface for h in state.hops if h.hook), "")
        packet = Packet(
            0, 0, HOST, first, "IPv6" if q.family == "ip6" else "IPv4", name, src, "SYN" if q.protocol == "tcp" else "",
            flow=Flow(src, dst.reversed, "NEW", False, 0), hops=state.hops,
        )  # fmt: skip
        verdict, outcome = state.ended or classify(packet)
        packet = evolve(packet, verdict=verdict, outcome=outcome)
        conditions = tuple(d.text for d in state.conditions)
        twins = tuple(self._predicted(twin) for _, twin in state.twins)
        return PredictedPath(packet, state.share, conditions, self._hooks.loose, notes(state), twins)

    # --- packets that come in, and packets of the node

    def _arrived(self, state: PathState) -> list[PathState]:
        face = self._query.arrives or self.routes.to(state.ends.src).out
        state = replace(state, in_iface=face)
        fork = bridging.fork(state, self.routes.to(state.ends.dst), self.routes.links())
        if not fork or (face in self._bridges and not self._forwarding_off(state)):  # the same rules on both paths
            return self._came_in(state, self._routed)
        bridged, routed = fork
        if face not in self._bridges:
            return [bridged.end_with(f"forwarded to {face}", Outcome.FORWARDED), *self._came_in(routed, self._routed)]
        return [*self._came_in(bridged, self._bridged), *self._came_in(routed, self._routed)]

    def _came_in(self, state: PathState, follow: Callable[[PathState], list[PathState]]) -> list[PathState]:
        """PREROUTING, and what follows it."""
        out = []
        for m in self._hooks.through(Hook.PREROUTING, state):
            out += follow(m) if not m.ended else [m]
        return out

    def _bridged(self, m: PathState) -> list[PathState]:
        """A packet that the bridge forwards and the IP hooks see. If a rule has changed its destination, it is routed."""
        return self._routed(m) if m.ends.dst != self._query.dst else self._forwarded(m)

    def _forwarding_off(self, m: PathState) -> str:
        """The setting that is 0, "" if none is."""
        setting = "net/ipv6/conf/all/forwarding" if ":" in m.ends.dst else "net/ipv4/ip_forward"
        return setting if self.node.setting(setting) == "0" else ""

    def _routed(self, m: PathState) -> list[PathState]:
        """The routing decision of a packet that came in."""
        mark = m.mark or 0
        route = self.routes.to(m.ends.dst, m.ends.src, m.in_iface, mark)
        m = replace(m, hops=(*m.hops, _routing(route, m)))
        if route.kind == "local":
            return self._delivered(m)
        if route.kind != "unicast":
            return [_refused(m, route)]
        if setting := self._forwarding_off(m):
            return [m.end_with(f"dropped: {setting.replace('/', '.')} is 0", Outcome.DROPPED)]
        return self._forwarded(replace(m, out_iface=route.out))

    def _forwarded(self, m: PathState) -> list[PathState]:
        """FORWARD and POSTROUTING."""
        out = []
        for forwarded in self._hooks.through(Hook.FORWARD, m):
            out += self._left(forwarded) if not forwarded.ended else [forwarded]
        return out

    def _sent(self, state: PathState) -> list[PathState]:
        route = self.routes.to(state.ends.dst)
        state = replace(state, out_iface=route.out, hops=(_routing(route, state),))
        if route.kind not in ("unicast", "local"):
            return [_refused(state, route)]
        out = []
        for m in self._by_ipvs(Hook.OUTPUT, LOCAL_REQUEST, state):
            if m.ended:
                out.append(m)
                continue
            if m.ends.dst != state.ends.dst:
                # A packet whose destination changed is routed anew (ip_route_me_harder).
                route = self.routes.to(m.ends.dst, mark=m.mark or 0)
                m = replace(m, out_iface=route.out, hops=(*m.hops, _routing(route, m)))
                if route.kind not in ("unicast", "local"):
                    out.append(_refused(m, route))
                    continue
            out += self._left(m)
        return out

    # --- packets that leave, and packets that are delivered

    def _left(self, m: PathState) -> list[PathState]:
        """POSTROUTING. A packet that leaves by the loopback comes in again, with its translations already made."""
        out = []
        for each in self._hooks.through(Hook.POSTROUTING, m):
            if each.ended or not self.routes.is_local(each.ends.dst) or m.in_iface:
                out.append(each)
                continue
            back = replace(each, in_iface="lo", out_iface="", done=frozenset({"dst", "src"}))
            for again in self._hooks.through(Hook.PREROUTING, back):
                out += self._delivered(again) if not again.ended else [again]
        return out

    def _delivered(self, m: PathState) -> list[PathState]:
        out = []
        for each in self._by_ipvs(Hook.INPUT, REMOTE_REQUEST, replace(m, out_iface="")):
            out.append(each if each.ended else self._socket(each))
        return out

    def _by_ipvs(self, hook: Hook, priority: float, state: PathState) -> list[PathState]:
        """The paths after a hook with IPVS among its chains. The chains before IPVS run first."""
        out = []
        for m in self._hooks.through(hook, state, (-inf, priority)):
            taken = m if m.ended else self._scheduled(hook, m)
            out += [taken] if taken.ended else self._hooks.through(hook, m, (priority, inf))
        return out

    def _scheduled(self, hook: Hook, m: PathState) -> PathState:
        """The end of the path if IPVS has a virtual server for the packet, else the path unchanged."""
        ends, protocol = m.ends, self._query.protocol
        real = self.virtual.real_servers(ends.dst, ends.dport, protocol)
        if real is None:
            return m
        server = f"virtual server {format_endpoint(ends.dst, ends.dport)}"
        if not real:
            decision = IpvsDecision(ends.dst, ends.dport, protocol)
            answer = "icmp6-port-unreachable" if ":" in ends.dst else "icmp-port-unreachable"
            hop = IpvsRefusalHop(0, HOST, hook, Evidence.DERIVED, decision=decision, verdict=Verdict.REJECT, reject=answer)
            return m.end_with(f"REJECTED by IPVS in {hook}: {server} has no real server", Outcome.REJECTED, hop)
        sentence = f"taken over in {hook} by IPVS, {server}: which real server is not computed, one of {', '.join(real)}"
        return m.end_with(sentence, Outcome.UNKNOWN)

    def _socket(self, m: PathState) -> PathState:
        """Delivers the packet to the listening process, or drops it if there is none."""
        q, ends = self._query, m.ends
        if q.protocol not in WITH_PORTS:
            return m
        if q.protocol == "sctp":
            return m.end_with("accepted in INPUT; the listener for SCTP is not known", Outcome.UNKNOWN)
        listener = self.node.listener(ends.dst, ends.dport, q.protocol)
        if not listener:
            drop = DropHop(0, HOST, evidence=Evidence.DERIVED, drop=Drop("NO_SOCKET", ""))
            return replace(m, hops=(*m.hops, drop))
        socket = Socket(0, "LISTEN" if q.protocol == "tcp" else "", listener.pid, listener.command)
        return replace(m, hops=(*m.hops, SocketHop(0, HOST, evidence=Evidence.DERIVED, socket=socket)))


def _routing(route: Route, m: PathState) -> RouteHop:
    return RouteHop(
        0, HOST, evidence=Evidence.DERIVED, in_iface=m.in_iface, out_iface=route.out, route=route.text or "not known"
    )


def _refused(m: PathState, route: Route) -> PathState:
    """The end of a path without a usable route."""
    sentences = {
        "martian": "dropped by the routing: its source cannot come in there (rp_filter, or an address of no machine)",
        "blackhole": "dropped by the routing: a blackhole, or an address that cannot come in there",
        "broadcast": "a broadcast: not followed", "multicast": "a multicast: not followed", "": "the routing is not known",
    }  # fmt: skip
    outcome = Outcome.UNKNOWN if route.kind in ("", "broadcast", "multicast") else Outcome.DROPPED
    return m.end_with(sentences.get(route.kind, f"dropped by the routing: {route.kind}"), outcome)
