# SPDX-License-Identifier: Apache-2.0
"""SCTP through its own DNAT rule."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from scenes import rules, topology
from scenes.netns import entered
from tests.kernel.watching import Watch
from tracer.model.filter import Filter
from tracer.model.hop import RewriteHop

POD = topology.PODS[0]
PORT, NODE_PORT = 9899, 30099
RULES = f"""*nat
-A PREROUTING -p sctp --dport {NODE_PORT} -j DNAT --to-destination {POD.addr4}:{PORT}
COMMIT
"""


@pytest.fixture
def listener(watch: Watch) -> Iterator[socket.socket]:
    rules.restore_text(RULES, 4, "legacy", flush=False)
    with entered(POD.name):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    with sock:
        sock.bind(("", PORT))
        sock.listen(1)
        sock.settimeout(5)
        yield sock
    rules.restore("http-proxy", "http-proxy-v6")


def test_sctp(watch: Watch, listener: socket.socket) -> None:
    with entered(topology.CLIENT):
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    with watch(Filter(ports=(NODE_PORT,))) as seen, client:
        client.settimeout(5)
        client.connect((topology.NODE4, NODE_PORT))
        accepted, _ = listener.accept()
        accepted.close()
    assert {p.protocol for p in seen.packets} == {"SCTP"}
    first, second = seen.packets[:2]  # INIT and INIT ACK
    assert (first.endpoints.dst, first.endpoints.dport) == (topology.NODE4, NODE_PORT)
    assert [(h.nat.kind, h.nat.after.dst, h.nat.after.dport) for h in first.hops if isinstance(h, RewriteHop)] == [
        ("DNAT", POD.addr4, PORT)
    ]
    assert [h.nat.kind for h in second.hops if isinstance(h, RewriteHop)] == ["reverse DNAT"]
    assert first.outcome == second.outcome == "delivered", (first.verdict, second.verdict)
    assert all(p.complete for p in seen.packets)
