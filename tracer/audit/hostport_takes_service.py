# SPDX-License-Identifier: Apache-2.0
"""A hostPort and a Service use the same port. The predictor shows which one gets the requests.

There are three cases: the port is also a NodePort; portmap's jump stands before kube-proxy's and does not test whether the
address is local (portmap before 0.7.5), so it takes that port of every machine; or it does test, and in ipvs mode every cluster
IP is local.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracer.audit import _needs, _traffic
from tracer.audit._ports import PortClaim, host_ports, node_ports
from tracer.audit._senders import HERE, OUTSIDE, POD, node_address, senders
from tracer.audit._traffic import PredictedTraffic, TrafficPath
from tracer.audit.state import NodeState
from tracer.findings import hostport_takes_service as finding
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.rule import Rule
from tracer.packets.outcome import BAD

_SERVICE, _POD, _NEITHER = "the Service", "the pod", "neither"

NEEDS = (_needs.node_ports,)


def check(state: NodeState) -> Iterator[Finding]:
    by_port = {(c.port, c.protocol): c for c in node_ports(state)}
    for host in host_ports(state):
        yield from _elsewhere(state, host)
        rival = by_port.get((host.port, host.protocol))
        if rival:
            yield _same_port(state, host, rival)


def _jumps(state: NodeState, host: PortClaim) -> tuple[Rule | None, Rule | None]:
    """portmap's and kube-proxy's jumps from PREROUTING, of the back end that has portmap's rule."""
    if not host.rule or not host.ruleset:
        return None, None
    rules = [r for r, of in state.rules("PREROUTING") if of is host.ruleset]
    rules = [r for r in rules if (r.family, r.table) == (host.rule.family, host.rule.table)]
    targets = ("CNI-HOSTPORT-DNAT", "KUBE-SERVICES")
    mine, kube = (next((r for r in rules if r.target == target), None) for target in targets)
    return mine, kube


def _receiver(path: TrafficPath) -> str:
    """The receiver of the request on this path."""
    owner = path.owner
    if path.translated and owner and owner.program == "portmap":
        return _POD
    if "by IPVS" in path.predicted.packet.verdict or (owner and owner.kind == "Service"):
        return _SERVICE
    return _NEITHER


def _same_port(state: NodeState, host: PortClaim, rival: PortClaim) -> Finding:
    pod, where = _pod(host), f"{host.protocol} {host.port}"
    traffic = _traffic.at_port(state, host.port, host.protocol, host.address, bool(host.rule and host.rule.family == "ip6"))
    fate, case, certain = _fate(state, host, traffic)
    shown = [host.shown, rival.shown, *_order(state, host, traffic, case)]
    return Finding(
        name="",
        key=(host.port, host.protocol, host.owner.label or host.target, rival.owner.label),
        cause=f"{where} of this node is both hostPort of {pod} and NodePort of Service {rival.owner.label}: {fate}.",
        proofs=tuple(shown),
        check=_check(state, host, case),
        cure=finding.cure(host.port, pod, case),
        certain=certain,
    )


def _check(state: NodeState, host: PortClaim, case: str) -> str:
    """The commands to check: rules, sockets, IPVS if kube-proxy uses it, the pod."""
    address = host.address or node_address(state, "ip6" if host.rule and host.rule.family == "ip6" else "ip")
    on_port = finding.on_port(address, host.port, host.protocol, state.context) if address else ""
    return finding.check(host.port, host.owner, host.rule, on_port, state.is_ipvs_mode, case)


def _order(state: NodeState, host: PortClaim, traffic: Sequence[PredictedTraffic], case: str) -> list[FindingEvidence]:
    """The two jumps if their order decides; if they are in different chains, the deciding rules for each sender's request."""
    mine, kube = _jumps(state, host)
    if mine and kube and host.ruleset and case in ("order", "kube"):
        return [state.proof(rule, host.ruleset) for rule in sorted((mine, kube), key=lambda r: r.number)]
    return _traffic.proofs(traffic)


def _fate(state: NodeState, host: PortClaim, traffic: Sequence[PredictedTraffic]) -> tuple[str, str, bool]:
    """(clause about the receiver of the requests, name of the case, whether that is certain)."""
    if not traffic:
        return "perhaps only one of them gets the requests, but what happens to them cannot be computed", "unknown", False
    by_sender = {a.sender.name: {_receiver(w) for w in a.paths} for a in traffic}
    receivers = set().union(*by_sender.values())
    if receivers == {_POD}:
        fate = f"the pod gets every request, {_why_the_pod(state, host)}, and the Service gets none"
        return fate + _lost(traffic, _POD), _case(state, host), True
    if receivers == {_SERVICE}:
        why = (
            "for kube-proxy's rule comes first" if not state.is_ipvs_mode else "for IPVS takes it before portmap's rule can act"
        )
        return f"the Service gets every request, {why}, and the pod gets none", "kube", True
    open_ended = [a for a in traffic if len(by_sender[a.sender.name]) > 1]
    if receivers == {_POD, _SERVICE} and all(w.depends_on_order for w in _traffic.all_paths(open_ended)):
        case = "nftables" if host.rule and host.rule.table == "cni_hostport" else "backends"
        return _by_sender(by_sender) + _lost(traffic, _POD), case if open_ended else "kube", True
    if receivers == {_NEITHER}:
        verdict = next(_traffic.all_paths(traffic)).predicted.packet.verdict
        return f"perhaps neither gets them as the rules stand ({verdict})", "unknown", False
    conditions = [d for w in _traffic.all_paths(traffic) for d in w.predicted.conditions]
    open_end = f", which depends on whether {conditions[0]}" if conditions else ""
    return f"perhaps one of them gets every request{open_end}", "unknown", False


