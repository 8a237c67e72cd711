# SPDX-License-Identifier: Apache-2.0
"""A pod's hostPort takes packets for a Service or for another machine.

portmap's rules match the port alone, on every address that is local. In ipvs mode every cluster IP is local, because it is on
kube-ipvs0. Before 0.7.5 (CVE-2019-9946) portmap put its jump before kube-proxy's. In nftables the chain registered last runs
first.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import rule_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import Nat, NatHop
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleTrace
from tracer.node.node_questions import InterfaceOf, Listener
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import NotAsked, value_of

IPVS = "kube-ipvs0"
INTERFACE, LISTENER = InterfaceOf(), Listener()
ASKS = (INTERFACE, LISTENER)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    for hop in packet.hops:
        if not isinstance(hop, NatHop) or hop.clone or hop.from_conntrack or hop.nat.kind != "DNAT":
            continue
        if not hop.rule_trace or not hop.rule_trace.decision:
            continue
        hit, owner = hop.rule_trace.decision, hop.owner
        if owner and owner.program == "portmap" and hit.rule:
            expected = _expected_target(hop.nat, packet.protocol.lower(), context)
            if expected:
                return _finding(packet, hop, hop.nat, hop.rule_trace, hit, owner, expected, context)
    return None


def _expected_target(nat: Nat, protocol: str, context: FindingContext) -> tuple[str, str] | None:
    """Returns (intended receiver, source of that information); None if the packet was for the node's own hostPort."""
    cluster, address, port = context.cluster, nat.before.dst, nat.before.dport
    service = cluster.service_at(address, port, protocol)
    if service:
        label, way = service[0].label, service[1]
        if way.startswith("NodePort"):
            return f"{way} of Service {label}" + ("" if cluster.is_local(address) else f" at {address}"), "Kubernetes API"
        return f"Service {label} ({way} {address})", "Kubernetes API"
    names = cluster.store.by_service_ip.all(address)
    if names:
        return f"Service {'/'.join(names[0])} (at {address}, which has no port {port})", "Kubernetes API"
    interface = value_of(context.ask(INTERFACE, address))
    if interface == IPVS:
        return f"the Service at {address}", f"address of {IPVS}"
    # An address that was added after the start also belongs to the node.
    if cluster.local and not cluster.is_local(address) and interface == "":
        node = cluster.store.by_node_ip.one(address)
        return f"node {node.name} at {address}" if node else f"the machine at {address}", "not an address of this node"
    return None


def _finding(
    packet: Packet,
    hop: NatHop,
    nat: Nat,
    trace: RuleTrace,
    hit: RuleHit,
    owner: Owner,
    expected: tuple[str, str],
    context: FindingContext,
) -> Finding:
    should, says = expected
    address, port, protocol = nat.before.dst, nat.before.dport, packet.protocol.lower()
    pod = f"pod {owner.label}" if owner.kind == "Pod" else f"the pod at {nat.after.dst}"
    way, why, proofs_of_order = _order(trace, hit, address, context)
    in_ipvs = way == "ipvs" or bool(context.cluster.ipvs)
    became = format_endpoint(nat.after.dst, nat.after.dport)
    proofs = [
        FindingEvidence(
            "packet", f"{packet.endpoints.src} -> {format_endpoint(address, port)} became {became}", hop.evidence.value
        ),
        rule_proof(hit, owner.text),
        *proofs_of_order,
        FindingEvidence("object", f"{format_endpoint(address, port)} is {should}", says),
    ]
    if owner.kind == "Pod":
        proofs.append(FindingEvidence("object", f"{owner.detail} belongs to {pod}", owner.evidence))
    return Finding(
        name="",
        key=(protocol, port, owner.label or nat.after.dst, should, way),
        cause=f"hostPort {port} of {pod} takes the packets for {should}: {why}.",
        proofs=tuple(proofs),
        check=check(port, owner, hit.rule, on_port(address, port, protocol, context), in_ipvs, way),
        cure=cure(port, pod, way),
        subject=owner.reference,
    )


def check(port: int, owner: Owner, rule: Rule | None, on_port: str, in_ipvs: bool, way: str = "") -> str:
    """Returns what to check.

    Args:
        port: The hostPort.
        owner: The owner of the hostPort.
        rule: portmap's rule.
        on_port: The result of `on_port`.
        in_ipvs: Whether kube-proxy is in ipvs mode.
        way: The kind of conflict, see `_order`.
    """
    rules = f"{operator_commands.saves(rule, 'nat')} | grep -e CNI-HOSTPORT -e KUBE-SERVICES" if rule else ""
    if rule and rule.table == "cni_hostport":
        rules = operator_commands.saves(rule)
    parts = [f"`{rules}` shows portmap's rules"] if rules else []
    parts += [on_port] if on_port else []
    if in_ipvs:
        grow = f", and its counters (`ipvsadm -Ln --stats | grep :{port}`) do not grow" if way == "ipvs-port" else ""
        parts.append(f"`ipvsadm -Ln | grep :{port}` shows the Service's virtual server{grow}")
    parts.append(f"`{host_ports(port, owner)}` shows the hostPort")
    return f"{'; '.join(parts)}."


