# SPDX-License-Identifier: Apache-2.0
"""The scenes of findings about several nodes, without machines: their commands, their rules, and what the filter selects."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.cluster  # noqa: F401  # the path of cluster_scene
from cluster_scene import __main__ as scene
from cluster_scene import faults, objects
from cluster_scene.faults import FAULTS, Fault
from cluster_scene.plan import CART_NODE_PORT, CLIENT4, HTTP_PORT, ORDERS_NODE_PORT, UDP_PORT, ClusterPlan
from lab.wire import Faults
from tests.cluster import failures, finding_scenes
from tests.cluster.finding_scenes import EXPECTED, FindingScenes
from tests.support.node_views import packet
from tracer.cluster.filter_coverage import FilterCoverage
from tracer.joining.traced_nodes import TracedNodes
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints

PLAN = ClusterPlan.of(["node-a", "node-b"])
FIRST, LAST = PLAN.nodes
CART_A, CART_B = (f"{node.pod('cart').address}:{HTTP_PORT}" for node in PLAN.nodes)


def rules(fault: Fault) -> str:
    return faults.rules_text(PLAN, FIRST, fault)


def test_rules_with_a_fault() -> None:
    healthy = rules("none")
    assert all(f"--to-destination {end}" in healthy for end in (CART_A, CART_B)) and rules("short_tunnel") == healthy
    gone = f"{faults.gone_address(PLAN)}:{HTTP_PORT}"
    assert gone == "10.244.2.99:8080" and f"--to-destination {gone}" in rules("stale_endpoint")
    assert not any(f'"shop/cart -> {end}"' in rules("stale_endpoint") for end in (CART_A, CART_B))
    assert "shop/cart" not in rules("no_rules") and "shop/orders" in rules("no_rules")
    without = rules("no_masquerade")
    assert "masquerade traffic for shop/cart external destinations" in healthy and f"--to-destination {CART_B}" in without
    assert "masquerade traffic" not in without and f'"shop/cart -> {CART_A}"' not in without
    assert f"--dport {ORDERS_NODE_PORT} -j DROP" in healthy, "policy Local without an endpoint"


def test_the_namespace_of_who_asks() -> None:
    found = [scene.namespace_of(FIRST, who) for who in ("shop", "cart", "client", "node")]
    assert found == ["shop-a", "cart-a", "client", None]


def cluster_view() -> ClusterView:
    view = ClusterView()
    view.store.load(objects.all_objects(PLAN))
    return view


@pytest.mark.parametrize(
    ("node", "protocol", "ends"),
    [
        # the answer of the pod, at the node that translated the request
        ("node-a", "TCP", Endpoints(LAST.pod("cart").address, HTTP_PORT, CLIENT4, 40001)),
        # a long datagram, at the node of its pod
        ("node-a", "UDP", Endpoints(LAST.pod("shop").address, 40001, FIRST.pod("cart").address, UDP_PORT)),
        ("node-a", "TCP", Endpoints(LAST.address, 40001, FIRST.address, ORDERS_NODE_PORT)),
        ("node-b", "TCP", Endpoints(FIRST.pod("shop").address, 40001, LAST.pod("cart").address, HTTP_PORT)),
    ],
)
def test_the_filter_of_the_runs_selects_what_findings_need(node: str, protocol: str, ends: Endpoints) -> None:
    coverage = FilterCoverage({"services": ("shop/cart", "shop/stock", "shop/orders")}, cluster_view())
    assert coverage(node, packet(ends=ends, protocol=protocol), ends)


def test_objects_that_the_findings_look_up() -> None:
    nodes = TracedNodes(cluster_view().store)
    found = nodes.service_at(FIRST.address, ORDERS_NODE_PORT, "tcp")
    assert found and found[0].local and {end.node for end in nodes.endpoints(found[0])} == {"node-b"}
    cart = nodes.service_at("172.30.0.10", 80, "tcp")
    assert cart and cart[1] == "cluster IP" and {end.node for end in nodes.endpoints(cart[0])} == {"node-a", "node-b"}
    assert nodes.owner(CLIENT4) is None and nodes.network_owner(CLIENT4) == ""
    assert nodes.owner(faults.gone_address(PLAN)) is None
    assert nodes.service_at(FIRST.address, CART_NODE_PORT, "tcp")


class FakeRun:
    """A plugin that prints findings as soon as their faults were made."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def print(self, *lines: dict[str, Any]) -> None:
        self.lines += [json.dumps(line).encode() + b"\n" for line in lines]

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def stop(self) -> SimpleNamespace:
        findings = [line for line in self.objects() if line["type"] == "finding"]
        self.print({"type": "summary", "findings": findings})
        return SimpleNamespace(status=0, errors=b"notes")


