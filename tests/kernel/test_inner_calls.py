# SPDX-License-Identifier: Apache-2.0
"""A program that an interrupt's packet meets while it runs: where it is run again, no packet gets the events of another one."""

from __future__ import annotations

from collections import Counter

import pytest

from scenes import load, topology, traffic
from tests.kernel.interrupts import sent_by_a_timer
from tests.kernel.watching import Watch
from tracer.model.filter import Filter
from tracer.model.hop import HookHop

RATE, SECONDS, REQUESTS = 8_000, 20.0, 60
PATH = "OUTPUT client, POSTROUTING client, PREROUTING node, FORWARD node, POSTROUTING node"
"""The hooks of a packet from the client to beyond the node."""


@pytest.mark.matrix
def test_no_packet_gets_the_events_of_another_one(watch: Watch) -> None:
    if watch.kernel.types.vmlinux.field("bpf_prog", "active"):
        pytest.skip("this kernel skips a program that is running, and counts that")
    with sent_by_a_timer():
        stream = load.udp_stream(RATE, SECONDS)
        with watch(Filter(hosts=())) as seen:
            for _ in range(REQUESTS):
                assert traffic.udp_ask().outcome == "answered"
        stream.kill()
    from_client = [p for p in seen.packets if p.endpoints.src == topology.CLIENT4 and p.complete]
    paths = Counter(", ".join(f"{h.hook} {h.netns}" for h in p.hops if isinstance(h, HookHop)) for p in from_client)
    print(paths)
    # The first packets were under way when the filter was set, the last ones when it was taken away.
    assert paths[PATH] > 10 * REQUESTS and all(path in PATH for path in paths)
