# SPDX-License-Identifier: Apache-2.0
"""One connection is one timeline, whatever translations it goes through; what conntrack and kube-proxy did stands in it."""

from __future__ import annotations

import time

import pytest

from scenes import nfnetlink, rules, servers, topology, traffic
from tests.kernel import syn_scenes
from tests.kernel.sides import also_rules
from tests.kernel.timeline_runs import Story, follow, following
from tests.kernel.watching import Watch
from tracer.model.timeline import Timeline

pytestmark = pytest.mark.thorough

POD_A = topology.PODS[0]


def only(story: Story, port: int, protocol: str = "TCP") -> Timeline:
    found = story.of(port, protocol)
    print(story.text)
    assert len(found) == 1, story.text
    return found[0]


def ways(timeline: Timeline) -> list[str]:
    return [
        f"{s.direction} {s.text.partition(',')[0]}"
        for s in sorted(timeline.entries, key=lambda s: s.time)
        if s.kind == "packet"
    ]


def stages(timeline: Timeline, way: str) -> str:
    return "\n".join(stage.text for step in timeline.entries if step.direction == way for stage in step.stages)


def test_node_port_with_masquerade(watch: Watch) -> None:
    story = follow(watch, (traffic.NODEPORT_HTTP,), traffic.http_get)
    one = only(story, traffic.NODEPORT_HTTP)
    assert ways(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"]
    assert one.state == "closed" and one.key.netns == "node"
    assert "PREROUTING DNAT" in stages(one, "->") and "POSTROUTING MASQUERADE" in stages(one, "->")
    assert "reverse DNAT" in stages(one, "<-") and "reverse MASQUERADE" in stages(one, "<-")
    told = [s.text for s in one.entries if s.kind == "verdict"]
    assert len(told) == 1 and told[0].startswith("accepted by ") and (one.cause, one.good) == ("accepted", True)
    entry = [s.text for s in one.entries if s.kind == "conntrack"]
    assert entry and entry[0].startswith("created, SYN_SENT"), entry
    assert any("ESTABLISHED" in text for text in entry)


def test_cluster_ip_from_a_pod(watch: Watch) -> None:
    def ask() -> None:
        traffic.http_get(traffic.CLUSTER_IP_HTTP, servers.HTTP_PORT, ns="pod-b")

    story = follow(watch, (servers.HTTP_PORT,), ask)
    one = only(story, servers.HTTP_PORT)
    assert one.asked.dst == traffic.CLUSTER_IP_HTTP
    assert "DNAT" in stages(one, "->") and ways(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"]


def test_hairpin(watch: Watch) -> None:
    """A pod that reaches itself through its Service."""

    def ask() -> None:
        for _ in range(20):
            if traffic.http_get(traffic.CLUSTER_IP_HTTP, servers.HTTP_PORT, ns=POD_A.name).server == POD_A.name:
                return

    story = follow(watch, (servers.HTTP_PORT,), ask)
    one = story.of(servers.HTTP_PORT)[-1]
    assert "MASQUERADE" in stages(one, "->") and f"-> {POD_A.addr4}:8080" in stages(one, "->"), story.text
    assert ways(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"], story.text
    assert one.state == "closed"


def test_dns_with_a_stale_entry(watch: Watch) -> None:
    """The endpoint is gone, and the rules lead elsewhere; the client's port is the same, so conntrack does not ask them."""
    try:
        with following(watch, (traffic.NODEPORT_UDP,)) as story:
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
        assert second.server == first.server, "conntrack has kept the old way"
        one = only(story, traffic.NODEPORT_UDP, "UDP")
        assert ways(one) == ["-> UDP", "<- UDP", "-> UDP", "<- UDP"]
        assert [s.text for s in one.entries if s.kind == "change" and "nat" in s.text], story.text
        assert any(s.kind == "conntrack" and s.text.startswith("created") for s in one.entries), story.text
    finally:
        rules.restore("http-proxy", "http-proxy-v6")


def test_reply_by_another_path(watch: Watch) -> None:
    scene = next(s for s in syn_scenes.SCENES if s.name == "reply by another path")
    with following(watch, (scene.port,)) as story, scene.up():
        pass
    one = story.of(scene.port)[0]
    found = ways(one)
    assert found[:3] == ["-> SYN", "<- SYN ACK", "-> RST"], story.text
    assert one.cause == "SYN-ACK not recognised" and one.state == "reset", story.text


def test_what_ate_the_first_try(watch: Watch) -> None:
    port = 9131
    with also_rules(f"*filter\n-I INPUT -p tcp -m tcp --dport {port} -j DROP\nCOMMIT\n"):
        story = follow(watch, (port,), lambda: traffic.tcp_connect(topology.NODE4, port, timeout=1.5))
    one = only(story, port)
    again = [s.remark for s in one.entries if s.remark]
    assert again == ["sent again (2. try), the first ended: DROPPED in filter/INPUT"]


def test_an_entry_that_somebody_removes(watch: Watch) -> None:
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
    assert ways(rejected) == ["-> SYN", "! ICMP icmp-port-unreachable"]
    refused = only(follow(watch, (9133,), lambda: traffic.tcp_connect(POD_A.addr4, 9133)), 9133)
    assert ways(refused) == ["-> SYN", "<- RST ACK"] and refused.state == "refused"
