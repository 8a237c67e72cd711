# SPDX-License-Identifier: Apache-2.0
"""Answers that do not come back through the node that translated the requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.node_views import INSIDE_NS, MICRO, MILLI, POD_B, SECOND, view
from tests.support.traced_clusters import BEGAN, NODES, TracedCluster
from tracer.cluster_findings import cluster_context
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import HookHop
from tracer.model.joined_packet import NodeView
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome
from tracer.util.evictions import evictions

CLIENT = "192.168.56.1"
ARRIVED = INSIDE_NS + 100 * MICRO
SYN: dict[str, Any] = {"tcp_flags": "SYN"}
ANSWER: dict[str, Any] = {"tcp_flags": "SYN ACK", "ident": 0}


def by(seen: NodeView, came: str = "", left: str = "") -> NodeView:
    """The view with other interfaces."""
    hops = tuple(
        replace(hop, in_iface=came or hop.in_iface, out_iface=left or hop.out_iface) if isinstance(hop, HookHop) else hop
        for hop in seen.packet.hops
    )
    return replace(seen, packet=replace(seen.packet, hops=hops))


def request(time: int = 0, sport: int = 40001, source: str = CLIENT, **values: Any) -> list[NodeView]:
    """A request of a client to node a, which translates it and sends it on to a pod of node b through the tunnel."""
    asked, inside = Endpoints(CLIENT, sport, NODES["a"], 30080), Endpoints(source, sport, POD_B, 8080)
    fields = SYN | {"ident": time // MICRO % 60000 + 1, "seq": time % 1000} | values
    there = by(view("a", time, "through", ends=asked, to=inside, **fields), "ext0", "flannel.1")
    return [there, by(view("b", time + ARRIVED, "through", ends=inside, **fields), "flannel.1", "cni0")]


def answer(time: int = 0, sport: int = 40001, left: str = "eth0", client: str = CLIENT, **values: Any) -> NodeView:
    """The answer of the pod, as it leaves node b."""
    ends = Endpoints(POD_B, 8080, client, sport)
    fields = ANSWER | {"seq": time % 1000 + sport} | values
    return by(view("b", time, "through", ends=ends, **fields), "cni0", left)


def returned(time: int = 0, sport: int = 40001, **values: Any) -> NodeView:
    """The answer as it comes to node a."""
    ends = Endpoints(POD_B, 8080, CLIENT, sport)
    fields = ANSWER | {"seq": time % 1000 + sport} | values
    to = Endpoints(NODES["a"], 30080, CLIENT, sport)
    return by(view("a", time + ARRIVED, "through", ends=ends, to=to, **fields), "flannel.1", "ext0")


def found(*views: NodeView, nodes: str = "ab", **options: Any) -> list[Finding]:
    return [each for each in TracedCluster(nodes, **options).settle(*views) if each.name == "asymmetric_return"]


TWO = (*request(), answer(MILLI), *request(SECOND, 40002), answer(SECOND + MILLI, 40002))
BY_TUNNEL = (*TWO[:2], by(TWO[2], left="flannel.1"), *TWO[3:5], by(TWO[5], left="flannel.1"))


def test_answers_that_leave_by_another_interface() -> None:
    (finding,) = found(*TWO)
    assert finding.certain and finding.packets == 2
    assert finding.cause == (
        "Answers leave node b by eth0 and never come to node a, which had translated the requests and sent them on with the"
        " address of the client: nothing translates the answers back, and the client does not know them."
    )
    assert [proof.text for proof in finding.proofs] == [
        "10.244.2.8:8080 -> 192.168.56.1:40002, TCP SYN ACK: left node b by eth0",
        "the request came from node a by flannel.1, translated there, its source was 192.168.56.1",
        "node a was traced then, lost no events, and shows no such packet",
    ]
    assert "`ip route get 192.168.56.1`" in finding.check


def test_the_finding_is_of_the_node_that_answers_leave() -> None:
    cluster = TracedCluster("ab")
    cluster.show(*TWO)
    cluster.reach(13 * SECOND)
    assert cluster.findings.all == [] or not cluster.findings.all[0].certain
    assert [node for node, _ in cluster.reach(15 * SECOND)] == ["b"]


def test_answers_that_come_back() -> None:
    back = (answer(MILLI, left="flannel.1"), returned(MILLI))
    assert found(*request(), *back) == []
    assert found(*request(), *back, answer(2 * MILLI), answer(3 * MILLI)) == [], "one of them has come"


def test_one_answer_may_only_be_lost() -> None:
    (finding,) = found(*request(), answer(MILLI))
    assert not finding.certain and finding.cause.endswith("Only one answer was seen.")


def test_by_the_interface_of_the_requests_it_may_only_be_lost() -> None:
    (finding,) = found(*BY_TUNNEL)
    assert not finding.certain and "by which the requests come, so it may only be lost" in finding.cause


def through_c(time: int, sport: int) -> NodeView:
    """The answer that left node b at a time, as it passes node c."""
    ends = Endpoints(POD_B, 8080, CLIENT, sport)
    return view("c", time + ARRIVED, "through", ends=ends, **ANSWER | {"seq": time % 1000 + sport})


def test_by_the_interface_of_the_requests_and_seen_at_a_third_node() -> None:
    (finding,) = found(*BY_TUNNEL, through_c(MILLI, 40001), through_c(SECOND + MILLI, 40002), nodes="abc")
    assert finding.certain and finding.proofs[-1].text == "the answer came to node c"


def test_an_interface_by_which_other_answers_come_back() -> None:
    other = (*request(-SECOND, 40009), answer(-SECOND + MILLI, 40009), returned(-SECOND + MILLI, 40009))
    (finding,) = found(*other, *TWO)
    assert not finding.certain and "Other answers that left by eth0 did come to node a" in finding.cause


def test_a_request_that_was_masqueraded_has_its_answer_at_that_node() -> None:
    views = [*request(source="10.244.1.0"), answer(MILLI, client="10.244.1.0"), answer(2 * MILLI, client="10.244.1.0")]
    assert found(*views) == []
    views = [*request(source=NODES["a"]), answer(MILLI, client=NODES["a"]), answer(2 * MILLI, client=NODES["a"])]
    assert found(*views) == []


def test_a_request_that_was_only_routed() -> None:
    ends = Endpoints(CLIENT, 40001, POD_B, 8080)
    routed = [view("a", 0, "through", ends=ends, **SYN), view("b", ARRIVED, "in", ends=ends, **SYN)]
    assert found(*routed, answer(MILLI), answer(2 * MILLI)) == []


def test_a_client_of_the_node_that_translates() -> None:
    """The answer goes to that node by its address; without it, it is lost."""
    asked, inside = Endpoints("10.244.1.7", 40001, "172.30.0.10", 80), Endpoints("10.244.1.7", 40001, POD_B, 8080)
    views = [view("a", 0, "through", ends=asked, to=inside, **SYN), view("b", ARRIVED, "in", ends=inside, **SYN)]
    assert found(*views, *(answer(n * MILLI, client="10.244.1.7") for n in (1, 2))) == []


def made_in(netns: Netns, seen: NodeView) -> NodeView:
    """The request as a program in a network namespace of the node sends it."""
    first = HookHop(0, netns, Hook.OUTPUT, out_iface="eth0", verdict=Verdict.ACCEPT)
    hops = (first, *seen.packet.hops) if netns != HOST else (first, *seen.packet.hops[1:])
    return replace(seen, packet=replace(seen.packet, netns=netns, hops=hops))


def made_on_node(netns: Netns) -> tuple[NodeView, ...]:
    """Both requests, made in a network namespace of the node that translates them, and their answers."""
    return made_in(netns, TWO[0]), *TWO[1:3], made_in(netns, TWO[3]), *TWO[4:]


def test_a_client_on_the_node_with_an_address_that_no_object_has() -> None:
    """A container of Docker, say: its answers can only go to that node, so they may be lost on another way to it."""
    (finding,) = found(*made_on_node(Netns("container")))
    assert not finding.certain
    assert finding.cause.startswith("Perhaps answers leave node b by eth0 and never come to node a")
    assert finding.cause.endswith("The client is on node a, so the answers may only be lost on their way to that node.")


def test_a_client_on_the_node_with_answers_at_a_third_node() -> None:
    views = made_on_node(Netns("container"))
    third = (through_c(MILLI, 40001), through_c(SECOND + MILLI, 40002))
    (finding,) = found(*views, *third, nodes="abc")
    assert finding.certain and finding.proofs[-1].text == "the answer came to node c"


def test_an_address_of_the_node_that_translates() -> None:
    """Other nodes send what is for the node's own address to the node."""
    assert found(*made_on_node(HOST)) == []


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_node_that_lost_events(node: str) -> None:
    cluster = TracedCluster("ab")
    cluster.note_loss(node, 0, 2 * SECOND)
    assert cluster.settle(*TWO) == []


