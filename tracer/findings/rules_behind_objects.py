# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's rules on this node are behind the API: what has changed since some time is not in them.

kube-proxy writes changed rules after a second, in a large cluster after ten. It writes none when it has ended or is stopped,
when it cannot reach the API server, when its write fails, or while another program holds the lock of iptables. Then the rules
still lead to an endpoint that is gone, refuse requests for want of endpoints that exist by now, or lack a Service.

The cluster finding service_rules_differ compares two nodes by their packets, and knows nothing of kube-proxy's process. This
one compares the rules of one node with the API's objects, and needs no second node.
Source: kubernetes pkg/proxy/iptables/proxier.go, syncProxyRules(); pkg/proxy/nftables/proxier.go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from tracer.findings.context import FindingContext
from tracer.findings.proofs import decision_proof, packet_proof
from tracer.kube.catalog import ClusterView
from tracer.kube.chain_names import nftables_name, service_hash
from tracer.kube.missing_endpoints import NONE, fate_in
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import (
    ChainHop,
    DecidingHop,
    IpvsNatHop,
    IpvsRefusalHop,
    NatHop,
    OwnedHop,
    RewriteHop,
    RuleHop,
    TableHop,
    alike_of,
    decision_of,
    trace_of,
)
from tracer.model.kube import Endpoint, Owner, ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Packet
from tracer.model.rule import Ruleset
from tracer.node.node_questions import ProxyProcesses
from tracer.node.proxy_state import ProxyState
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import Known, value_of

PROCESSES = ProxyProcesses()
ASKS = (PROCESSES,)

SETTLED_SECONDS = 60
"""Time since the last change by the API's clock after which rules must have it, s: the clocks may differ by some of it."""
LASTS_NS = 30_000_000_000
"""Time for which this run must have seen the difference itself, ns."""
SHOWN = 3
"""Most endpoints that are named."""
IPTABLES_KINDS = ("SVC", "SVL", "EXT", "XLB", "FW")
NFTABLES_KINDS = ("service", "local", "external")
FAMILIES = ("ip", "ip6")
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
FROM_FILE = " The objects come from a file, which may be older than the rules."
CURE_RUNS = (
    "Look at kube-proxy's log for what it cannot write or reach, and restart it; with kubeadm, delete its pod in kube-system:"
    " it is made again."
)


@dataclass(frozen=True)
class RuleLag:
    """What the rules have otherwise than the API.

    Attributes:
        port: The Service port.
        what: The difference, as a clause.
        ends: Its endpoints by the API.
        changed: When the API's objects of the Service were changed last, s since the epoch; 0 = not known.
        key: Identifies the difference.
    """

    port: ServicePort
    what: str
    ends: tuple[Endpoint, ...]
    changed: int
    key: tuple[str, ...] = ()

    @property
    def object_proof(self) -> FindingEvidence:
        """The evidence of the API's endpoints."""
        return FindingEvidence("object", f"the endpoints of {self.port.label} are {_listed(self.ends)}", "Kubernetes API")


