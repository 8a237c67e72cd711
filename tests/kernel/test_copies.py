# SPDX-License-Identifier: Apache-2.0
"""A copy of a followed packet is followed as the same packet, and marked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scenes import rules, topology, traffic
from tests.kernel.watching import Watch
from tracer.filters import Filter

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
    question = seen.packets[0]
    assert question.outcome == "delivered", question.verdict
    copies = [h for h in question.hops if h.clone]
    assert any(h.out_iface == "cni0" and h.hook == "OUTPUT" for h in copies), [(h.hook, h.out_iface) for h in question.hops]
