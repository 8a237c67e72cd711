# SPDX-License-Identifier: Apache-2.0
"""Rules that are replaced again and again while packets pass: a packet is explained by the rules it met, or by none."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from scenes import rules, topology, traffic
from tests.kernel.watching import Watch
from tracer.model.filter import Filter
from tracer.model.hop import RewriteHop, decision_of, is_from_conntrack, trace_of

PORT = 30777
TIMES = 100 if os.environ.get("K8SNET_THOROUGH") else 25
PAUSE = 0.02
"""Between two requests, s: thousands of packets that wait for rules leave no time to read them."""
PODS = {"to-a": topology.PODS[0].addr4, "to-b": topology.PODS[1].addr4}


def text(name: str) -> str:
    """A nat table that sends the port to one of the pods, with a comment that names it."""
    return f"""*nat
-A PREROUTING -p udp -m comment --comment other -m udp --dport 9 -j ACCEPT
-A PREROUTING -p udp -m comment --comment {name} -m udp --dport {PORT} -j DNAT --to-destination {PODS[name]}:5353
-A POSTROUTING -m comment --comment back -j MASQUERADE
COMMIT
"""


@pytest.fixture
def restored(watch: Watch) -> Iterator[None]:
    rules.flush()
    yield
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")


@pytest.mark.parametrize("backend", rules.BACKENDS)
def test_no_packet_is_explained_by_other_rules(watch: Watch, restored: None, backend: rules.Backend) -> None:
    rules.restore_text(text("to-a"), 4, backend)
    finished = threading.Event()

    def replace() -> None:
        for n in range(TIMES):
            rules.restore_text(text(("to-b", "to-a")[n % 2]), 4, backend)
            time.sleep(0.1)
        finished.set()

    thread, answered = threading.Thread(target=replace), 0
    with watch(Filter(ports=(PORT,)), nft=backend == "nft") as seen:
        thread.start()
        while not finished.is_set():
            answered += traffic.udp_ask(port=PORT, timeout=1).outcome == "answered"
            time.sleep(PAUSE)
        thread.join()
    explained: Counter[str] = Counter()
    for packet in seen.packets:
        for hop in packet.hops:
            if isinstance(hop, RewriteHop) and hop.nat.kind == "DNAT" and not is_from_conntrack(hop) and trace_of(hop):
                decision = decision_of(hop)
                comment = decision.rule.comment if decision and decision.rule else "undecided"
                explained[
                    comment if comment == "undecided" else "right" if PODS[comment] == hop.nat.after.dst else "wrong"
                ] += 1
    # On a slow machine most of these rules are gone before they can be read, and are reported so.
    assert answered and explained["wrong"] == 0 and explained["right"] >= 1, (explained, answered)