def test_probes_that_came_on_later() -> None:
    shift = BEGAN - SECOND // 2
    views = [replace(each, packet=replace(each.packet, time=each.packet.time + shift)) for each in TWO]
    assert [each.certain for each in found(*views)] in ([], [False])


def test_a_node_that_is_behind() -> None:
    cluster = TracedCluster("ab")
    cluster.show(*TWO)
    cluster.reach(20 * SECOND, "b")
    assert cluster.findings.all == []
    assert [each.certain for _, each in cluster.reach(20 * SECOND)] == [True]


def test_a_node_that_sends_nothing_any_more() -> None:
    cluster = TracedCluster("ab")
    cluster.show(*TWO)
    cluster.reach(SECOND, "a")
    cluster.nodes.close("a")
    assert cluster.reach(60 * SECOND, "b") == [] and cluster.findings.all == []


@pytest.mark.parametrize(
    "options", [{"ports": ("30080",)}, {"iface": "eth0"}, {"drops_only": True}, {"hosts": ("192.168.60.11",)}, {"proto": "udp"}]
)
def test_a_filter_that_may_leave_the_answers_out(options: dict[str, Any]) -> None:
    assert found(*TWO, **options) == []


@pytest.mark.parametrize("options", [{"ports": ("8080",)}, {"hosts": (CLIENT,)}, {"proto": "tcp"}])
def test_a_filter_that_selects_the_answers(options: dict[str, Any]) -> None:
    assert [each.certain for each in found(*TWO, **options)] == [True]


