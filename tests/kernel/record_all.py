# SPDX-License-Identifier: Apache-2.0
"""Records every incident and scenes of the kernel tests, with the printed output of each; in the lab, as root.

    python3 tests/kernel/record_all.py DIRECTORY [--backends legacy,nft] [--only WORDS] [--missing]

tests/support/replay_check.py reads the recordings. For NAME there are NAME.k8st, NAME.text and NAME.json. Probes are compiled
once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

import incidents  # noqa: E402
from scenes import nfnetlink, packets, rules, scene, topology, traffic  # noqa: E402
from tests.kernel import modules, restored, syn_scenes  # noqa: E402
from tests.kernel.recorder import Recorded, Recorder  # noqa: E402
from tests.support.nodes import node  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402
from tracer.model.filter import Filter  # noqa: E402

REQUESTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP)

Case = tuple[str, Callable[[Recorder], Recorded]]


def incident_cases(backends: Sequence[str]) -> Iterator[Case]:
    for backend in backends:
        for incident in incidents.every():
            for state in incident.states_in(backend):
                yield f"{incident.finding}-{state}-{backend}", _incident(incident, state, backend)


def _incident(incident: incidents.Incident, state: str, backend: str) -> Callable[[Recorder], Recorded]:
    def record(recorder: Recorder) -> Recorded:
        incident.up(state, "nft" if backend == "nft" else "legacy")
        name = f"{incident.finding}-{state}-{backend}"
        return recorder(name, lambda: incident.traffic(state), Filter(ports=incident.ports), str(incidents.OBJECTS))

    return record


def scene_cases(backends: Sequence[str]) -> Iterator[Case]:
    for backend in backends:
        yield f"scene-requests-{backend}", _requests(backend)
        yield f"scene-rules-change-{backend}", _changing(backend, False)
        yield f"scene-follow-{backend}", _changing(backend, True)
    yield "scene-refused", _refused
    yield "scene-syns", _syns
    yield "scene-ipvs", _ipvs


def _up(backend: str) -> None:
    incidents.down()
    scene.up(backend="nft" if backend == "nft" else "legacy")


def _requests(backend: str) -> Callable[[Recorder], Recorded]:
    """TCP, UDP, IPv6, a refused connection, and a request of the node: all packets of the machine, without a filter."""

    def send_requests() -> None:
        for _ in range(3):
            traffic.http_get()
        traffic.udp_ask()
        traffic.http_get(topology.NODE6)
        traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
        traffic.http_get(traffic.CLUSTER_IP_HTTP, 8080, ns=None)

    def record(recorder: Recorder) -> Recorded:
        _up(backend)
        return recorder(f"scene-requests-{backend}", send_requests, Filter())

    return record


def _changing(backend: str, follow: bool) -> Callable[[Recorder], Recorded]:
    """Rules are replaced while requests come, and conntrack entries are removed. follow: output by connection."""
    kind: rules.Backend = "nft" if backend == "nft" else "legacy"

    def send_requests() -> None:
        for _ in range(4):
            traffic.http_get()
            rules.restore("http-proxy", backend=kind)
            traffic.udp_ask(sport=35353)
            time.sleep(0.3)
        nfnetlink.conntrack_flush()

    def record(recorder: Recorder) -> Recorded:
        _up(backend)
        return recorder(
            f"scene-{'follow' if follow else 'rules-change'}-{backend}", send_requests, Filter(ports=REQUESTS), follow=follow
        )

    return record


def _refused(recorder: Recorder) -> Recorded:
    """Packets that do not arrive."""
    _up("legacy")
    rules.restore("http-proxy", "http-proxy-v6", extra=["reject-input-9998", "policy-drop-forward"])
    pod = topology.PODS[0].addr4

    def send_requests() -> None:
        for address, port in ((topology.NODE4, 9997), (topology.NODE6, traffic.NODEPORT_LONELY), (topology.NODE4, 9123)):
            traffic.tcp_connect(address, port)
        traffic.tcp_connect(pod, 9999, timeout=0.5)
        traffic.udp_ask(topology.NODE4, 9123)
        packets.send_tcp(pod, 8080, count=3)

    return recorder("scene-refused", send_requests, Filter(ports=(9997, 9999, 9123, 8080, traffic.NODEPORT_LONELY)))


def _syns(recorder: Recorder) -> Recorded:
    """Every cause of a SYN's end."""
    _up("legacy")

    def send_requests() -> None:
        for each in syn_scenes.SCENES:
            with each.up():
                time.sleep(0.2)

    return recorder("scene-syns", send_requests, Filter(ports=tuple({each.port for each in syn_scenes.SCENES})))


def _ipvs(recorder: Recorder) -> Recorded:
    """kube-proxy in ipvs mode."""
    _up("legacy")
    restored.put(node("1.20.2-ipvs-nft", "S2-three"), "ipvs")

    def send_requests() -> None:
        for _ in range(3):
            traffic.http_get()
        traffic.http_get(traffic.CLUSTER_IP_HTTP, 8080, ns=None)

    try:
        return recorder("scene-ipvs", send_requests, Filter(ports=(traffic.NODEPORT_HTTP, 8080)))
    finally:
        restored.plain()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--backends", default="legacy,nft", help="of iptables, separated by commas")
    parser.add_argument("--only", default="", metavar="WORDS", help="cases with these words in their name")
    parser.add_argument("--missing", action="store_true", help="only cases that an earlier run has not finished")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    modules.load(modules.RANDOM_RULES)
    modules.load(modules.INCIDENTS)
    kernel, backends = Kernel.running(), arguments.backends.split(",")
    try:
        with scene.scene(), Session(kernel, Filter(ports=(1,))) as session:
            recorder = Recorder(kernel, session, arguments.directory)
            for name, record in (*scene_cases(backends), *incident_cases(backends)):
                done = arguments.missing and (arguments.directory / f"{name}.done").exists()
                if arguments.only in name and not done:
                    began = time.monotonic()
                    totals = record(recorder).summary
                    counts = f"{totals.packets} packets, {totals.events} events, {totals.lost} lost"
                    print(f"{name}: {counts}, {totals.seconds:.0f} of {time.monotonic() - began:.0f} s", flush=True)
                    (arguments.directory / f"{name}.done").touch()
    finally:
        incidents.down()
        for path in arguments.directory.iterdir():
            path.chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main())
