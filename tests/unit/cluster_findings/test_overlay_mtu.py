# SPDX-License-Identifier: Apache-2.0
"""Long packets that do not get through between two nodes, beside short ones that do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.node_views import ENDS, INSIDE_NS, MICRO, MILLI, POD_A, POD_B, SECOND, view
from tests.support.traced_clusters import TracedCluster
from tracer.cluster_findings import cluster_context
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop
from tracer.model.joined_packet import NodeView
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Verdict
from tracer.util.evictions import evictions

TOO_BIG = Drop("PKT_TOO_BIG", "ip_forward")
ARRIVED = INSIDE_NS + 100 * MICRO


def came(time: int, length: int = 152, **values: Any) -> list[NodeView]:
    """A packet that left node a and came to node b."""
    fields = {"ident": time // MILLI % 60000 + 1, "seq": time // MILLI % 100000 * 10000, "length": length} | values
    return [view("a", time, **fields), view("b", time + ARRIVED, "in", **fields)]


def lost(time: int, length: int = 1500, **values: Any) -> NodeView:
    """A packet that left node a and never came."""
    return came(time, length, **values)[0]


def too_long(
    time: int, length: int = 1500, node: str = "a", netns: Netns = HOST, drop: Drop = TOO_BIG, **values: Any
) -> NodeView:
    """A packet that a node dropped because it was too long."""
    made = view(node, time, "drop", length=length, **{"seq": 1, "ident": time // MILLI % 60000 + 1} | values)
    hop = DropHop(INSIDE_NS, netns, drop=drop, verdict=Verdict.DROP)
    return replace(made, packet=replace(made.packet, hops=(made.packet.hops[0], hop)))


def found(*views: NodeView, ended: bool = True, **options: Any) -> list[Finding]:
    cluster = TracedCluster("ab", **options)
    cluster.settle(*views)
    if ended:
        cluster.end()
    return [each for each in cluster.findings.all if each.name == "overlay_mtu"]


SHORT = (*came(-2 * SECOND), *came(-SECOND, 1450))
AFTER = (*came(5 * SECOND), *came(6 * SECOND, 1000))


# ---- dropped by a node, and sent again all the same ----


def test_a_sender_that_goes_on_with_packets_that_are_too_long() -> None:
    (finding,) = found(*SHORT, too_long(0), too_long(MILLI), too_long(3 * SECOND), ended=False)
    assert finding.certain and finding.cause == (
        "Packets of 1500 bytes are too long for the way from node a to pods of node b, where the longest that came had 1450"
        " bytes: node a drops them, and the sender still sends them 3 s later."
    )
    texts = [proof.text for proof in finding.proofs]
    assert texts[1:] == [
        "node a dropped 3 equal packets of this flow in 3 s",
        "2 packets from node a to pods of node b came, the longest had 1450 bytes",
    ]
    assert f"`ping -c 1 -M do -s 1472 {POD_B}`" in finding.check and "VXLAN and Geneve 50" in finding.check


def test_a_sender_that_learns_the_mtu() -> None:
    """Several segments of one burst are dropped together; then it sends shorter ones."""
    burst = [too_long(n * MILLI, seq=n) for n in range(9)]
    assert found(*SHORT, *burst, *came(SECOND, 1450), *AFTER) == []


@pytest.mark.parametrize(
    "views",
    [
        [too_long(0), too_long(3 * SECOND)],  # nothing came on this way
        [*SHORT, too_long(0), too_long(3 * SECOND, seq=2)],  # not the same segment
        [*SHORT, *came(-SECOND, 1500), too_long(0), too_long(3 * SECOND)],  # as long a packet came
        [*SHORT, too_long(0), too_long(3 * SECOND, ends=replace(ENDS, sport=2))],  # another flow
        [*SHORT, too_long(0, complete=False), too_long(3 * SECOND, complete=False)],
        [*SHORT, too_long(0, netns=Netns("shop")), too_long(3 * SECOND, netns=Netns("shop"))],  # inside of a pod
        [*SHORT, too_long(0, node="b"), too_long(3 * SECOND, node="b")],  # at its own node
        [*SHORT, *(too_long(n, ends=replace(ENDS, dst="8.8.8.8")) for n in (0, 3 * SECOND))],
        [*SHORT, view("a", 0, "drop", length=1500, seq=1), view("a", 3 * SECOND, "drop", length=1500, seq=1)],  # another reason
    ],
)
def test_drops_that_say_nothing_about_the_way(views: list[NodeView]) -> None:
    assert found(*views) == []


def test_a_program_may_try_how_long_datagrams_can_be() -> None:
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "seq": 0}
    (finding,) = found(*SHORT, too_long(0, **udp), too_long(3 * SECOND, **udp))
    assert not finding.certain and finding.cause.startswith("Perhaps packets of 1500 bytes")
    assert finding.cause.endswith("Its program may try on purpose how long datagrams can be.")


def test_a_kernel_without_reasons() -> None:
    old = Drop("", "ip_fragment")
    views = [too_long(0, drop=old), too_long(3 * SECOND, drop=old)]
    assert [finding.certain for finding in found(*SHORT, *views)] == [True]


# ---- lost between the nodes ----


def test_all_long_ones_are_lost_and_short_ones_come() -> None:
    (finding,) = found(*SHORT, lost(0, 1460), lost(SECOND), lost(2 * SECOND, 1480), *AFTER)
    assert not finding.certain and finding.cause == (
        "Perhaps long packets are too long for the way from node a to pods of node b: all 3 that were lost had 1460 to 1500"
        " bytes, and the longest that came had 1450."
    )
    assert [proof.text for proof in finding.proofs] == [
        "3 packets of 1460 to 1500 bytes left node a and were lost",
        "shorter ones that left after the first of them came",
        "4 packets from node a to pods of node b came, the longest had 1450 bytes",
    ]
    assert "they left by eth0" in finding.check


def test_it_is_said_at_the_end_alone() -> None:
    assert found(*SHORT, lost(0), lost(SECOND), *AFTER, ended=False) == []


@pytest.mark.parametrize(
    "views",
    [
        [*SHORT, lost(0), *AFTER],  # one
        [*SHORT, lost(0), lost(SECOND), lost(2 * SECOND, 152), *AFTER],  # a short one, too
        [*SHORT, lost(0, 152), *(lost(n * SECOND, 152) for n in (1, 2)), lost(3 * SECOND), *AFTER],
        [*SHORT, lost(0), lost(SECOND)],  # nothing comes any more
        [*SHORT, lost(0), lost(SECOND), *came(2 * SECOND, 1500), *AFTER],  # one as long came
        [lost(0), lost(SECOND)],  # nothing ever came
        [*SHORT, lost(0), lost(SECOND, 9000), lost(2 * SECOND, 30000), *AFTER],  # the network card may divide them
        [*SHORT, *came(0, 1500), *came(SECOND, 1500), *AFTER],  # nothing is lost
        [*SHORT, lost(0, complete=False), lost(SECOND, complete=False), *AFTER],
    ],
)
def test_losses_that_say_nothing_about_lengths(views: list[NodeView]) -> None:
    assert found(*views) == []


def test_losses_that_are_not_certain_do_not_count() -> None:
    views = (*SHORT, lost(0), lost(SECOND), *AFTER)
    cluster = TracedCluster("ab")
    cluster.note_loss("b", 0, 2 * SECOND)
    cluster.settle(*views)
    assert all(each.name != "overlay_mtu" for each in cluster.end())
    assert found(*views, ports=("81",)) == []
    assert found(*(replace(each, offset=None) for each in views)) == []


def test_long_datagrams_that_are_lost() -> None:
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "seq": 0, "ack": 0}
    (finding,) = found(*SHORT, lost(0, 9000, **udp), lost(SECOND, 9000, **udp), *AFTER)
    assert "all 2 that were lost had 9000 bytes" in finding.cause


def test_messages_of_routers_are_counted() -> None:
    report = view(
        "a", SECOND, "in", ends=Endpoints("192.168.60.1", 0, POD_A, 0), protocol="ICMP", tcp_flags="", seq=0, ack=0, icmp=(3, 4)
    )
    (finding,) = found(*SHORT, lost(0), report, lost(SECOND), *AFTER)
    assert finding.proofs[-1].text == "1 ICMP messages 'too long' to 10.244.1.7 were seen" and not finding.certain


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_context, "FLOWS_KEPT", 1)
    monkeypatch.setattr(cluster_context, "WAYS_KEPT", 1)
    evictions.read()
    found(*SHORT, *came(0, ends=replace(ENDS, dst="192.168.60.12")), too_long(0), too_long(1, seq=2), too_long(2, seq=3))
    counts = evictions.read()
    assert counts["flows with packets that are too long"] == 2 and counts["lengths between nodes"] >= 1


def test_nothing_is_said_when_lengths_are_no_longer_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_context, "WAYS_KEPT", 1)
    other = came(-3 * SECOND, ends=replace(ENDS, dst="192.168.60.12"))
    assert found(*other, *SHORT, too_long(0), too_long(3 * SECOND)) == []
    assert found(*other, *SHORT, lost(0), lost(SECOND), *AFTER) == []