def find(packet: Packet, context: FindingContext) -> Finding | None:
    if not packet.complete or not len(context.cluster.store.endpoints):
        return None
    found = (
        _gone_endpoint(packet, context.cluster) or _refusal(packet, context.cluster) or _without_rules(packet, context.cluster)
    )
    if not found:
        return None
    lag, hop = found
    # Asked first: it makes sure that later packets of this path are looked at, too.
    known = context.ask(PROCESSES)
    state = known.value if isinstance(known, Known) else None
    is_followed = context.cluster.store.is_followed
    watched = _watched(lag, packet, context) if is_followed else 0
    age = packet.time // 1_000_000_000 - lag.changed if lag.changed else 0
    if watched < LASTS_NS and age < SETTLED_SECONDS:
        return None
    rule = [decision_proof(hop, hop.owner.text)] if hop and hop.owner else []
    certain = watched >= LASTS_NS or (is_followed and is_down(state))
    seconds = max(age, watched // 1_000_000_000)
    return finding([lag], [packet_proof(packet), *rule], state, seconds, certain=certain, is_followed=is_followed)


def _watched(lag: RuleLag, packet: Packet, context: FindingContext) -> int:
    """For how long packets have shown this difference, with the same endpoints, ns."""
    key = ("rules behind objects", lag.port.label, lag.port.protocol, lag.key, lag.ends)
    first = context.since.get(key)
    if first is None:
        context.since[key] = first = packet.time
    return packet.time - first


_Shown = tuple[RuleLag, OwnedHop | None]


def _gone_endpoint(packet: Packet, cluster: ClusterView) -> _Shown | None:
    """A rule of a Service, or IPVS, has now chosen an endpoint that the API does not have."""
    for hop in alike_of(packet.hops, RewriteHop):
        if hop.nat.kind != "DNAT" or not is_host(hop.netns) or not _is_now(hop):
            continue
        before, after = hop.nat.before, hop.nat.after
        meant = cluster.service_at(before.dst, before.dport, packet.protocol.lower())
        if not meant or not hop.owner or not _is_of(hop.owner, meant[0]):
            return None
        lag = gone_endpoint(meant[0], after.dst, after.dport, cluster)
        return (lag, hop) if lag else None
    return None


def _is_now(hop: RewriteHop) -> bool:
    """Whether the choice was made for this packet. A client of IPVS may keep a real server that others do not get any more."""
    if isinstance(hop, IpvsNatHop):
        return hop.decision.chosen == "now" and not hop.decision.persistent
    return isinstance(hop, NatHop) and not hop.from_conntrack and decision_of(hop) is not None


def _is_of(owner: Owner, port: ServicePort) -> bool:
    return (owner.kind, owner.namespace, owner.name) == ("Service", port.namespace, port.name)


def gone_endpoint(port: ServicePort, address: str, number: int, cluster: ClusterView) -> RuleLag | None:
    """The difference that rules lead to an endpoint which the API does not have; None = the API has it, or it is not known."""
    ends = cluster.store.endpoints.all((port.label, port.protocol))
    here = _plain(address)
    # libcni's cache is the node's own, so it may know a pod that the API's objects here do not have yet.
    if any((_plain(e.address), e.port) == (here, number) for e in ends) or cluster.sandboxes.at(address):
        return None
    where = format_endpoint(address, number)
    what = f"rules lead to {where} for Service {port.label}, which the API does not have among its endpoints"
    return _lag(port, what, ends, cluster, ("gone", where))


def _refusal(packet: Packet, cluster: ClusterView) -> _Shown | None:
    """A rule of a Service, or IPVS, refuses for want of endpoints, and the API has ready ones."""
    for hop in alike_of(packet.hops, DecidingHop):
        if not is_host(hop.netns) or hop.verdict not in REFUSALS or not hop.owner or hop.owner.kind != "Service":
            continue
        if fate_in(hop.owner) != NONE and not isinstance(hop, IpvsRefusalHop):
            continue
        ends = packet.endpoints
        meant = cluster.service_at(ends.dst, ends.dport, packet.protocol.lower())
        # IPVS does not say whether there are no endpoints at all, or none here.
        if meant and _is_of(hop.owner, meant[0]) and not (isinstance(hop, IpvsRefusalHop) and meant[0].local):
            lag = no_endpoints(meant[0], cluster, v6=":" in ends.dst)
            return (lag, hop) if lag else None
    return None


def no_endpoints(port: ServicePort, cluster: ClusterView, *, v6: bool) -> RuleLag | None:
    """The difference that no rule of a family leads to an endpoint of a Service.

    None = the Service has no ready endpoint, or no address, of this family.
    """
    ends = tuple(e for e in cluster.store.endpoints.all((port.label, port.protocol)) if e.ready and (":" in e.address) == v6)
    if not ends or not any((":" in address) == v6 for address in port.cluster_ips):
        return None
    what = f"no rule leads to an endpoint of Service {port.label}, which has {_count(ends)}"
    return _lag(port, what, ends, cluster, ("none",))


def _without_rules(packet: Packet, cluster: ClusterView) -> _Shown | None:
    """NAT rules of kube-proxy ran for a packet to a Service, none of them translated it, and none is for this Service."""
    ends = packet.endpoints
    meant = cluster.service_at(ends.dst, ends.dport, packet.protocol.lower())
    if not meant or any(is_host(hop.netns) for hop in alike_of(packet.hops, RewriteHop)):
        return None
    v6 = ":" in ends.dst
    for hop in alike_of(packet.hops, RuleHop):
        trace = trace_of(hop)
        if not is_host(hop.netns) or not trace or not trace.ruleset or trace.undecided or not _is_nat(hop):
            continue
        if not has_rules_of_kube_proxy(trace.ruleset, v6=v6) or has_service(trace.ruleset, meant[0], v6=v6):
            continue
        lag = no_endpoints(meant[0], cluster, v6=v6)
        return (lag, None) if lag else None
    return None


def _is_nat(hop: RuleHop) -> bool:
    if isinstance(hop, ChainHop):
        return hop.table.endswith(" nat") or hop.chain.startswith("nat-")
    return isinstance(hop, TableHop) and hop.table == "nat"


def has_rules_of_kube_proxy(rules: Ruleset, *, v6: bool) -> bool:
    """Whether rules are those of kube-proxy, in iptables or nftables mode, with those of at least one Service."""
    return any(
        family == FAMILIES[v6]
        and ((table, chain[:9]) == ("nat", "KUBE-SVC-") or (table, chain[:8]) == ("kube-proxy", "service-"))
        for family, table, chain in rules.chains
    )


def has_service(rules: Ruleset, port: ServicePort, *, v6: bool) -> bool:
    """Whether rules of a family have a chain that leads to endpoints of a Service port."""
    return any(key in rules.chains for key in _chains(FAMILIES[v6], port))


def _chains(family: str, port: ServicePort) -> list[tuple[str, str, str]]:
    digest = service_hash(port.label, port.protocol)
    name = nftables_name(f"{port.namespace}/{port.name}/{port.protocol}/{port.port_name}")
    return [
        *((family, "nat", f"KUBE-{kind}-{digest}") for kind in IPTABLES_KINDS),
        *((family, "kube-proxy", f"{kind}-{name}") for kind in NFTABLES_KINDS),
    ]


def _lag(
    port: ServicePort, what: str, ends: tuple[Endpoint, ...], cluster: ClusterView, key: tuple[str, ...]
) -> RuleLag | None:
    times = cluster.store.times.one((port.namespace, port.name))
    return RuleLag(port, what, ends, times.changed, key) if times and times.is_for_kube_proxy else None


def is_down(state: ProxyState | None) -> bool:
    """Whether kube-proxy can be seen not to run."""
    return state is not None and not state.running


def finding(
    lags: Sequence[RuleLag],
    shown: Sequence[FindingEvidence],
    state: ProxyState | None,
    seconds: int,
    *,
    certain: bool,
    is_followed: bool,
) -> Finding:
    """Makes the finding.

    Args:
        lags: The differences; the first one is shown.
        shown: The evidence that rules are so.
        state: The processes of kube-proxy; None = not known.
        seconds: For how long the first difference has lasted.
        certain: Nothing but rules that are behind explains the difference.
        is_followed: The objects were listed by the API. A file of them may be older than the rules.
    """
    first, port = lags[0], lags[0].port
    more = f" So it is with {len(lags) - 1} more Service ports or endpoints." if len(lags) > 1 else ""
    word = "are behind" if certain else "are perhaps behind"
    return Finding(
        name="",
        key=("rules",),
        cause=(
            f"kube-proxy's rules on this node {word} the API: {first.what}; so it has been for {_duration(seconds)}."
            f"{more} {_why(state)}{'' if is_followed else FROM_FILE}"
        ),
        proofs=(*shown, first.object_proof, *_process_proofs(state)),
        check=check_of(port),
        cure=_cure(state),
        certain=certain,
        subject=port.reference,
    )


def check_of(port: ServicePort) -> str:
    """What to check. Names that a shell does not take as they are stand in no command."""
    health = (
        "`curl -sSm 5 http://127.0.0.1:10256/healthz` shows whether kube-proxy answers, and when it wrote rules last"
        " (lastUpdated)."
    )
    if not _NAME.fullmatch(port.namespace) or not _NAME.fullmatch(port.name):
        return health
    command = f"kubectl get endpointslices -n {port.namespace} -l kubernetes.io/service-name={port.name} -o yaml"
    return f"{health} `{command}` shows the API's endpoints."


def _why(state: ProxyState | None) -> str:
    if state is None:
        return "Whether kube-proxy runs cannot be seen from here."
    if state.running:
        return f"{_named(state.running)} runs; why its rules are not newer is not known."
    if state.stopped:
        return f"{_named(state.stopped)} is stopped by a signal."
    return "No process of kube-proxy runs on the node."


def _process_proofs(state: ProxyState | None) -> list[FindingEvidence]:
    if state is None:
        return []
    if state.running:
        text = f"{_named(state.running)} runs"
    elif state.stopped:
        text = f"{_named(state.stopped)} is in state T (stopped)"
    else:
        text = "no process has kube-proxy's name"
    found = [FindingEvidence("process", text, "/proc")]
    if state.lock_pid:
        text = f"process {state.lock_pid} holds the lock of iptables, /run/xtables.lock"
        found.append(FindingEvidence("process", text, "/proc/locks"))
    return found


def _named(pids: Sequence[int]) -> str:
    return f"kube-proxy (pid {', '.join(map(str, pids))})"


def _cure(state: ProxyState | None) -> str:
    if state and not state.running and state.stopped:
        commands = " ".join(map(str, state.stopped))
        return f"Let it go on: `kill -CONT {commands}`. {CURE_RUNS}"
    if state and not state.running:
        return (
            "Start kube-proxy on this node. If it is a DaemonSet (kubeadm: in kube-system), events and log of its pod on this"
            " node say why it does not run."
        )
    return CURE_RUNS


def _duration(seconds: int) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _count(ends: Sequence[Endpoint]) -> str:
    ready = sum(e.ready for e in ends)
    return f"{ready} ready endpoint{'s' * (ready != 1)}" if ready == len(ends) else f"{len(ends)} endpoints"


def _listed(ends: Sequence[Endpoint]) -> str:
    names = ", ".join(format_endpoint(e.address, e.port) for e in ends[:SHOWN]) or "none"
    return names + (f" and {len(ends) - SHOWN} more" if len(ends) > SHOWN else "")


def _plain(address: str) -> str:
    """An address as the kernel writes it: the API takes fd00:0::1, too."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address


def processes(context: FindingContext) -> ProxyState | None:
    """The processes of kube-proxy; None = not known."""
    return value_of(context.ask(PROCESSES))
