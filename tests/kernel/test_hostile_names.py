# SPDX-License-Identifier: Apache-2.0
"""A container gives its chains names that are no text: the node's rules and the container's are still reported."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from scenes import rules, topology, traffic
from scenes.netns import entered
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tracer.model.filter import Filter
from tracer.model.hop import RewriteHop, decision_of, verdict_of

CHAIN, PORT, SPACE = b"\xffchain", 30999, "hostile"


@pytest.fixture
def container(watch: Watch) -> Iterator[None]:
    """A namespace with a chain of that name, without processes."""
    subprocess.run(["ip", "netns", "add", SPACE], check=True)
    subprocess.run(["ip", "-n", SPACE, "link", "set", "lo", "up"], check=True)
    commands = (
        (b"-N", CHAIN),
        (b"-A", b"INPUT", b"-p", b"udp", b"--dport", b"%d" % PORT, b"-j", CHAIN),
        (b"-A", CHAIN, b"-j", b"DROP"),
    )
    iptables = b"ip", b"netns", b"exec", SPACE.encode(), b"iptables-legacy"
    for words in commands:
        subprocess.run([*iptables, *words], check=True)
    yield
    subprocess.run(["ip", "netns", "del", SPACE], check=True)
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")


def test_a_name_that_is_no_text(watch: Watch, container: None) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_HTTP, PORT))) as seen:
        rules.flush()
        rules.restore("http-proxy", "http-proxy-v6")  # so that the node's rules are read again, after the container's
        assert traffic.http_get(topology.NODE4).outcome == "answered"
        with entered(SPACE), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(b"x", ("127.0.0.1", PORT))
    dnat = next(
        h for p in seen.packets for h in p.hops if isinstance(h, RewriteHop) and h.nat.kind == "DNAT" and h.netns == "node"
    )
    assert decision_of(dnat), hop_fields.undecided(dnat)
    rule = hop_fields.decision(dnat).rule
    assert rule and "default/http-proxy" in rule.comment
    drop = next(
        h
        for p in seen.packets
        for h in p.hops
        if h.netns == SPACE and hop_fields.table(h) == "filter" and verdict_of(h) == "DROP"
    )
    assert [place.chain for place in hop_fields.decision(drop).path] == ["INPUT", "\udcffchain"]
    rule = hop_fields.decision(drop).rule
    assert rule and rule.text == "-j DROP"
