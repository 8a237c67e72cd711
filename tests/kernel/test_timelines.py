# SPDX-License-Identifier: Apache-2.0
"""One connection is one timeline through all translations; it shows what conntrack and kube-proxy did."""

from __future__ import annotations

import time

import pytest

from scenes import nfnetlink, rules, servers, topology, traffic
from tests.kernel import syn_scenes
from tests.kernel.sides import also_rules
from tests.kernel.timeline_runs import FollowedRun, follow, following
from tests.kernel.watching import Watch
from tracer.model.timeline import Timeline

pytestmark = pytest.mark.thorough

POD_A = topology.PODS[0]


def only(followed: FollowedRun, port: int, protocol: str = "TCP") -> Timeline:
    found = followed.timelines_to(port, protocol)
    print(followed.text)
    assert len(found) == 1, followed.text
    return found[0]


def packet_entries(timeline: Timeline) -> list[str]:
    return [
        f"{s.direction} {s.text.partition(',')[0]}"
        for s in sorted(timeline.entries, key=lambda s: s.time)
        if s.kind == "packet"
    ]


def stages(timeline: Timeline, direction: str) -> str:
    return "\n".join(stage.text for entry in timeline.entries if entry.direction == direction for stage in entry.stages)


def test_node_port_with_masquerade(watch: Watch) -> None:
    followed = follow(watch, (traffic.NODEPORT_HTTP,), traffic.http_get)
    one = only(followed, traffic.NODEPORT_HTTP)
    assert packet_entries(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"]
    assert one.state == "closed" and one.key.netns == "node"
    assert "PREROUTING DNAT" in stages(one, "->") and "POSTROUTING MASQUERADE" in stages(one, "->")
    assert "reverse DNAT" in stages(one, "<-") and "reverse MASQUERADE" in stages(one, "<-")
    verdicts = [s.text for s in one.entries if s.kind == "verdict"]
    assert len(verdicts) == 1 and verdicts[0].startswith("accepted by ") and (one.cause, one.good) == ("accepted", True)
    entry = [s.text for s in one.entries if s.kind == "conntrack"]
    assert entry and entry[0].startswith("created, SYN_SENT"), entry
    assert any("ESTABLISHED" in text for text in entry)


def test_cluster_ip_from_a_pod(watch: Watch) -> None:
    def ask() -> None:
        traffic.http_get(traffic.CLUSTER_IP_HTTP, servers.HTTP_PORT, ns="pod-b")

    followed = follow(watch, (servers.HTTP_PORT,), ask)
    one = only(followed, servers.HTTP_PORT)
    assert one.asked.dst == traffic.CLUSTER_IP_HTTP
    assert "DNAT" in stages(one, "->") and packet_entries(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"]


def test_hairpin(watch: Watch) -> None:
    """A pod that reaches itself through its Service."""

    def ask() -> None:
        for _ in range(20):
            if traffic.http_get(traffic.CLUSTER_IP_HTTP, servers.HTTP_PORT, ns=POD_A.name).server == POD_A.name:
                return

    followed = follow(watch, (servers.HTTP_PORT,), ask)
    one = followed.timelines_to(servers.HTTP_PORT)[-1]
    assert "MASQUERADE" in stages(one, "->") and f"-> {POD_A.addr4}:8080" in stages(one, "->"), followed.text
    assert packet_entries(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"], followed.text
    assert one.state == "closed"


def test_dns_with_a_stale_entry(watch: Watch) -> None:
    """The endpoint is gone, and the rules lead elsewhere; with the same client port, conntrack uses its old entry."""
    try:
        with following(watch, (traffic.NODEPORT_UDP,)) as followed:
            first = traffic.udp_ask(sport=35353)
            assert first.outcome == "answered"
            time.sleep(0.3)
            rules.restore_text(
                "*nat\n-I PREROUTING -p udp --dport 30053 -j DNAT --to-destination 10.244.0.13:5353\nCOMMIT\n",
                4,
                "legacy",
                flush=False,
            )
            time.sleep(0.3)
            second = traffic.udp_ask(sport=35353)
        assert second.server == first.server, "conntrack must keep the old translation"
        one = only(followed, traffic.NODEPORT_UDP, "UDP")
        assert packet_entries(one) == ["-> UDP", "<- UDP", "-> UDP", "<- UDP"]
        assert [s.text for s in one.entries if s.kind == "change" and "nat" in s.text], followed.text
        assert any(s.kind == "conntrack" and s.text.startswith("created") for s in one.entries), followed.text
    finally:
        rules.restore("http-proxy", "http-proxy-v6")


def test_reply_by_another_path(watch: Watch) -> None:
    scene = next(s for s in syn_scenes.SCENES if s.name == "reply by another path")
    with following(watch, (scene.port,)) as followed, scene.up():
        pass
    one = followed.timelines_to(scene.port)[0]
    entries = packet_entries(one)
    assert entries[:3] == ["-> SYN", "<- SYN ACK", "-> RST"], followed.text
    assert one.cause == "SYN-ACK not recognised" and one.state == "reset", followed.text


def test_why_the_first_syn_got_no_answer(watch: Watch) -> None:
    port = 9131
    with also_rules(f"*filter\n-I INPUT -p tcp -m tcp --dport {port} -j DROP\nCOMMIT\n"):
        followed = follow(watch, (port,), lambda: traffic.tcp_connect(topology.NODE4, port, timeout=1.5))
    one = only(followed, port)
    remarks = [s.remark for s in one.entries if s.remark]
    assert remarks == ["sent again (2. try), the first ended: DROPPED in filter/INPUT"]


def test_an_entry_that_is_removed(watch: Watch) -> None:
    def ask() -> None:
        traffic.http_get()
        time.sleep(0.2)
        nfnetlink.conntrack_flush()

    one = only(follow(watch, (traffic.NODEPORT_HTTP,), ask), traffic.NODEPORT_HTTP)
    assert any(s.kind == "conntrack" and s.text.startswith("removed by") for s in one.entries)


def test_an_icmp_error_and_a_reset(watch: Watch) -> None:
    port = 9132
    text = f"*filter\n-I INPUT -p tcp -m tcp --dport {port} -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n"
    with also_rules(text):
        rejected = only(follow(watch, (port,), lambda: traffic.tcp_connect(topology.NODE4, port)), port)
    assert packet_entries(rejected) == ["-> SYN", "! ICMP icmp-port-unreachable"]
    refused = only(follow(watch, (9133,), lambda: traffic.tcp_connect(POD_A.addr4, 9133)), 9133)
    assert packet_entries(refused) == ["-> SYN", "<- RST ACK"] and refused.state == "refused"