def host_ports(port: int, owner: Owner | None = None) -> str:
    """Returns the command that shows which pod has a hostPort. owner: its owner, if known."""
    if owner and owner.kind == "Pod":
        return f"kubectl describe pod -n {owner.namespace} {owner.name} | grep 'Host Port'"
    return f"kubectl get pods -A -o custom-columns={_HOST_PORTS} | grep -w -e NAME -e {port}"


_HOST_PORTS = "NAMESPACE:.metadata.namespace,NAME:.metadata.name,HOSTPORT:.spec.containers[*].ports[*].hostPort"


def on_port(address: str, port: int, protocol: str, context: FindingContext) -> str:
    """Returns what ss shows for the port, as a clause; "" if the sockets were not asked for. A hostPort needs no socket."""
    listener = context.ask(LISTENER, address, port, protocol)
    if isinstance(listener, NotAsked):
        return ""
    command = f"`{operator_commands.sockets(port, protocol)}`"
    if not listener.value:
        return f"{command} shows nothing, because a hostPort has no socket"
    return f"{command} shows {listener.value.text}, and not the pod, because a hostPort has no socket"


def cure(port: int, pod: str, way: str) -> str:
    """Returns the cure. way: the kind of conflict, see `_order`."""
    return f"Remove hostPort {port} from {pod}: use a Service, or a port that no Service uses." + _CURES.get(way, "")


_CURES = {
    "ipvs": " portmap 0.7.5 or later appends its jump behind KUBE-SERVICES.",
    "order": " portmap 0.7.5 or later appends its jump behind KUBE-SERVICES.",
    "ipvs-port": " In ipvs mode the order of the rules makes no difference: all of them are evaluated before IPVS.",
    "backends": " kube-proxy and portmap write to different tables here: who wins may change when one of them restarts.",
    "nftables": " Who wins changes when kube-proxy or the pod restarts, so a restart is no cure.",
}


def _order(trace: RuleTrace, hit: RuleHit, address: str, context: FindingContext) -> tuple[str, str, list[FindingEvidence]]:
    """Returns (kind of conflict, why portmap's rule came first as a clause, evidence)."""
    proofs = []
    interface = value_of(context.ask(INTERFACE, address))
    ipvs = interface == IPVS
    if ipvs:
        proofs.append(FindingEvidence("address", f"{address} is an address of {IPVS}, so --dst-type LOCAL fits it", "netlink"))
    if hit.rule and hit.rule.table == "cni_hostport":
        return "nftables", (
            "portmap's base chain ran before kube-proxy's: of two chains at one priority the one registered last runs first"
        ), proofs  # fmt: skip
    jump, kube = _jumps(trace, hit)
    if jump:
        tested = "--dst-type LOCAL" in jump.text
        proofs.append(FindingEvidence("rule", f"{jump.chain} {jump.number}: {jump.text}", "observed"))
        if kube and jump.number < kube.number:
            proofs.append(FindingEvidence("rule", f"{kube.chain} {kube.number}, behind it: {kube.text}", "observed"))
        first = f"portmap's jump is rule {jump.number} of {jump.chain}" + (f", kube-proxy's rule {kube.number}" if kube else "")
        if ipvs:
            return "ipvs", f"every cluster IP is local to this node by {IPVS}, and {first}", proofs
        if kube and jump.number < kube.number:
            return "order", first + ("" if tested else ", and it does not ask whether the address is local"), proofs
        return "jump", first + ("" if tested else ", and it does not ask whether the address is local"), proofs
    if ipvs:
        return "ipvs", f"every cluster IP is local to this node by {IPVS}", proofs
    return "unknown", "its rule acted first", proofs


def _jumps(trace: RuleTrace, hit: RuleHit) -> tuple[Rule | None, Rule | None]:
    """Returns portmap's jump from the base chain on the packet's path, and kube-proxy's jump in the same chain."""
    base = hit.path[0]
    if not hit.rule or not trace.ruleset:
        met = next((v.rule for v in trace.hits if v.location == base), None)
        return met, None
    rules = trace.ruleset.chain(hit.rule.family, hit.rule.table, base.chain)
    jump = next((r for r in rules if r.number == base.number), None)
    return jump, next((r for r in rules if r.target == "KUBE-SERVICES"), None)
