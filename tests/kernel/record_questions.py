# SPDX-License-Identifier: Apache-2.0
"""Records traffic with known numbers, for the saved queries; in the lab, as root.

    python3 tests/kernel/record_questions.py DIRECTORY

Makes questions.k8st and questions.truth.json, what clients and rules counted themselves. tests/support/questions_check.py
compares the queries' answers with it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from incidents import objects  # noqa: E402
from scenes import netns, packets, rules, scene, topology, traffic  # noqa: E402
from tests.kernel import modules  # noqa: E402
from tests.kernel.recorder import Recorder  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402
from tracer.model.filter import Filter  # noqa: E402
from tracer.node import procnet  # noqa: E402

REQUESTS, REFUSED = 24, 7
BURSTS = (5, 3)
"""Packets that the administrator's rule drops, in two bursts."""
DROPPED_PORT = 9999
PAUSE_SECONDS = 2.5
"""Between the bursts: they are in different seconds."""
RULE = f"*filter\n-I FORWARD -d {topology.PODS[0].addr4}/32 -p tcp --dport {DROPPED_PORT} -j DROP\nCOMMIT\n"
PORTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY, DROPPED_PORT)


def cluster() -> list[dict[str, Any]]:
    """The objects of the scene's Services and pods."""
    ends = [(pod.name, pod.addr4, "node-1") for pod in topology.PODS]
    return [
        objects.node("node-1", topology.NODE4, "10.244.0.0/24"),
        objects.service("default/http-proxy", traffic.CLUSTER_IP_HTTP, 8080, traffic.NODEPORT_HTTP),
        objects.service("default/lonely-web", "172.30.10.84", 80, traffic.NODEPORT_LONELY, "http"),
        objects.endpoints("default/http-proxy", ends, 8080),
        *(objects.pod(f"default/{pod.name}", pod.addr4, "node-1", 8080) for pod in topology.PODS),
    ]


def make_traffic(truth: dict[str, Any]) -> None:
    """Makes the traffic; notes what the clients saw in `truth`."""
    burst(BURSTS[0])
    answers = [traffic.http_get() for _ in range(REQUESTS)]
    assert all(each.outcome == "answered" for each in answers), answers
    addresses = {pod.name: pod.addr4 for pod in topology.PODS}
    servers = Counter(each.server for each in answers)
    truth["connections"] = {addresses[server]: count for server, count in servers.items()}
    truth["slowest_ms"] = max(each.seconds for each in answers) * 1000
    refused = [traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY) for _ in range(REFUSED)]
    assert all(each.outcome == "refused" for each in refused), refused
    time.sleep(PAUSE_SECONDS)
    truth["second_burst"] = time.time()
    burst(BURSTS[1])


def burst(count: int) -> None:
    """Sends SYNs that the rule drops."""
    for number in range(count):
        packets.send_tcp(topology.PODS[0].addr4, DROPPED_PORT, sport=45000 + number, flags=packets.SYN)


def rule_count() -> int:
    """What the rule itself has counted."""
    return sum(c.packets for text, c in rules.counters("legacy").items() if f"--dport {DROPPED_PORT}" in text)


def old_segments() -> int:
    """Segments that TCP itself dropped in all namespaces, because one with a newer timestamp came before (a busy machine)."""
    count = 0
    for name in (None, topology.CLIENT, *(pod.name for pod in topology.PODS)):
        with netns.entered(name):
            count += procnet.counters(Path("/proc/thread-self/net"))["PAWSEstab"]
    return count


def main(arguments: Sequence[str]) -> int:
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    modules.load(modules.RANDOM_RULES)
    kernel, known = Kernel.running(), directory / "objects.json"
    known.write_text(json.dumps({"kind": "List", "items": cluster()}))
    truth: dict[str, Any] = {"refused": REFUSED, "bursts": BURSTS, "requests": REQUESTS}
    with scene.scene(), Session(kernel, Filter(ports=(1,))) as session:
        rules.restore_text(RULE, 4, "legacy", flush=False)
        recorder, before = Recorder(kernel, session, directory), old_segments()
        made = recorder("questions", lambda: make_traffic(truth), Filter(ports=PORTS), str(known))
        truth["rule"], truth["old"] = rule_count(), old_segments() - before
    (directory / "questions.truth.json").write_text(json.dumps(truth))
    for path in directory.iterdir():
        path.chmod(0o644)
    print(
        f"questions: {made.summary.packets} packets, {made.summary.events} events, {made.summary.lost} lost; {truth}",
        flush=True,
    )
    return int(bool(made.summary.lost))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