class FakeBed:
    """Machines whose network answers as the fault says. commands: those that were run."""

    def __init__(self) -> None:
        self.plan, self.commands = PLAN, list[str]()
        self.runs: list[FakeRun] = []
        self.fault: dict[str, Fault] = {}
        self.wire = SimpleNamespace(set_faults=self._set_faults, clear=lambda: None, log=list[Any])
        self.longest = 0
        self.cluster = SimpleNamespace(wire=self.wire)

    def _set_faults(self, given: Faults) -> None:
        self.longest = given.longest

    def start(self) -> FakeRun:
        self.runs.append(FakeRun())
        return self.runs[-1]

    def scene(self, verb: str, node: Any, *options: str) -> Any:
        self.commands.append(f"{verb} {node.name}")
        given = scene.options().parse_args([verb, node.name, "node-a,node-b", *options])
        fault = self.fault.get(node.name, "none")
        if verb == "fault":
            self.fault[node.name] = given.fault
            return None
        count = {"ask": given.tcp, "upload": 1, "datagrams": given.udp}[verb]
        fails = {
            "ask": (given.source == "shop" and fault in ("stale_endpoint", "no_rules"))
            or (given.source == "client" and fault == "no_masquerade")
            or (given.source == "node" and given.address == FIRST.address),
            "upload": fault == "silent_tunnel",
            "datagrams": 0 < self.longest < given.size,
        }
        if fails[verb]:
            self._find(verb, fault)
        return {"sent": count, "answered": 0 if fails[verb] else count, "by": {}}

    def _find(self, verb: str, fault: Fault) -> None:
        if len(self.runs) < 2:
            return
        places = {"stale_endpoint": 0, "no_rules": 1, "none": 2, "no_masquerade": 3, "silent_tunnel": 4}
        expected = EXPECTED[5 if verb == "datagrams" else places[fault]]
        values = {"name": expected.name, "certain": expected.certain, "count": 1, "packets": []}
        self.runs[-1].print({"type": "finding", "text": " ".join(expected.words), **values})


def test_each_fault_is_made_and_each_machine_is_healthy_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bed = FakeBed()
    monkeypatch.setattr(failures, "started", lambda bed, *options: bed.start())
    monkeypatch.setattr(finding_scenes, "ROUND_SECONDS", 0)
    scenes = FindingScenes(bed, lambda run: None)  # type: ignore[arg-type]
    count = scenes.run(tmp_path)
    assert (count.line, scenes.problems) == ("expected=6 found=6 wrong=0 perhaps=0", [])
    assert bed.fault == {"node-a": "none", "node-b": "none"} and bed.longest == 0
    assert "findings-faulty.jsonl: expected=6 found=6 wrong=0 perhaps=0" in capsys.readouterr().out
    assert (tmp_path / "findings-healthy.jsonl").exists() and bed.commands.count("upload node-a") == 3


def test_traffic_that_is_not_as_the_scene_needs_is_a_problem() -> None:
    scenes = FindingScenes(FakeBed(), lambda run: None)  # type: ignore[arg-type]
    scenes._expect("shop", {"sent": 3, "answered": 2}, 3)
    assert scenes.problems == ["shop: 2 of 3 answered, and 3 expected"]


def test_every_fault_is_used() -> None:
    text = Path(finding_scenes.__file__).read_text()
    assert all(f'"{fault}"' in text for fault in FAULTS)
