# SPDX-License-Identifier: Apache-2.0
"""What is called lost between two nodes, and all that hides it: then nothing is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import lost_check
from tests.support.node_views import ENDS, INSIDE_NS, MICRO, MILLI, POD_A, POD_B, SECOND, view
from tests.support.traced_clusters import BEGAN, NODES, TracedCluster
from tracer import cluster_findings
from tracer.cluster_findings import GIVEN_UP, INCOMPLETE, LATE_NS, MANY_EQUAL, SETTLED_NS, lost_between_nodes, seen_packets
from tracer.joining import traced_nodes
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.joined_packet import NodeView
from tracer.model.namespace_name import Netns
from tracer.util.evictions import evictions

ARRIVED = INSIDE_NS + 100 * MICRO
UDP: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "seq": 0, "ack": 0}
AGAIN = 300 * MILLI


def came(time: int = 0, **values: Any) -> list[NodeView]:
    """The views of a packet that left node a and came to node b."""
    return [view("a", time, **values), view("b", time + ARRIVED, "in", **values)]


def other(time: int = -SECOND, **values: Any) -> list[NodeView]:
    """An earlier packet on the same way: it shows that node b shows what comes."""
    return came(time, **{"ident": 7, "seq": 5} | values)


def found(*views: NodeView, nodes: str = "ab", **options: Any) -> tuple[list[Finding], dict[str, int]]:
    cluster = TracedCluster(nodes, **options)
    return cluster.settle(*views), dict(cluster.findings.undecided)


def test_a_packet_that_never_came_is_lost() -> None:
    cluster = TracedCluster()
    (finding,) = cluster.settle(*other(), view("a"))
    assert (finding.name, finding.certain, finding.packets) == ("lost_between_nodes", True, 1)
    assert finding.cause == (
        "Packets from node a to node b are lost between the two nodes: they left by eth0, and never came to netfilter of node"
        " b."
    )
    assert "`bpftool net` lists programs that may take packets before netfilter does" in finding.check
    texts = [proof.text for proof in finding.proofs]
    assert texts == [
        "10.244.1.7:40001 -> 10.244.2.8:8080, TCP ACK, 152 bytes, IP identification 4711: left node a by eth0",
        "10.244.2.8 is an address of pod shop/cart-b on node b",
        "node b was traced then, lost no events, and shows no such packet",
        "other such packets that left by eth0 came to node b",
    ]
    assert "`ip neigh show dev eth0`" in finding.check and "src host 10.244.1.7 and dst host 10.244.2.8" in finding.check
    assert not cluster.findings.undecided


def test_it_is_said_once_and_counted() -> None:
    cluster = TracedCluster()
    cluster.show(*other(), view("a"), view("a", SECOND, ident=4712, seq=78))
    assert cluster.reach(SETTLED_NS // 2) == []
    ((node, finding),) = cluster.reach(SETTLED_NS + 3 * SECOND)
    assert node == "a" and finding.packets == 1
    (finding,) = cluster.findings.all
    assert (finding.packets, len(finding.numbers)) == (2, 2)
    assert cluster.reach(2 * SETTLED_NS) == []


def test_a_packet_that_came_is_not_lost() -> None:
    assert found(*other(), *came()) == ([], {})
    assert found(*came(**UDP)) == ([], {})


def test_one_that_came_late_is_not_lost() -> None:
    late = view("b", 3 * SECOND, "in")
    assert found(*other(), view("a"), late) == ([], {lost_between_nodes.SOMETHING_CAME: 1})
    late = view("b", 3 * SECOND, "in", **UDP)
    assert found(*other(), view("a", **UDP), late) == ([], {lost_between_nodes.SOMETHING_CAME: 1})


def test_one_that_was_sent_late_by_its_node_is_not_lost() -> None:
    cluster = TracedCluster()
    cluster.show(*other(), view("a"))
    cluster.reach(SETTLED_NS - SECOND)
    cluster.show(view("b", ARRIVED, "in"))
    assert cluster.settle() == [] and cluster.reach(2 * SETTLED_NS) == []
    assert cluster.findings.undecided == {lost_between_nodes.SOMETHING_CAME: 1}


def test_a_segment_that_is_sent_again_does_not_hide_the_first_one() -> None:
    (finding,) = found(*other(), view("a"), *came(AGAIN, ident=4712))[0]
    assert (finding.certain, finding.packets) == (True, 1)


def test_one_that_is_sent_again_and_not_shown_by_its_sender_hides_the_first_one() -> None:
    again = view("b", AGAIN, "in", ident=4712)
    assert found(*other(), view("a"), again) == ([], {lost_between_nodes.SOMETHING_CAME: 1})


def test_segments_that_were_merged_hide_each_other() -> None:
    # The second of three that were merged has an identification that nothing explains.
    merged = view("b", ARRIVED, "in", length=52 + 3000, seq=1000, ident=10)
    sent = [view("a", n, length=52 + 1000, seq=1000 + n * 1000, ident=ident) for n, ident in enumerate((10, 20, 12))]
    assert found(*other(), *sent, merged)[0] == []
    far = view("a", length=52 + 1000, seq=90_000, ident=13)
    (finding,) = found(*other(ack=88), sent[0], sent[2], far, merged)[0]
    assert finding.packets == 1


@pytest.mark.parametrize("since", [-SECOND - MILLI, -SECOND, 0, 2 * SECOND, 3 * SECOND])
@pytest.mark.parametrize("node", ["a", "b"])
def test_nothing_is_said_when_a_node_lost_events(node: str, since: int) -> None:
    cluster = TracedCluster()
    cluster.note_loss(node, since, since + SECOND)
    assert cluster.settle(*other(-5 * SECOND), view("a")) == []
    assert cluster.findings.undecided == {traced_nodes.LOST_SOMETHING: 1}


def test_losses_at_other_times_hide_nothing() -> None:
    cluster = TracedCluster()
    cluster.note_loss("b", -9 * SECOND, -8 * SECOND)
    cluster.note_loss("b", 5 * SECOND, 8 * SECOND)
    cluster.note_loss("c", 0, SECOND)
    assert len(cluster.settle(*other(), view("a"))) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"ports": ("81",)}, {"hosts": ("192.168.0.0/16",)}, {"sources": ("192.168.56.1",)}, {"proto": "udp"},
        {"tcp_flags": ("syn",)}, {"family": 6}, {"iface": "eth0"}, {"netns": "shop"}, {"pids": (7,)}, {"drops_only": True},
        {"quiet": True}, {"expression": "tcp"}, {"excluded_ports": ("81",)}, {"services": ("shop/other",)},
        {"pods": ("shop/cart-c",)}, {"sources": ("pod/shop/cart-b",)}, {"node_ports": (30081,)},
    ],
)  # fmt: skip
def test_nothing_is_said_when_the_filter_may_leave_it_out(options: dict[str, Any]) -> None:
    if "expression" in options:
        pytest.importorskip("tracer.selection.pcap_expression")
    assert found(*other(), view("a"), **options) == ([], {lost_between_nodes.NOT_SELECTED: 1})


@pytest.mark.parametrize(
    "options",
    [
        {"ports": ("8080",)}, {"hosts": ("10.244.0.0/16",)}, {"sources": (POD_A,)}, {"proto": "tcp"}, {"tcp_flags": ("ack",)},
        {"destinations": (POD_B,), "family": 4},
    ],
)  # fmt: skip
def test_a_filter_that_selects_it_at_both_nodes(options: dict[str, Any]) -> None:
    assert len(found(*other(), view("a"), **options)[0]) == 1


@pytest.mark.parametrize(
    "options", [{"services": ("shop/cart",)}, {"pods": ("shop/cart-b",)}, {"node_ports": (30080,)}, {"namespaces": ("shop",)}]
)
def test_a_filter_by_names_must_be_seen_to_select_the_end_afterwards(options: dict[str, Any]) -> None:
    assert found(*other(), view("a"), **options) == ([], {lost_between_nodes.FILTER_CHANGES: 1})
    assert len(found(*other(), view("a"), *other(SECOND, seq=99), **options)[0]) == 1


def test_a_node_port_is_one_of_the_other_node() -> None:
    ends = Endpoints("192.168.56.1", 40001, NODES["b"], 30080)
    later = other(SECOND, ends=ends, seq=99)
    assert len(found(*other(ends=ends), view("a", ends=ends), *later, services=("shop/cart",))[0]) == 1
    assert found(*other(ends=ends.reversed), *other(ends=ends), view("a", ends=ends), *later, services=("shop/other",))[0] == []


def test_probes_that_came_on_later_saw_nothing() -> None:
    assert found(*other(BEGAN + 2 * SECOND), view("a", BEGAN - MILLI)) == ([], {traced_nodes.NOT_TRACED: 1})


def test_a_node_that_is_behind_may_still_show_it() -> None:
    for ending in ("it goes on", "it has ended", "it is too slow"):
        cluster = TracedCluster()
        cluster.show(*other(), view("a"))
        cluster.reach(SETTLED_NS - SECOND, "b")
        cluster.reach(2 * SETTLED_NS, "a")
        assert cluster.findings.all == [] and not cluster.findings.undecided
        if ending == "it goes on":
            assert len(cluster.reach(2 * SETTLED_NS)) == 1
            continue
        if ending == "it has ended":
            cluster.nodes.close("b")
        cluster.reach(2 * SETTLED_NS + 1 if ending == "it has ended" else LATE_NS + SECOND, "a")
        assert cluster.findings.all == [] and cluster.findings.undecided == {traced_nodes.NOT_SENT: 1}


def test_one_batch_behind_what_a_node_has_sent() -> None:
    cluster = TracedCluster()
    cluster.nodes.advance("b", 5)
    assert cluster.nodes.gap("b", -(1 << 61), 5) == traced_nodes.NOT_TRACED
    cluster.nodes.begin("d", 1)
    cluster.nodes.advance("d", 5)
    assert cluster.nodes.gap("d", 2, 5) == traced_nodes.NOT_SENT
    cluster.nodes.advance("d", 9)
    assert (cluster.nodes.gap("d", 2, 5), cluster.nodes.gap("d", 2, 6)) == ("", traced_nodes.NOT_SENT)


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_end_of_the_run(is_whole: bool) -> None:
    cluster = TracedCluster()
    cluster.show(*other(), view("a"), view("a", 4 * SECOND, ident=4712, seq=99))
    cluster.reach(5 * SECOND)
    assert [finding.packets for finding in cluster.end(is_whole)] == ([1] if is_whole else [])
    hidden = {} if is_whole else {traced_nodes.LOST_SOMETHING: 1}
    assert cluster.findings.undecided == {traced_nodes.NOT_SENT: 1} | hidden


def test_packets_that_a_node_has_not_explained_hide_the_last_ones() -> None:
    cluster = TracedCluster()
    cluster.show(*other(), view("a"))
    cluster.nodes.end("b", is_whole=False)
    assert cluster.settle() == [] and cluster.findings.undecided == {traced_nodes.LOST_SOMETHING: 1}


def test_equal_packets_are_not_told_apart() -> None:
    twice = {**UDP, "ident": 0}
    views = [view("a", **twice), view("a", MICRO, **twice), view("b", ARRIVED, "in", **twice)]
    assert found(*other(), *views) == ([], {MANY_EQUAL: 2})


def test_a_datagram_without_identification_that_never_came_is_lost() -> None:
    assert len(found(*other(**UDP), view("a", **{**UDP, "ident": 0}))[0]) == 1


def test_a_datagram_beside_a_doubled_one_is_lost() -> None:
    values = {**UDP, "length": 200, "ident": 9}
    doubled = [*came(**values), view("b", 2 * ARRIVED, "in", **values)]
    findings, undecided = found(*other(**UDP), *doubled, view("a", MICRO, **UDP))
    assert (len(findings), undecided) == (1, {MANY_EQUAL: 1})


def test_three_nodes() -> None:
    # Through node c: lost before it, behind it, and not at all.
    through = [view("a"), view("c", ARRIVED, "through"), view("b", 2 * ARRIVED, "in")]
    assert found(*through, nodes="abc") == ([], {})
    first = other(-SECOND)
    (finding,) = found(*first, view("a"), nodes="abc")[0]
    assert finding.key == ("IPv4", "a", "eth0", "b", True)
    way = {"ident": 9, "seq": 2}
    earlier = [view("c", -SECOND, "through", **way), view("b", ARRIVED - SECOND, "in", **way)]
    (finding,) = found(*earlier, *through[:2], nodes="abc")[0]
    assert finding.key == ("IPv4", "c", "eth0", "b", True) and finding.certain


def test_a_node_that_is_not_traced_is_none_of_this_run() -> None:
    assert found(view("a", ends=replace(ENDS, dst="10.244.3.9"))) == ([], {})
    assert found(view("a", ends=replace(ENDS, dst="8.8.8.8"))) == ([], {})
    assert found(view("b", ends=ENDS)) == ([], {}), "its own pod"


def test_translated_on_its_way_it_is_not_lost() -> None:
    behind = replace(ENDS, src="192.168.60.99", sport=1234)
    syn: dict[str, Any] = {"tcp_flags": "SYN", "ident": 3}
    assert found(*other(), view("a", **syn), view("b", ARRIVED, "in", ends=behind, **syn)) == ([], {})
    assert found(*other(), view("a"), view("b", ARRIVED, "in", ends=behind, ident=99))[0] == []
    assert found(*other(), view("a", **UDP), view("b", ARRIVED, "in", ends=behind, **UDP))[0] == []
    (finding,) = found(*other(**UDP), view("a", **UDP), view("b", ARRIVED, "in", ends=behind, **UDP | {"ident": 5}))[0]
    assert finding.certain, "another identification is another packet"


def test_translated_before_it_left_it_is_known_by_its_new_destination() -> None:
    service = Endpoints(POD_A, 40001, "172.30.0.10", 80)
    (finding,) = found(*other(), view("a", ends=service, to=ENDS))[0]
    assert finding.proofs[0].text.startswith("10.244.1.7:40001 -> 10.244.2.8:8080")
    assert found(*other(), view("a", ends=service, to=ENDS), view("b", ARRIVED, "in")) == ([], {})


def test_fragments_that_came_hide_the_whole() -> None:
    values = {**UDP, "length": 4000}
    part = view("b", ARRIVED, "in", ends=Endpoints(POD_A, 0, POD_B, 0), **{**values, "length": 1500})
    assert found(*other(**UDP), view("a", **values), part) == ([], {lost_between_nodes.SOMETHING_CAME: 1})


def test_a_packet_that_its_node_gave_up_later_is_not_lost_between_nodes() -> None:
    late = view("a", 3 * SECOND, "drop")
    assert found(*other(), view("a"), late)[0] == []
    dropped = replace(late, packet=replace(late.packet, hops=late.packet.hops[-1:]))
    assert found(*other(), view("a"), dropped) == ([], {})


def test_a_packet_that_was_dropped_before_the_hooks_of_its_node_is_not_lost() -> None:
    late = view("b", ARRIVED, "drop")
    dropped = replace(late, packet=replace(late.packet, hops=late.packet.hops[-1:]))
    assert found(*other(), view("a"), dropped)[0] == []


def test_a_packet_that_only_left_a_pod() -> None:
    sent = view("a")
    hops = tuple(replace(hop, netns=Netns("shop")) for hop in sent.packet.hops)
    assert found(*other(), replace(sent, packet=replace(sent.packet, hops=hops))) == ([], {})


def test_without_a_packet_that_came_it_is_only_likely() -> None:
    (finding,) = found(view("a"))[0]
    assert not finding.certain and finding.cause.startswith("Perhaps packets from node a")
    assert "may not show such packets" in finding.cause
    answer = view("a", SECOND, "in", ends=ENDS.reversed, ident=1)
    assert found(view("a"), answer) == ([], {lost_between_nodes.ANSWERED: 1})
    answer = view("b", SECOND, ends=ENDS.reversed, ident=1)
    findings, undecided = found(view("a"), answer)
    assert [finding.key[1] for finding in findings] == ["b"] and undecided == {lost_between_nodes.ANSWERED: 1}


def test_packets_that_lost_events_or_were_given_up_say_nothing() -> None:
    assert found(*other(), view("a", complete=False)) == ([], {INCOMPLETE: 1})
    cluster = TracedCluster()
    cluster._joiner._max_waiting = 1
    (finding,) = cluster.settle(*(view("a", n, ident=n + 1) for n in range(5)))
    assert finding.packets == 1 and cluster.findings.undecided == {GIVEN_UP: 4}


def test_clocks_that_are_not_known() -> None:
    cluster = TracedCluster()
    assert cluster.settle(*other(), view("a", error=SECOND)) == []
    assert cluster.settle(view("a", offset=None)) == []
    assert set(cluster.findings.undecided) <= {lost_between_nodes.CLOCKS, traced_nodes.NOT_SENT, traced_nodes.NOT_TRACED}


def test_only_long_packets_are_lost() -> None:
    (finding,) = found(*other(length=1400), view("a", length=1500))[0]
    assert finding.proofs[-1].text == "packets of at most 1400 bytes came; this one has 1500"
    assert "MTU" in finding.cure


def test_a_name_from_a_node_is_no_command() -> None:
    for name in ("eth0;reboot", "$(reboot)", "`id`", "-x", "a'b"):
        earlier, lost = other(), view("a")
        views = [_by(name, each) if each.node == "a" else each for each in (*earlier, lost)]
        (finding,) = found(*views)[0]
        assert "`ip -s link show`" in finding.check and name not in finding.check
    views = [_by("flannel.1", each) if each.node == "a" else each for each in (*other(), view("a"))]
    (finding,) = found(*views)[0]
    assert "`tcpdump -ni any 'udp port 8472 or udp port 4789'`" in finding.check and "VXLAN" in finding.cure


def _by(iface: str, seen: NodeView) -> NodeView:
    hops = tuple(replace(hop, out_iface=iface) if hop.out_iface else hop for hop in seen.packet.hops)
    return replace(seen, packet=replace(seen.packet, hops=hops))


def test_odd_values_say_nothing_wrong() -> None:
    odd = [
        view("a", seq=(1 << 32) - 1, length=0),
        view("a", length=1 << 40, seq=1 << 50),
        view("a", ends=Endpoints("", 0, "", 0)),
        view("a", ends=Endpoints("x", -1, POD_B, 1 << 40)),
        view("a", protocol="250", tcp_flags=""),
        view("a", offset=-(1 << 62)),
        view("no such node"),
    ]
    for each in odd:
        for finding in found(*other(), each)[0]:
            assert finding.name == "lost_between_nodes"


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_findings, "MOST_WAITING", 3)
    evictions.read()
    cluster = TracedCluster()
    (finding,) = cluster.settle(*other(), *(view("a", n * MICRO, ident=n + 100) for n in range(5)))
    assert finding.packets == 3 and cluster.findings.undecided == {GIVEN_UP: 2}
    assert evictions.read()["packets that seem to be lost"] == 2


def test_what_came_is_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_packets, "MOST_SEEN", 3)
    evictions.read()
    cluster = TracedCluster()
    strangers = [view("b", ARRIVED + n, "in", ends=Endpoints("8.8.8.8", n + 1, POD_B, 53), **UDP) for n in range(5)]
    assert cluster.settle(*other(), view("a"), *strangers) == [], "one of those that were given up may be it"
    assert cluster.findings.undecided == {GIVEN_UP: 1}
    assert evictions.read()["packets without a certain departure"] == 2
    seen = cluster.findings.context.seen
    assert len(seen) == 3
    cluster.reach(200 * SECOND)
    assert len(seen) == 0 and not seen._by_key
    later = other(201 * SECOND), view("a", 202 * SECOND)
    assert len(cluster.settle(*later[0], later[1])) == 1


def test_a_pod_that_its_node_has_not_shown_lately_may_have_gone() -> None:
    earlier = other(-SECOND, ends=replace(ENDS, dst="10.244.2.9"))
    (finding,) = found(*earlier, view("a"))[0]
    assert not finding.certain and finding.cause.endswith("Node b has not shown 10.244.2.8 lately, so the pod may have gone.")
    (finding,) = found(*earlier, *other(-2 * SECOND, ends=replace(ENDS, dport=53)), view("a"))[0]
    assert finding.certain


def test_a_node_may_show_only_packets_for_itself() -> None:
    to_node = Endpoints(POD_A, 40001, NODES["b"], 8080)
    earlier = other(-SECOND, ends=to_node)
    (finding,) = found(*earlier, view("a"))[0]
    assert not finding.certain and "No packet for a pod there that left by eth0" in finding.cause
    (finding,) = found(*earlier, view("a", ends=replace(to_node, dport=1)))[0]
    assert finding.certain, "a node does not go"


def test_made_traffic_of_three_nodes() -> None:
    """Losses, duplicates, reordering, translations, loops, merged segments, lost events: nothing that came is called lost."""
    result = lost_check.check(6000, rate=400)
    assert result.wrong == [] and 10 < result.found + result.likely <= result.lost


def test_a_node_that_has_ended_does_not_end_the_wait_for_the_other_one() -> None:
    """A capture may be read to its end before that of the other node."""
    cluster = TracedCluster()
    cluster.show(*other(), view("a"))
    cluster.reach(SETTLED_NS // 2)
    cluster.nodes.close("a")
    assert cluster.reach(SETTLED_NS + SECOND, "a") == [] and not cluster.findings.undecided
    ((node, finding),) = cluster.reach(SETTLED_NS + 3 * SECOND, "b")
    assert (node, finding.certain) == ("a", True) and not cluster.findings.undecided
