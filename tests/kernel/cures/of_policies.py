# SPDX-License-Identifier: Apache-2.0
"""Cases of NetworkPolicies, with rules as Calico, kube-router, Antrea and kube-network-policies write them."""

from __future__ import annotations

import errno
import select
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace

from incidents import objects
from incidents.objects import Object
from scenes import netns, nfqueue
from tests.kernel.audit_nodes import CLIENT, MINE, NODE, PODS, PORT
from tests.kernel.cures import BuiltCase, case
from tests.kernel.cures.box import Box
from tests.support import open_vswitch
from tests.support.policies import policy
from tests.support.policy_semantics import World
from tests.support.policy_writers import antrea_tables, kube_network_policies
from tests.support.policy_writers import kube_router_tables as kube_router
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import QUEUE_REFUSED, DecisionDetail, DetailHop, Drop, DropHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Verdict
from tracer.model.packet import Packet
from tracer.packets.outcome import classify
from tracer.packets.queue_details import QUEUE_FULL
from tracer.predict.query import PathQuery

WEB = objects.pod("shop/web", PODS["pod-a"], "node-1", PORT)
QUERY = PathQuery(CLIENT, 40000, PODS["pod-a"], PORT)


def _limited(ingress: list[Object]) -> World:
    return World(pods=[WEB], policies=[policy("shop/deny-all"), policy("shop/allow", ingress=ingress)], node="node-1")


def _router(box: Box, back: str) -> BuiltCase:
    closed, opened = _limited([{"ports": [{"port": 80}]}]), _limited([{"ports": [{"port": PORT}]}])
    box.put(*kube_router.steps(closed, back))
    box.objects(objects.node("node-1", NODE, MINE), *closed.objects)
    return BuiltCase(
        lambda: box.predicted_findings("no_policy_allows", QUERY),
        {f"iptables-{back} -t filter -L KUBE-POD-FW-": "REJECT", "kubectl get networkpolicies -n shop": "name: allow"},
        repair=lambda: box.rewrite(*kube_router.steps(opened, back)),
    )


@case("no_policy_allows", "kube-router, legacy")
def _router_legacy(box: Box) -> BuiltCase:
    return _router(box, "legacy")


@case("no_policy_allows", "kube-router, iptables-nft")
def _router_nft(box: Box) -> BuiltCase:
    return _router(box, "nft")


def _global(denies: bool) -> str:
    """The rules of a GlobalNetworkPolicy of Calico for forwarded packets of an interface of the node."""
    deny = '-A cali-po-gnp/block -m comment --comment "cali:4" -d {}/32 -p tcp -m tcp --dport {} -j DROP'
    lines = [
        "*filter", ":cali-FORWARD - [0:0]", ":cali-thfw-cni0 - [0:0]", ":cali-po-gnp/block - [0:0]",
        '-A FORWARD -m comment --comment "cali:1" -j cali-FORWARD',
        '-A cali-FORWARD -o cni0 -m comment --comment "cali:2" -j cali-thfw-cni0',
        '-A cali-thfw-cni0 -m comment --comment "cali:3" -j cali-po-gnp/block',
        *([deny.format(PODS["pod-a"], PORT)] if denies else []), "COMMIT", "",
    ]  # fmt: skip
    return "\n".join(lines)


@case("policy_denied", "a GlobalNetworkPolicy of Calico")
def _denied(box: Box) -> BuiltCase:
    box.put(("legacy", _global(True)))
    box.objects(objects.node("node-1", NODE, MINE), WEB)
    return BuiltCase(
        lambda: box.predicted_findings("policy_denied", QUERY),
        {"iptables-legacy -t filter -L cali-po-gnp/block": "DROP"},
        repair=lambda: box.rewrite(("legacy", _global(False))),
    )


@case("policy_denied", "a ClusterNetworkPolicy of Antrea for nodes")
def _node_policy(box: Box) -> BuiltCase:
    rules = antrea_tables.saved([antrea_tables.NodeRule("deny-shop", "web", "Drop", CLIENT, (PORT,))])
    box.put(("legacy", rules))
    box.objects(objects.node("node-1", NODE, MINE))
    query = PathQuery(CLIENT, 40000, NODE, PORT)
    return BuiltCase(
        lambda: box.predicted_findings("policy_denied", query),
        {"iptables-legacy -t filter -L ANTREA-POL-INGRESS-RULES": "DROP"},
        repair=lambda: box.rewrite(("legacy", antrea_tables.saved([]))),
    )


