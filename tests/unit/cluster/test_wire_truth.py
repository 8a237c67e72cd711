# SPDX-License-Identifier: Apache-2.0
"""The comparison of the plugin's lines with the log of the wire."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tests.cluster  # noqa: F401  # the path of lab
from lab.wire import Fate, WireFrame
from lab.wire_key import WireKey
from tests.cluster import wire_truth

KEY = WireKey(6, "10.244.1.12", 41000, "10.244.2.11", 8080, 99, 60, 1_000_000, 0, 2, tunnel=True)


def frame(fate: Fate, ip_id: int = 99) -> WireFrame:
    return WireFrame(1, "node-a", "node-b", KEY._replace(ip_id=ip_id), fate)


def view(node: str, hops: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    ends = {"src": "10.244.1.12", "sport": 41000, "dst": "10.244.2.11", "dport": 8080}
    packet = {"proto": "tcp", "ip_id": 99, "seq": 1_000_000, "length": 60, "outcome": "forwarded"}
    return {"type": "packet", "node": node, "netns": "node", **ends, **packet, "hops": hops, **fields}


def nat(after: dict[str, Any]) -> dict[str, Any]:
    return {"what": "nat", "netns": "node", "hook": "PREROUTING", "nat": {"kind": "DNAT", "before": {}, "after": after}}


def leaves(interface: str) -> dict[str, Any]:
    return {"what": "hook", "netns": "node", "hook": "POSTROUTING", "verdict": "ACCEPT", "out_ifname": interface}


SENT = view(
    "node-a",
    [nat({"src": "10.244.1.12", "sport": 41000, "dst": "10.244.2.11", "dport": 8080}), leaves("flannel.1")],
    dst="172.30.0.10",
    dport=80,
    ifname="cni0",
)
COME = view("node-b", [leaves("cni0")], ifname="flannel.1")


def test_a_packet_leaves_with_its_translated_addresses_and_comes_with_them() -> None:
    truth, seen = wire_truth.of_log([frame(Fate.CARRIED)]), wire_truth.of_views([SENT, COME])
    assert (truth.sent, truth.come) == (seen.sent, seen.come)
    assert sum(seen.sent.values()) == sum(seen.come.values()) == 1


def test_a_packet_of_one_node_is_on_no_wire() -> None:
    stays = view("node-a", [leaves("cni0")], ifname="cni0")
    assert not wire_truth.of_views([stays]).sent and not wire_truth.of_views([stays]).come


def test_an_interface_of_a_pod_is_not_on_the_wire() -> None:
    in_pod = view("node-a", [{**leaves("eth0"), "netns": "shop-a"}], ifname="eth0", netns="shop-a")
    assert not wire_truth.of_views([in_pod]).sent and not wire_truth.of_views([in_pod]).come


def test_lost_and_doubled_packets_are_counted_as_the_wire_had_them() -> None:
    truth = wire_truth.of_log([frame(Fate.DROPPED, 1), frame(Fate.DOUBLED, 2), frame(Fate.HELD, 3)])
    assert sum(truth.sent.values()) == 3
    assert {head.ip_id: count for (_, head), count in truth.come.items()} == {2: 2, 3: 1}


def test_a_difference_names_the_node_and_the_packet() -> None:
    truth, seen = wire_truth.of_log([frame(Fate.CARRIED)]), wire_truth.of_views([SENT])
    (line,) = wire_truth.differences(truth.come, seen.come, "came")
    assert line.startswith("node-b: came 1 times, seen 0 times: WireHead(proto='tcp'")
    assert wire_truth.differences(Counter(), Counter(), "came") == []
