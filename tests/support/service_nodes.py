# SPDX-License-Identifier: Apache-2.0
"""New connections to the Service of `traced_clusters`, translated or passed on as they are, and its endpoints as the API has
them later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.support.node_views import EPOCH, INSIDE_NS, MICRO, SECOND, packet
from tests.support.traced_clusters import BEGAN
from tracer.cluster_findings.endpoint_history import EndpointHistory
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import HookHop, Hop, Nat, NatHop, TableHop
from tracer.model.joined_packet import NodeView
from tracer.model.kube import Endpoint, Owner
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Outcome
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace

CLUSTER_IP = "172.30.0.10"
CART_B, CART_C = ("10.244.2.8", 8080), ("10.244.3.9", 8080)
GONE = ("10.244.2.77", 8080)
"""An address that is no endpoint."""
OWNER = Owner("Service", "shop", "cart", detail="cluster IP")


def trace(text: str = "-j DNAT", verdict: str = "DNAT", comment: str = "") -> RuleTrace:
    """The trace of one rule that decided."""
    rule = Rule("ip", "nat", "KUBE-SEP-X", 1, text, comment, verdict)
    return RuleTrace((RuleHit((RuleLocation("KUBE-SEP-X", 1),), rule, verdict, Evidence.OBSERVED),))


def connection(
    node: str,
    time: int,
    to: tuple[str, int] | None = None,
    sport: int = 0,
    owner: Owner | None = OWNER,
    from_conntrack: bool = False,
    nat_ran: bool = True,
    is_undecided: bool = False,
    outcome: Outcome = Outcome.FORWARDED,
    **values: Any,
) -> NodeView:
    """The first packet of a connection of a pod to the cluster IP.

    Args:
        node: The node of the pod.
        time: ns after EPOCH.
        to: The endpoint that rules of the node chose; None = the packet passed as it was.
        sport: The port of the pod; 0 = one that follows from the time.
        owner: The owner of the translation.
        from_conntrack: An earlier packet decided the translation.
        nat_ran: The table nat ran for the packet.
        is_undecided: The rule that translated is not known.
        outcome: How it ended.
        values: Fields of the packet.
    """
    ends = Endpoints(f"10.244.{'abc'.index(node) + 1}.7", sport or 1024 + time // MICRO % 50000, CLUSTER_IP, 80)
    hops: list[Hop] = [HookHop(0, HOST, Hook.PREROUTING, in_iface="cni0", verdict=Verdict.ACCEPT)]
    if nat_ran:
        hops.append(TableHop(5, HOST, Hook.PREROUTING, table="nat", verdict=Verdict.ACCEPT))
    if to:
        nat = Nat("DNAT", ends, replace(ends, dst=to[0], dport=to[1]))
        rules = RuleTrace(undecided="it was replaced") if is_undecided else trace()
        hops.append(NatHop(10, HOST, Hook.PREROUTING, nat=nat, owner=owner, rule_trace=rules, from_conntrack=from_conntrack))
    hops.append(HookHop(INSIDE_NS, HOST, Hook.POSTROUTING, out_iface="flannel.1", verdict=Verdict.ACCEPT))
    flow = Flow(ends, ends.reversed, "NEW", False, 0)
    fields: dict[str, Any] = {"tcp_flags": "SYN", "seq": time % (1 << 32), "ident": time // MICRO % 65536, "flow": flow}
    made = packet(time, ends, "through", **fields | values)
    return NodeView(node, replace(made, hops=tuple(hops), outcome=outcome), 0, 10 * MICRO)


class FakeEndpoints:
    """The API's endpoints of all Services. history: what is answered; asked: the Services that were asked for."""

    def __init__(self, ends: Sequence[tuple[str, int]] | None, since: int = BEGAN, asked: int = 10_000 * SECOND) -> None:
        self.found = None if ends is None else history(ends, since, asked)
        self.asked: list[str] = []

    def ask(self, namespace: str, name: str) -> None:
        self.asked.append(f"{namespace}/{name}")

    def history(self, namespace: str, name: str) -> EndpointHistory | None:
        return self.found


def history(ends: Sequence[tuple[str, int] | Endpoint], since: int = BEGAN, asked: int = 10_000 * SECOND) -> EndpointHistory:
    """What was read of the Service. since: when the first reading was answered; asked: the newest one; ns after EPOCH."""
    nodes = {CART_B[0]: "b", CART_C[0]: "c"}
    found = tuple(e if isinstance(e, Endpoint) else Endpoint(*e, ("shop", "cart"), nodes.get(e[0], "b")) for e in ends)
    return EndpointHistory(EPOCH + since, EPOCH + asked, {("", "tcp"): found}, {})
