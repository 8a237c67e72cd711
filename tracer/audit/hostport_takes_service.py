"""A hostPort and a Service want the same port: which one gets the requests follows from the order of the rules.

Three ways: the port is a NodePort too; portmap's jump stands before kube-proxy's and does not ask whether the address is local
(portmap before 0.7.5), so it takes that port of every machine; or it does ask, and in ipvs mode every cluster IP is local.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit.ports import Claim, host_ports, node_ports
from tracer.audit.state import State
from tracer.findings import hostport_takes_service as finding
from tracer.findings.model import Finding, Proof
from tracer.rules.model import Rule


def check(state: State) -> Iterator[Finding]:
    by_port = {(c.port, c.protocol): c for c in node_ports(state)}
    for host in host_ports(state):
        yield from _elsewhere(state, host)
        rival = by_port.get((host.port, host.protocol))
        if rival:
            yield _same_port(state, host, rival)


def _jumps(state: State, host: Claim) -> tuple[Rule | None, Rule | None]:
    """portmap's and kube-proxy's jumps from PREROUTING, of the back end that has portmap's rule."""
    if not host.rule or not host.ruleset:
        return None, None
    rules = host.ruleset.chain(host.rule.family, host.rule.table, "PREROUTING")
    targets = ("CNI-HOSTPORT-DNAT", "KUBE-SERVICES")
    mine, kube = (next((r for r in rules if r.target == target), None) for target in targets)
    return mine, kube


def _same_port(state: State, host: Claim, rival: Claim) -> Finding:
    pod, where = _pod(host), f"{host.protocol} {host.port}"
    mine, kube = _jumps(state, host)
    shown = [host.shown, rival.shown]
    if mine and kube and host.ruleset:
        shown += [state.proof(rule, host.ruleset) for rule in sorted((mine, kube), key=lambda r: r.number)]
    if not mine and host.rule and host.rule.table == "cni_hostport":
        fate = (
            "all requests go to one of them, the one whose base chain was registered last, and a restart of kube-proxy or of"
            " the pod changes it"
        )
        way = "nftables"
    elif state.ipvs or (mine and (not kube or mine.number < kube.number)):
        fate, way = "the pod gets every request, for portmap's rule comes first, and the Service gets none", "order"
    else:
        fate, way = "the Service gets every request, for kube-proxy's rule comes first, and the pod gets none", "kube"
    return Finding(
        name="",
        key=(host.port, host.protocol, host.owner.label or host.target, rival.owner.label),
        cause=f"{where} of this node is both hostPort of {pod} and NodePort of Service {rival.owner.label}: {fate}.",
        proofs=tuple(shown),
        check=finding.check(host.port, host.owner, way),
        cure=finding.cure(host.port, pod, way),
    )


def _elsewhere(state: State, host: Claim) -> Iterator[Finding]:
    """portmap's rule takes what is for other addresses than the node's."""
    mine, kube = _jumps(state, host)
    if not mine or not host.ruleset or host.address or (kube and kube.number < mine.number):
        return
    anywhere, pod = "--dst-type LOCAL" not in mine.text, _pod(host)
    way = "order" if anywhere else "ipvs"
    shown = [host.shown, state.proof(mine, host.ruleset)] + ([state.proof(kube, host.ruleset)] if kube else [])
    store = state.known.store
    meant = [s for s, _ in store.by_address.values() if (s.port, s.protocol) == (host.port, host.protocol)]
    names = ", ".join(dict.fromkeys(f"Service {s.label}" for s in meant))
    if not anywhere and not (state.ipvs and meant):
        return
    shown += [Proof("object", f"{host.protocol} {host.port} is a port of {names}", "Kubernetes API")] if meant else []
    whom = names or "any other machine"
    why = (
        "portmap's jump comes first and does not ask whether the address is local" if anywhere
        else f"every cluster IP is local to this node by {finding.IPVS}, and portmap's jump comes first"
    )  # fmt: skip
    yield Finding(
        name="",
        key=(host.port, host.protocol, host.owner.label or host.target, "elsewhere"),
        cause=(
            f"hostPort {host.port} of {pod} takes what is meant for {whom}: {why}, so every connection to {host.protocol}"
            f" {host.port} that starts on this node or passes it reaches the pod."
        ),
        proofs=tuple(shown),
        check=finding.check(host.port, host.owner, way),
        cure=finding.cure(host.port, pod, way),
    )


def _pod(host: Claim) -> str:
    return f"pod {host.owner.label}" if host.owner.kind == "Pod" else f"the pod at {host.target}"