@case("dropped_by_open_vswitch", "a flow without actions", "ovs")
def _flow(box: Box) -> BuiltCase:
    number, stack = 9301, ExitStack()
    datapath = stack.enter_context(open_vswitch.two_pods())
    box.at_end(stack.close)
    datapath.udp(1, number)
    out, back = open_vswitch.sockets(stack, number)
    source, target = open_vswitch.PODS.values()
    pods = [objects.pod("shop/client", source, "node-1", 80), objects.pod("shop/web", target, "node-1", number)]
    box.objects(objects.node("node-1", NODE, MINE), *pods, policy("shop/deny-all"))

    def find() -> list[Finding]:
        """Whether a packet was dropped is seen at its destination."""
        out.sendto(b"x", (target, number))
        if select.select([back], [], [], 1)[0]:
            return []
        drop = Drop("OVS_DROP_LAST_ACTION", "do_execute_actions")
        hops = (DropHop(0, HOST, in_iface="vovs-a", verdict=Verdict.DROP, drop=drop),)
        packet = Packet(1, 0, HOST, "vovs-a", "IPv4", "UDP", Endpoints(source, 40000, target, number), "", 29, hops=hops)
        verdict, outcome = classify(packet)
        return box.packet_findings("dropped_by_open_vswitch", [replace(packet, verdict=verdict, outcome=outcome)])

    return BuiltCase(
        find,
        {"kubectl get networkpolicies -n shop": "name: deny-all"},
        repair=lambda: datapath.udp(1, number, open_vswitch.output(2)),
        skipped={"ovs-appctl": "there is no ovs-vswitchd"},
    )


@case("dropped_by_queue", "kube-network-policies", "machine")
def _behind_queue(box: Box) -> BuiltCase:
    world = World([WEB], [policy("shop/deny-all")])
    server = box.listen(PORT, "pod-a")
    box.put(*kube_network_policies.steps(world))
    box.objects(objects.node("node-1", NODE, MINE), *world.objects)
    process = nfqueue.start(kube_network_policies.QUEUE, decide=lambda packet: False)
    processes = [process]
    box.at_end(lambda: processes[-1].kill())

    def find() -> list[Finding]:
        """Whether a packet was dropped is seen by its sender: the kernel itself sends a SYN again."""
        with netns.entered("client"):
            client = socket.socket()
        with client:
            client.settimeout(1.5)
            with suppress(TimeoutError):
                client.connect((PODS["pod-a"], PORT))
                return []
        drop = DropHop(9, HOST, verdict=Verdict.DROP, drop=Drop("NOT_SPECIFIED", "nfqnl_reinject"))
        made = []
        for packet in box.packets(QUERY):
            dropped = replace(packet, hops=(*packet.hops, drop))
            verdict, outcome = classify(dropped)
            made.append(replace(dropped, verdict=verdict, outcome=outcome))
        return box.packet_findings("dropped_by_queue", made)

    def allow() -> None:
        processes[-1].kill()
        processes.append(nfqueue.start(kube_network_policies.QUEUE, decide=lambda packet: True))

    assert server.fileno() >= 0
    chain = f"nft -a list chain inet {kube_network_policies.TABLE} postrouting"
    return BuiltCase(
        find,
        {"cat /proc/net/netfilter/nfnetlink_queue": r"^ *100 ", chain: "queue (to|num) 100",
         "kubectl get networkpolicies -n shop": "name: deny-all"},
        repair=allow,
    )  # fmt: skip


@case("queue_full", "a process that does not read", "machine")
def _full_queue(box: Box) -> BuiltCase:
    server = box.listen(PORT, "pod-a")
    box.put(*kube_network_policies.steps(World([WEB], [policy("shop/deny-all")])))
    box.objects(objects.node("node-1", NODE, MINE))
    processes = [nfqueue.start(kube_network_policies.QUEUE, options=nfqueue.Options(silent=True, maximum=1))]
    box.at_end(lambda: processes[-1].kill())

    def find() -> list[Finding]:
        """The first SYN waits in the queue, the next one is dropped: the queue's counter shows it."""
        with netns.entered("client"):
            client = socket.socket()
        with client:
            client.settimeout(2.5)
            with suppress(TimeoutError):
                client.connect((PODS["pod-a"], PORT))
                return []
        facts: dict[str, int | str] = {
            "queue": kube_network_policies.QUEUE,
            "errno": errno.ENOBUFS,
            "by": QUEUE_FULL,
            "waiting": 1,
            "maximum": 1,
        }
        detail = DetailHop(8, HOST, detail=DecisionDetail(QUEUE_REFUSED, facts))
        drop = DropHop(9, HOST, verdict=Verdict.DROP, drop=Drop("NOT_SPECIFIED", "nf_queue"))
        made = []
        for packet in box.packets(QUERY):
            dropped = replace(packet, hops=(*packet.hops, detail, drop))
            verdict, outcome = classify(dropped)
            made.append(replace(dropped, verdict=verdict, outcome=outcome))
        return box.packet_findings("queue_full", made)

    def read() -> None:
        processes[-1].kill()
        processes.append(nfqueue.start(kube_network_policies.QUEUE))

    assert server.fileno() >= 0
    chain = f"nft -a list chain inet {kube_network_policies.TABLE} postrouting"
    shown = r"^ *100 +\d+ +1 \d +\d+ +[1-9]"
    return BuiltCase(find, {"cat /proc/net/netfilter/nfnetlink_queue": shown, chain: "queue (to|num) 100"}, repair=read)
