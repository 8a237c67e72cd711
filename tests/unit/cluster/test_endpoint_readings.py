# SPDX-License-Identifier: Apache-2.0
"""The endpoints of Services, read again: since when one is gone, and what is not known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_server import ApiServer
from tests.support.traced_clusters import cluster_objects
from tests.support.waiting import until
from tracer.cluster import endpoint_readings
from tracer.cluster.cluster_objects import ClusterObjects
from tracer.cluster.endpoint_readings import EVERY_NS, FOR_NS, LONGEST_PAUSE_NS, EndpointReadings
from tracer.errors import NoObjects
from tracer.model.kube import ServicePort
from tracer.util.evictions import evictions
from tracer.util.worker import Worker

CART = ServicePort("shop", "cart", "", "tcp", 80)
A, B = ("10.0.0.1", 8080), ("10.0.0.2", 8080)


class FakeApi:
    """An API with one Service and a clock. ends: its endpoints; None = it refuses."""

    def __init__(self, *ends: tuple[str, int]) -> None:
        self.ends: tuple[tuple[str, int], ...] | None = ends
        self.time = 1000 * EVERY_NS
        self.readings = EndpointReadings(self.slices, lambda: self.time)
        self.asked = 0

    def slices(self, namespace: str, name: str) -> list[dict[str, Any]]:
        self.asked += 1
        if self.ends is None:
            raise NoObjects("refused")
        meta = {"namespace": namespace, "name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}}
        return [
            {
                "kind": "EndpointSlice",
                "metadata": meta,
                "endpoints": [{"addresses": [address], "nodeName": "a"}],
                "ports": [{"port": port, "protocol": "TCP", "name": ""}],
            }
            for address, port in self.ends
        ]

    def pass_time(self, nanoseconds: int = EVERY_NS) -> None:
        self.time += nanoseconds
        self.readings.read_due()

    def absent_since(self, end: tuple[str, int]) -> int | None:
        history = self.readings.history("shop", "cart")
        assert history
        return history.absent_since(CART, *end)


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests read by themselves."""
    monkeypatch.setattr(Worker, "start", lambda self: self)


def started(*ends: tuple[str, int]) -> FakeApi:
    api = FakeApi(*ends)
    api.readings.ask("shop", "cart")
    api.pass_time()
    return api


def test_an_endpoint_that_was_never_there_is_absent_since_the_first_reading() -> None:
    api = started(A)
    first = api.time
    api.pass_time()
    assert api.absent_since(B) == first and api.absent_since(A) is None
    history = api.readings.history("shop", "cart")
    assert history and history.asked == api.time
    assert [end.address for end in history.of(CART, "IPv4")] == [A[0]] and history.of(CART, "IPv6") == ()


def test_an_endpoint_that_goes_and_comes_back() -> None:
    api = started(A, B)
    api.ends = (A,)
    api.pass_time()
    gone = api.time
    api.pass_time()
    assert api.absent_since(B) == gone
    api.ends = (A, B)
    api.pass_time()
    assert api.absent_since(B) is None
    api.ends = (A,)
    api.pass_time()
    assert api.absent_since(B) == api.time


@pytest.mark.parametrize(("written", "address"), [("10.0.0.01", "10.0.0.1"), ("fd00:0::0:1", "fd00::1"), ("x", "x")])
def test_addresses_are_those_of_the_kernel(written: str, address: str) -> None:
    api = started((written, 8080))
    assert api.absent_since((address, 8080)) is None


def test_after_a_long_pause_it_begins_anew() -> None:
    api = started(A)
    api.pass_time(LONGEST_PAUSE_NS + 1)
    assert api.absent_since(B) == api.time


def test_a_refusal_is_no_reading() -> None:
    api = started(A)
    api.ends = None
    api.pass_time()
    assert api.readings.history("shop", "cart") is None
    api.ends = (A,)
    api.pass_time()
    assert api.absent_since(B) == api.time


def test_a_service_is_read_for_some_time_and_not_too_often() -> None:
    api = started(A)
    for _ in range(5):
        api.readings.ask("shop", "cart")
        api.pass_time(EVERY_NS // 10)
    assert api.asked == 1
    api.pass_time(FOR_NS)
    assert api.asked == 1 and api.readings.history("shop", "other") is None
    api.readings.ask("shop", "cart")
    api.pass_time(0)
    assert api.asked == 2


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_readings, "MOST_GONE", 1)
    evictions.read()
    api = started(A, B, ("10.0.0.3", 1))
    api.ends = (A,)
    api.pass_time()
    assert api.absent_since(B) == api.time and evictions.read()["endpoints that have gone"] == 2
    for number in range(endpoint_readings.MOST_SERVICES + 1):
        api.readings.ask("shop", f"service-{number}")
    assert evictions.read()["Services that are read again"] >= 1


def test_of_an_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # with its thread
    beside = {
        "kind": "EndpointSlice",
        "metadata": {"namespace": "other", "name": "cart-1", "labels": {"kubernetes.io/service-name": "cart"}},
        "endpoints": [{"addresses": ["10.9.9.9"]}],
        "ports": [{"port": 8080, "protocol": "TCP", "name": ""}],
    }
    with ApiServer([*cluster_objects(), beside]) as api:
        readings = EndpointReadings(ClusterObjects(api.kubeconfig(tmp_path)).slices)
        before = time.time_ns()
        readings.ask("shop", "cart")
        until(lambda: readings.history("shop", "cart") is not None)
        history = readings.history("shop", "cart")
        readings.close()
    assert history and history.asked >= before - 1_000_000_000
    assert sorted(end.address for end in history.of(CART, "IPv4")) == ["10.244.2.8", "10.244.3.9"]
