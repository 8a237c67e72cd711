# SPDX-License-Identifier: Apache-2.0
"""Packets that do not reach their destination: the verdict of each gives the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scenes import packets, rules, servers, topology, traffic
from tests.kernel.watching import Watch
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.util.endpoint_format import format_endpoint

POD = topology.PODS[0].addr4
STRAY = 45678


@pytest.fixture
def extra(watch: Watch) -> Iterator[None]:
    """Restores the plain rules when a test has added to them."""
    yield
    rules.restore("http-proxy", "http-proxy-v6")


def syns(found: list[Packet]) -> list[Packet]:
    return [p for p in found if p.tcp_flags == "SYN"]


def test_no_endpoints_is_rejected(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_LONELY,))) as seen:
        replies = [traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY) for _ in range(3)]
    assert [r.outcome for r in replies] == ["refused"] * 3
    refused = syns(seen.packets)
    assert [p.verdict for p in refused] == ["REJECTED in filter/INPUT with icmp-port-unreachable"] * 3
    assert {p.outcome for p in refused} == {"rejected"}
    answers = [p for p in seen.packets if p.protocol == "ICMP"]
    assert len(answers) == 3 and all(p.flow and p.flow.state == "RELATED" for p in answers)
    assert len(seen.packets) == 6


@pytest.mark.matrix
def test_no_endpoints_is_rejected_over_ipv6(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_LONELY,))) as seen:
        reply = traffic.tcp_connect(topology.NODE6, traffic.NODEPORT_LONELY)
    assert reply.outcome == "refused"
    assert {p.verdict for p in syns(seen.packets)} == {"REJECTED in filter/INPUT with icmp6-port-unreachable"}


@pytest.mark.matrix
def test_reject_with_reset(watch: Watch, extra: None) -> None:
    rules.restore("http-proxy", "http-proxy-v6", extra=["reject-input-9998"])
    with watch(Filter(ports=(9997,))) as seen:
        assert traffic.tcp_connect(topology.NODE4, 9997).outcome == "refused"
    assert [p.verdict for p in syns(seen.packets)] == ["REJECTED in filter/INPUT with tcp-reset"]
    assert [p.tcp_flags for p in seen.packets if p.tcp_flags != "SYN"] == ["RST ACK"]


@pytest.mark.matrix
def test_policy_drop(watch: Watch, extra: None) -> None:
    rules.restore("http-proxy", "http-proxy-v6", extra=["policy-drop-forward"])
    with watch(Filter(ports=(9999,))) as seen:
        assert traffic.tcp_connect(POD, 9999, timeout=0.5).outcome == "timeout"
    assert {p.verdict for p in seen.packets} == {"DROPPED in filter/FORWARD"}
    assert {p.outcome for p in seen.packets} == {"dropped"}
    assert all(p.drop and p.drop.function == "nf_hook_slow" for p in seen.packets)


def test_conntrack_invalid(watch: Watch) -> None:
    """Filtered by port: an emulated machine is slow, and the last segments of other connections may still be under way."""
    assert traffic.http_get().outcome == "answered", "so that conntrack is in use"
    with watch(Filter(ports=(STRAY,))) as seen:
        packets.send_tcp(POD, 8080, sport=STRAY, count=3)
    verdicts = [(p.tcp_flags, p.verdict) for p in seen.packets]
    assert verdicts == [("SYN ACK", "DROPPED in filter/FORWARD, conntrack state INVALID")] * 3


@pytest.mark.matrix
@pytest.mark.parametrize("addr", [topology.NODE4, topology.NODE6])
def test_no_listener(watch: Watch, addr: str) -> None:
    with watch(Filter(ports=(9123,))) as seen:
        assert traffic.tcp_connect(addr, 9123).outcome == "refused"
    first = seen.packets[0]
    assert first.verdict == f"no listener here: TCP {format_endpoint(addr, 9123)}"
    given = "NO_SOCKET" if watch.kernel.drop_reasons() else ""
    assert first.outcome == "refused" and first.drop and first.drop.reason == given
    assert seen.packets[1].tcp_flags == "RST ACK"


def test_no_listener_for_a_datagram(watch: Watch) -> None:
    with watch(Filter(ports=(9123,))) as seen:
        assert traffic.udp_ask(topology.NODE4, 9123).outcome == "refused"
    request, answer = seen.packets
    assert request.verdict == f"no listener here: UDP {topology.NODE4}:9123"
    assert request.outcome == "refused" and request.drop and request.drop.reason == "NO_SOCKET"
    assert answer.protocol == "ICMP"


def test_no_listener_in_the_pod(watch: Watch) -> None:
    with watch(Filter(ports=(9124,))) as seen:
        assert traffic.tcp_connect(POD, 9124).outcome == "refused"
    assert seen.packets[0].verdict == f"no listener in pod-a: TCP {POD}:9124"


def test_full_accept_queue(watch: Watch) -> None:
    full = servers.Server("pod-a", "pod-a", http=8099, udp=5399, accept=False, backlog=2)
    with (
        servers.running([full]),
        traffic.connections(POD, 8099, 3),
        watch(Filter(ports=(8099,))) as seen,
    ):
        assert traffic.tcp_connect(POD, 8099, timeout=0.7).outcome == "timeout"
    attempts = syns(seen.packets)
    assert attempts and {p.verdict for p in attempts} == {"SYN dropped: accept queue 3/2 in pod-a"}
    handshake = attempts[0].handshake
    assert (
        handshake
        and handshake.accepted is False
        and handshake.accept_queue_full
        and (handshake.accept_queue, handshake.accept_limit) == (3, 2)
    )
