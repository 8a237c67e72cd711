# SPDX-License-Identifier: Apache-2.0
"""Each incident gives exactly its finding, with its evidence; each healthy twin gives none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import incidents
from incidents import service_situations, situations, variations
from incidents.situations import Situation
from incidents.variations import Variation
from scenes import scene
from scenes.rules import BACKENDS, Backend
from tests.kernel import incident_runs
from tests.kernel.watching import Watch
from tracer.model.finding import Finding

ALL = os.environ.get("K8SNET_INCIDENTS") == "all"
"""All cases; otherwise the legacy back end and few variations. `make incidents` runs all."""
BACK_ENDS = BACKENDS if ALL else BACKENDS[:1]
CASES = [(i.number, state, backend) for backend in BACK_ENDS for i in incidents.every() for state in i.states_in(backend)]
SUBSET = [
    v
    for n in variations.FINDINGS
    for v in variations.variations(n, count=10 if ALL else 5)
    if ALL or (n in (1, 4, 5) and (v.backend == "native" or v.family == 6))
]
"""Native nftables and IPv6, broken and healthy."""
MATRIX = {(1, "refused"), (2, "stuck"), (3, "stale")}
"""The cases that run on every kernel of the matrix."""

EVIDENCE = {
    (1, "refused"): ("scene-web-30584 (pid ", "has no endpoints", "REJECTED in filter/INPUT"),
    (1, "silent"): ("scene-web-30285 (pid ", "KUBE-NODEPORTS", "NodePort 30285"),
    (2, "stuck"): ("accept queue 3/2", "dropped, ", "ListenOverflows"),
    (3, "stale"): ("! -s 192.168.64.0/20 -d 192.168.66.0/24 -j RETURN", "MASQUERADE", "192.168.66.0/24 is the podCIDR"
        " of node node-2"),
    (4, "host-name"): ("KUBE-XLB-", "has no local endpoints", "uses the node name ip-10-188-166-140, by the host name"),
    (4, "flag-not-heeded"): ("--hostname-override, which is not heeded",),
    (4, "newer"): ("KUBE-EXTERNAL-SERVICES 1", "has no local endpoints"),
    (5, "ipvs"): ("kube-ipvs0", "CNI-HOSTPORT-DNAT", "default/mysql-b", "Service default/mysql-np:mysql (cluster IP"
        " 172.30.33.7)"),
    (5, "anywhere"): (" 1: -j CNI-HOSTPORT-DNAT", "Service default/mysql-np:mysql (cluster IP 172.30.33.7)"),
    (5, "node-port"): ("NodePort 3306 of Service default/mysql-np:mysql",),
    (5, "nftables"): ("the one registered last runs first", "cni_hostport", "pod default/mysql-b"),
    (2, "timestamps"): ("their TCP timestamps are older", "SNAT ", "PAWS"),
    (2, "syn-queue"): ("SYN cookies are off", "net.ipv4.tcp_syncookies = 0"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def restored_scene(watch: Watch) -> Iterator[None]:
    """Restores the scene that other tests expect, after the last incident."""
    yield
    incidents.down()
    scene.up()


def full_text(finding: Finding) -> str:
    return "\n".join([finding.cause, *(f"{p.what}: {p.text} ({p.evidence})" for p in finding.proofs)])


@pytest.mark.thorough
@pytest.mark.parametrize("variation", SUBSET, ids=lambda v: f"{v.incident}-{v.number}-{v.backend}")
def test_variation(watch: Watch, variation: Variation) -> None:
    result = incident_runs.vary(watch, variation)
    print(result.text, *result.requests, sep="\n")
    assert result.packets, result.requests
    assert (result.right, result.false) == (result.expected, 0), result.text


@pytest.mark.thorough
@pytest.mark.parametrize("situation", [*situations.every(), *service_situations.every()], ids=lambda s: s.text)
def test_situation(watch: Watch, situation: Situation) -> None:
    """What the situation's packets show and what the audit finds, in this mode of kube-proxy."""
    for result in incident_runs.situate(watch, situation):
        print(result.text, *result.requests, sep="\n")
        assert (result.right, result.false) == (result.expected, 0), result.text


@pytest.mark.parametrize(
    ("number", "state", "backend"),
    [pytest.param(*case, marks=[pytest.mark.matrix] if case[:2] in MATRIX else []) for case in CASES],
    ids=["-".join(map(str, case)) for case in CASES],
)
def test_incident(watch: Watch, number: int, state: str, backend: Backend) -> None:
    result = incident_runs.run(watch, incidents.find(number), state, backend)
    print(result.text, *result.requests, sep="\n")
    assert result.packets, result.requests
    assert (result.right, result.false) == (result.expected, 0), result.text
    for words in EVIDENCE.get((number, state), ()):
        assert words in full_text(result.findings[0]), full_text(result.findings[0])
