# SPDX-License-Identifier: Apache-2.0
"""A process of the node listens on a port that is also a NodePort: it gets no requests from outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracer.audit import _needs, _traffic
from tracer.audit._ports import PortClaim, node_ports
from tracer.audit._senders import HERE, OUTSIDE, POD
from tracer.audit._traffic import BY_IPVS, TrafficPath
from tracer.audit.state import NodeState
from tracer.findings.nodeport_host_process import REFUSED_BY_IPVS, REFUSES, conflict
from tracer.kube.missing_endpoints import NONE_HERE
from tracer.model.finding import Finding
from tracer.model.hop import SocketHop, trace_of
from tracer.model.packet import Outcome
from tracer.node.node import ListeningSocket

_SENDS = "and its rule sends every request to one of the Service's pods"
_BY_IPVS = "and IPVS sends every request to one of the Service's pods"
_REFUSED = "which has no endpoints: every request is refused"
_BY_A_RULE = "and a rule {} every request, although the Service has endpoints"
_DROPS = "which has no local endpoints: the Service's rule drops every request"
_REACHES = "reaches the process"

NEEDS = (_needs.node_ports,)


def check(state: NodeState) -> Iterator[Finding]:
    for claim in node_ports(state):
        listener = _listener(state, claim.port, claim.protocol)
        if listener and not state.context.node.is_kube_proxy(listener.pid):
            yield from _findings(state, claim, listener)


def _findings(state: NodeState, claim: PortClaim, listener: ListeningSocket) -> Iterator[Finding]:
    """The finding with the predicted outcome of requests; none if all of them reach the process."""
    v6 = bool(claim.rule and claim.rule.family == "ip6")
    traffic = _traffic.at_port(state, claim.port, claim.protocol, "", v6)
    empty = not any(e.ready for e in state.cluster.store.endpoints.all((claim.owner.label, claim.protocol)))
    by_sender = {a.sender.name: {_fate(w, empty) for w in a.paths} for a in traffic}
    fates = set().union(*by_sender.values())
    if fates == {REFUSES, REFUSED_BY_IPVS}:
        # The node's own requests come to IPVS before they come to the filter table.
        by_sender = {name: {_REFUSED} for name in by_sender}
        fates = {_REFUSED}
    if fates == {_REACHES}:
        return
    others = sorted(fates - {_REACHES}) or [claim.fate]
    fate = others[0] if len(others) == 1 else claim.fate
    found = conflict(claim.owner, listener, claim.protocol, fate, [claim.shown], state.context)
    certain = bool(traffic) and len(others) == 1 and "" not in fates and all(len(f) == 1 for f in by_sender.values())
    reached = [_SENDER_CLAUSES[name] for name, f in by_sender.items() if _REACHES in f]
    if reached and found.certain and certain:
        yield replace(found, cause=found.cause.replace(_NEVER, f", and the process sees only those {' and '.join(reached)}."))
        return
    cause = found.cause if certain else found.cause.replace(_NEVER, ", and perhaps the process never sees any of them.")
    yield replace(found, cause=cause, certain=found.certain and certain)


_NEVER = ", and the process never sees any of them."
_SENDER_CLAUSES = {OUTSIDE: "from outside", HERE: "of the node itself", POD: "of pods"}


def _fate(path: TrafficPath, empty: bool) -> str:
    """The outcome of a request, as a clause; "" = another outcome. `empty`: whether no endpoint of the Service is known."""
    packet = path.predicted.packet
    if path.outcome == BY_IPVS:
        return _BY_IPVS
    if packet.outcome is Outcome.REJECTED:
        by_ipvs = "by IPVS" in packet.verdict
        return REFUSED_BY_IPVS if by_ipvs else REFUSES if empty else _BY_A_RULE.format("refuses")
    if packet.outcome is Outcome.DROPPED:
        hits = [hit for trace in map(trace_of, packet.hops) if trace for hit in trace.hits]
        is_local_drop = any(
            NONE_HERE in f"{hit.rule.comment if hit.rule else ''} {hit.element}" or hit.element.endswith(": drop")
            for hit in hits
        )
        return _DROPS if is_local_drop or empty else _BY_A_RULE.format("drops")
    if path.translated and path.owner and path.owner.kind == "Service":
        return _SENDS
    return _REACHES if any(isinstance(h, SocketHop) for h in packet.hops) and not path.translated else ""


def _listener(state: NodeState, port: int, protocol: str) -> ListeningSocket | None:
    """The socket that listens on the port at an address by which other machines reach the node."""
    addresses = sorted(a for a in state.cluster.local if not a.startswith("127.") and a != "::1")
    found = (state.context.node.listener(address, port, protocol) for address in addresses)
    return next(filter(None, found), None)