def _by_sender(by_sender: dict[str, set[str]]) -> str:
    """A clause about the receiver of the requests of each sender. Each hook has its own order."""
    if all(len(found) > 1 for found in by_sender.values()):
        hooks = ", and so do the node's own" if HERE in by_sender else ""
        return f"all requests that come in go to one of them{hooks}: {_LAST}"
    names = {OUTSIDE: "from outside", HERE: "of the node itself", POD: "of pods"}
    clauses = []
    for takers, gets in (({_POD}, "the pod gets"), ({_SERVICE}, "the Service gets"), ({_POD, _SERVICE}, "one of them gets")):
        whose = [names[s] for s, found in by_sender.items() if found == takers]
        if whose:
            clauses.append(f"{gets} the requests {' and '.join(whose)}" + (f" ({_LAST})" if len(takers) > 1 else ""))
    return ", ".join(clauses)


_LAST = "the one whose base chain was registered last, and a restart of kube-proxy or of the pod may change which one that is"


def _lost(traffic: Sequence[PredictedTraffic], receiver: str) -> str:
    """A clause that requests do not arrive at the receiver, because later rules refuse them; "" = they arrive."""
    bad = (
        w
        for w in _traffic.all_paths(traffic)
        if _receiver(w) == receiver and w.translated and w.predicted.packet.outcome in BAD
    )
    path = next(bad, None)
    return f"; not all of them arrive: {path.predicted.packet.verdict}" if path else ""


def _why_the_pod(state: NodeState, host: PortClaim) -> str:
    if _case(state, host) == "ipvs-port":
        return "for portmap's rule translates it before IPVS is asked, wherever its jump stands"
    return "for portmap's rule comes first"


def _case(state: NodeState, host: PortClaim) -> str:
    mine, kube = _jumps(state, host)
    if state.is_ipvs_mode:
        return "ipvs-port"
    return "order" if mine and kube else "backends"


def _elsewhere(state: NodeState, host: PortClaim) -> Iterator[Finding]:
    """The finding that portmap's rule takes requests to other addresses than the node's."""
    mine, kube = _jumps(state, host)
    if not mine or not host.ruleset or host.address:
        return
    store, v6 = state.cluster.store, mine.family == "ip6"
    meant = {s for s, _ in store.by_address.values() if (s.port, s.protocol) == (host.port, host.protocol)}
    addresses = [(s, a) for s in meant for a in (*s.cluster_ips, *s.external_ips, *s.balancer_ips) if (":" in a) == v6]
    taken = [s for s, a in sorted(addresses, key=lambda pair: pair[0].label) if _takes(state, host, a)]
    anywhere = _takes_of_others(state, host, mine.family)
    names = ", ".join(dict.fromkeys(f"Service {s.label}" for s in taken))
    if not anywhere and not taken:
        return
    tests = "--dst-type LOCAL" in mine.text
    case = "ipvs" if tests else "order"
    shown = [host.shown, state.proof(mine, host.ruleset)] + ([state.proof(kube, host.ruleset)] if kube else [])
    shown += [FindingEvidence("object", f"{host.protocol} {host.port} is a port of {names}", "Kubernetes API")] if taken else []
    whom = names or "any other machine"
    why = (
        "portmap's jump comes first and does not ask whether the address is local" if not tests
        else f"every cluster IP is local to this node by {finding.IPVS}, and portmap's jump comes first"
    )  # fmt: skip
    at = " at an address that is local to this node" if tests else ""
    yield Finding(
        name="",
        key=(host.port, host.protocol, host.owner.label or host.target, "elsewhere"),
        cause=(
            f"hostPort {host.port} of {_pod(host)} takes what is meant for {whom}: {why}, so every connection to"
            f" {host.protocol} {host.port}{at} that starts on this node or passes it reaches the pod."
        ),
        proofs=tuple(shown),
        check=_check(state, host, case),
        cure=finding.cure(host.port, _pod(host), case),
    )


def _takes(state: NodeState, host: PortClaim, address: str) -> bool:
    """Whether every request to this address and the hostPort, of the node and of pods, reaches the pod on all paths."""
    found = [
        _traffic.predict(state, s, address, host.port, host.protocol)
        for s in senders(state, "ip6" if ":" in address else "ip") if s.name != OUTSIDE and s.address != address
    ]  # fmt: skip
    return bool(found) and all(a and all(_receiver(w) == _POD for w in a.paths) for a in found)


def _takes_of_others(state: NodeState, host: PortClaim, family: str) -> bool:
    """Whether requests to other machines reach the pod; the gateway of this node represents all other machines."""
    others = [s.address for s in senders(state, family) if s.name == OUTSIDE]
    return any(_takes(state, host, address) for address in others)


def _pod(host: PortClaim) -> str:
    return f"pod {host.owner.label}" if host.owner.kind == "Pod" else f"the pod at {host.target}"
