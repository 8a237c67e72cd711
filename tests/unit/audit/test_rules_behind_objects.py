# SPDX-License-Identifier: Apache-2.0
"""All rules of real nodes, compared with objects that have changed since."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.support import audits
from tests.support.findings import FakeNode
from tests.support.nodes import MODES, node
from tracer.audit.rules_behind_objects import check
from tracer.audit.state import NodeState
from tracer.kube.store import ObjectStore
from tracer.model.finding import Finding
from tracer.node.proxy_state import ProxyState

SCENARIO, NAME = "S2-three", ("default", "http-proxy")


def bodies(mode: str, ago: int = 600) -> list[dict[str, Any]]:
    return [objects.changed(each, int(time.time()) - ago) for each in node(mode, SCENARIO).objects]


def found(
    mode: str,
    folder: Path,
    items: list[dict[str, Any]],
    state: ProxyState | None = ProxyState(),  # noqa: B008
    is_followed: bool = True,
) -> list[Finding]:
    """is_followed: the API has listed the objects; else they are from a file."""
    made = audits.state(node(mode, SCENARIO), folder, FakeNode(proxy_processes=state))
    store = ObjectStore("node-1")
    store.load(items)
    store.is_followed = is_followed
    context = replace(made.context, cluster=replace(made.context.cluster, store=store))
    return list(check(NodeState(context, made.installed, made.routes, made.virtual, made.sets)))


def slices(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in items if each["kind"] in ("EndpointSlice", "Endpoints") and "http-proxy" in str(each["metadata"])]


def moved(mode: str, ago: int = 600) -> list[dict[str, Any]]:
    """The Service's endpoints have other addresses now."""
    items = bodies(mode, ago)
    for each in slices(items):
        for n, end in enumerate(each.get("endpoints", ())):
            end["addresses"] = [f"10.244.0.{201 + n}"]
        for part in each.get("subsets", ()):
            for n, address in enumerate(part["addresses"]):
                address["ip"] = f"10.244.0.{201 + n}"
    return items


def new(ago: int = 600) -> list[dict[str, Any]]:
    """Objects of a Service that the recorded rules do not have."""
    made = [
        objects.service("shop/cart", "172.30.1.77", 80, 30999, "web"),
        objects.endpoints("shop/cart", [("cart-1", "10.244.0.13", "node-1")], 8080, "web"),
    ]
    return [objects.changed(each, int(time.time()) - ago) for each in made]


@pytest.mark.parametrize("mode", MODES)
def test_rules_and_objects_agree(mode: str, tmp_path: Path) -> None:
    assert found(mode, tmp_path, bodies(mode)) == []


@pytest.mark.parametrize("mode", MODES)
def test_endpoints_that_are_gone(mode: str, tmp_path: Path) -> None:
    (finding,) = found(mode, tmp_path, moved(mode))
    assert finding.certain and "which the API does not have among its endpoints; so it has been for 10 min" in finding.cause
    assert finding.cause.endswith("No process of kube-proxy runs on the node.")
    assert "So it is with 2 more" in finding.cause, "three endpoints"
    assert {p.what for p in finding.proofs} == {"server" if "ipvs" in mode else "rule", "object", "process"}


@pytest.mark.parametrize("mode", MODES)
def test_a_service_that_is_new(mode: str, tmp_path: Path) -> None:
    (finding,) = found(mode, tmp_path, [*bodies(mode), *new()])
    assert finding.certain and "no rule leads to an endpoint of Service shop/cart:web" in finding.cause
    assert finding.subject and finding.subject.name == "cart"


def test_a_change_that_is_new(tmp_path: Path) -> None:
    one = MODES[0]
    assert found(one, tmp_path, moved(one, ago=10)) == []
    assert found(one, tmp_path, [*bodies(one), *new(ago=10)]) == []


def test_kube_proxy_runs_or_cannot_be_seen(tmp_path: Path) -> None:
    one = MODES[0]
    for state in (ProxyState((7,)), None):
        (finding,) = found(one, tmp_path, moved(one), state)
        assert not finding.certain and "are perhaps behind" in finding.cause


def test_a_file_may_be_older_than_the_rules(tmp_path: Path) -> None:
    (finding,) = found(MODES[0], tmp_path, moved(MODES[0]), is_followed=False)
    assert not finding.certain and finding.cause.endswith("from a file, which may be older than the rules.")


def test_rules_that_have_a_newer_service_are_not_behind_as_a_whole(tmp_path: Path) -> None:
    """http-proxy was made after the change that the rules lack: kube-proxy has written since then."""
    one, items = MODES[0], []
    for each in bodies(one, ago=300):
        items.append(each)
    (finding,) = found(one, tmp_path, [*items, *new(ago=900)])
    assert not finding.certain
    assert any("was made after that, and has rules" in p.text for p in finding.proofs)


def test_objects_without_times_say_nothing(tmp_path: Path) -> None:
    one, items = MODES[0], moved(MODES[0])
    for each in items:
        del each["metadata"]["managedFields"]
    assert found(one, tmp_path, items) == []


def test_without_endpoints_or_rules_nothing_is_said(tmp_path: Path) -> None:
    one = MODES[0]
    assert found(one, tmp_path, [each for each in moved(one) if each["kind"] == "Service"]) == []
    empty = audits.of_text("*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n", node=FakeNode(proxy_processes=ProxyState()))
    empty.cluster.store.load(moved(one))
    assert list(check(empty)) == []


def test_a_service_of_another_proxy(tmp_path: Path) -> None:
    one, made = MODES[0], new()
    made[0]["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "other"}
    assert found(one, tmp_path, [*bodies(one), *made]) == []
