# SPDX-License-Identifier: Apache-2.0
"""A copy of a followed packet is followed as the same packet, and marked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import rules, topology, traffic
from tests.kernel.watching import Watch
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter
from tracer.model.hop import DropHop

TEE = f"""*mangle
-A PREROUTING -i eth0 -p udp --dport {traffic.NODEPORT_UDP} -j TEE --gateway {topology.PODS[1].addr4}
COMMIT
"""


@pytest.fixture
def tee(watch: Watch) -> Iterator[None]:
    rules.restore_text(TEE, 4, "legacy", flush=False)
    yield
    rules.restore("http-proxy", "http-proxy-v6")


def test_tee(watch: Watch, tee: None) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_UDP,))) as seen:
        assert traffic.udp_ask().outcome == "answered"
    request = seen.packets[0]
    assert request.outcome == "delivered", request.verdict
    copies = [h for h in request.hops if h.clone]
    assert any(h.out_iface == "cni0" and h.hook == "OUTPUT" for h in copies), [(h.hook, h.out_iface) for h in request.hops]


@pytest.fixture
def no_learning() -> Iterator[None]:
    """The bridge learns no address, so it floods each packet to a pod. The node knows the pods' link addresses."""
    for _ in range(6):
        traffic.http_get()
    learning = [Path(f"/sys/class/net/{pod.host_end}/brport/learning") for pod in topology.PODS]
    for switch in learning:
        switch.write_text("0")
    Path(f"/sys/class/net/{topology.BRIDGE}/bridge/flush").write_text("1")
    yield
    for switch in learning:
        switch.write_text("1")


@pytest.mark.matrix
def test_a_flooded_syn_is_the_one_that_is_accepted(watch: Watch, no_learning: None) -> None:
    """For each pod: the SYN's cause names the pod that accepted it, and all other pods get a copy."""
    replies: list[traffic.Reply] = []
    with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
        while len({reply.server for reply in replies}) < 2 and len(replies) < 12:
            replies.append(traffic.http_get())
    analyzer = HandshakeAnalyzer()
    for packet in seen.packets:
        analyzer.feed(attribute(packet, ClusterView(ObjectStore(), CniCache())))
    causes = {v.asked.sport: v.cause for v in analyzer.flush()}
    syns = [p for p in seen.packets if p.tcp_flags == "SYN"]
    copied = {p.endpoints.sport for p in syns if any(h.clone and isinstance(h, DropHop) and "pod-" in h.netns for h in p.hops)}
    for reply in replies:
        text = causes[reply.sport].text
        # A copy that appears late is not followed. Then the cause names no namespace that did not accept the SYN.
        assert f" in {reply.server}" in text or not (reply.sport in copied or " in pod-" in text), text
        if reply.sport in copied:
            assert text.startswith(f"accepted by scene-{reply.server} ")
    assert copied, [p.hops for p in seen.packets]
