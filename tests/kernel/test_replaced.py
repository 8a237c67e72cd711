# SPDX-License-Identifier: Apache-2.0
"""Rules that are replaced again and again while packets pass: a packet is explained by the rules it met, or by none."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from scenes import rules, topology, traffic
from tests.kernel.captured import check_same_output
from tests.kernel.recorder import Recorder
from tests.kernel.watching import Watch
from tracer.model.filter import Filter
from tracer.model.hop import RewriteHop, decision_of, is_from_conntrack, trace_of

PORT = 30777
TIMES = 100 if os.environ.get("K8SNET_THOROUGH") else 25
PAUSE = 0.02
"""Between two requests, s. The events are taken after the last one, so each further packet costs time only."""
OTHER_RULES = 3000
PODS = {"to-a": topology.PODS[0].addr4, "to-b": topology.PODS[1].addr4}


def text(name: str, others: int = 0) -> str:
    """A nat table that sends the port to one of the pods, with a comment that names it. others: number of rules for others."""
    lines = [f"-A OTHERS -s 10.1.{n // 256}.{n % 256}/32 -p tcp -m tcp --dport 80 -j RETURN" for n in range(others)]
    more = "\n".join([":OTHERS - [0:0]", *lines, ""]) if others else ""
    return f"""*nat
{more}-A PREROUTING -p udp -m comment --comment other -m udp --dport 9 -j ACCEPT
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


def replace_rules(backend: rules.Backend, finished: threading.Event, others: int = 0) -> None:
    """Replaces the nat table TIMES times, at most ten times a second."""
    for n in range(TIMES):
        rules.restore_text(text(("to-b", "to-a")[n % 2], others), 4, backend)
        time.sleep(0.1)
    finished.set()


def judged(comment: str, destination: str) -> str:
    """Whether the rule with this comment translated to this destination; "" = no rule was shown."""
    return "undecided" if not comment else "right" if PODS[comment] == destination else "wrong"


@pytest.mark.parametrize("backend", rules.BACKENDS)
def test_no_packet_is_explained_by_other_rules(watch: Watch, restored: None, backend: rules.Backend) -> None:
    rules.restore_text(text("to-a"), 4, backend)
    finished = threading.Event()

    thread, answered = threading.Thread(target=replace_rules, args=(backend, finished)), 0
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
                explained[judged(decision.rule.comment if decision and decision.rule else "", hop.nat.after.dst)] += 1
    # On a slow machine most of these rules are gone before they can be read, and are reported so.
    assert answered and explained["wrong"] == 0 and explained["right"] >= 1, (explained, answered)


@pytest.mark.parametrize("backend", rules.BACKENDS)
def test_a_live_run_reads_rules_faster_than_they_are_replaced(
    recorder: Recorder, restored: None, backend: rules.Backend
) -> None:
    """The tool that prints this large table takes about as long as the tool that replaces it."""
    rules.restore_text(text("to-a", OTHER_RULES), 4, backend)
    finished = threading.Event()

    def ask_while_rules_are_replaced() -> None:
        thread = threading.Thread(target=replace_rules, args=(backend, finished, OTHER_RULES))
        thread.start()
        while not finished.is_set():
            traffic.udp_ask(port=PORT, timeout=1)
            time.sleep(0.1)
        thread.join()

    made = recorder(f"replaced-{backend}", ask_while_rules_are_replaced, Filter(ports=(PORT,)))
    explained: Counter[str] = Counter()
    for packet in map(json.loads, made.json.read_text().splitlines()):
        for hop in packet.get("hops", ()):
            if hop.get("nat", {}).get("kind") == "DNAT" and not hop.get("from_conntrack"):
                rule = hop.get("rule", {"comment": "", "text": "-"})
                assert rule["text"], rule
                explained[judged(rule["comment"], hop["nat"]["after"]["dst"])] += 1
    print(backend, dict(explained))
    assert explained["wrong"] == 0, explained
    assert explained["right"] * (1 if backend == "legacy" else 3) > explained["undecided"], explained
    check_same_output(made)