def test_a_filter_by_names_must_be_seen_to_select_the_client_afterwards() -> None:
    (finding,) = found(*TWO, services=("shop/cart",))
    assert not finding.certain and "showed nothing of this client since then" in finding.cause
    again = (*request(2 * SECOND), *request(3 * SECOND, 40002))
    assert [each.certain for each in found(*TWO, *again, services=("shop/cart",))] == [True]


def test_something_that_came_may_be_the_answer() -> None:
    assert found(*TWO, returned(MILLI, ident=77), returned(SECOND + MILLI, 40002, ident=77)) == []


def test_an_answer_that_its_node_gave_up() -> None:
    def gone(each: NodeView) -> NodeView:
        return replace(each, packet=replace(each.packet, outcome=Outcome.DROPPED))

    assert found(*TWO, gone(answer(2 * MILLI, ident=9)), gone(answer(SECOND + 2 * MILLI, 40002, ident=9))) == []


def test_a_connection_that_is_older_than_the_run() -> None:
    old: dict[str, Any] = {"tcp_flags": "ACK"}
    views = [*request(**old), answer(MILLI, **old), *request(SECOND, 40002, **old), answer(SECOND + MILLI, 40002, **old)]
    assert found(*views) == []


def test_equal_answers_are_not_told_apart() -> None:
    values: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "seq": 0, "ident": 0}
    answers = [answer(MILLI, **values), answer(MILLI + MICRO, **values)]
    assert found(*request(**values | {"ident": 5}), *answers, returned(MILLI, **values)) == []


def test_an_answer_that_comes_back_to_the_node_that_it_left() -> None:
    assert found(*TWO, answer(2 * MILLI), answer(SECOND + 2 * MILLI, 40002))[0].packets == 2, "each is counted once"


def test_packets_that_lost_events() -> None:
    hidden = [replace(each, packet=replace(each.packet, complete=False)) for each in TWO]
    assert found(*hidden) == []
    assert found(*(each for each in TWO if each.node == "b")) == [], "no request was seen at node a"


def test_clocks_that_are_not_known() -> None:
    assert found(*(replace(each, offset=None) for each in TWO)) == []
    assert found(*(replace(each, error=SECOND) for each in TWO)) == []


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_context, "FORWARDED_KEPT", 1)
    evictions.read()
    (finding,) = found(*TWO)
    assert finding.packets == 1 and not finding.certain
    assert evictions.read()["requests through two nodes"] == 1


def test_ways_that_are_no_longer_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_context, "WAYS_KEPT", 1)
    others = [
        each
        for n, left in ((1, "eth1"), (2, "eth2"))
        for each in (
            *request(-n * SECOND, 40010 + n),
            answer(-n * SECOND + MILLI, 40010 + n, left),
            returned(-n * SECOND + MILLI, 40010 + n),
        )
    ]
    assert [each.certain for each in found(*others, *TWO)] == [False]
