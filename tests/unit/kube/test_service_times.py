# SPDX-License-Identifier: Apache-2.0
"""When the API's objects of a Service were made and changed, and which Services are kube-proxy's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects as made
from tracer.kube import objects
from tracer.kube.store import ObjectStore
from tracer.model.kube import ServiceTimes

NAME = ("shop", "cart")
T = 1_795_000_000


def service(label: str = "") -> dict[str, Any]:
    found = made.changed(made.service("shop/cart", "172.30.0.1", 80), T)
    found["metadata"]["labels"] = {label: ""} if label else {}
    return found


def slice_of(at: int = T, name: str = "cart-a") -> dict[str, Any]:
    found = made.changed(made.endpoints("shop/cart", [("cart-1", "10.0.0.1", "node-1")], 80), at)
    found["metadata"]["name"] = name
    return found


def times(*bodies: dict[str, Any]) -> ServiceTimes | None:
    store = ObjectStore()
    store.load(bodies)
    return store.times.one(NAME)


def test_the_newest_change_of_the_service_and_its_slices() -> None:
    assert times(service()) == ServiceTimes(T, T)
    assert times(service(), slice_of(T + 90), slice_of(T + 50, "cart-b")) == ServiceTimes(T, T + 90)
    assert times(slice_of()) is None, "the Service is not known"


def test_one_object_without_times_makes_the_change_unknown() -> None:
    bare = slice_of()
    del bare["metadata"]["managedFields"]
    assert times(service(), slice_of(), bare | {"metadata": bare["metadata"] | {"name": "b"}}) == ServiceTimes(T, 0)


def test_changes_and_removals_are_followed() -> None:
    store = ObjectStore()
    store.load([service(), slice_of(T + 5)])
    assert not store.is_followed
    store.replace("EndpointSlice", [slice_of(T + 70)])
    assert store.is_followed and store.times.one(NAME) == ServiceTimes(T, T + 70)
    store.apply("EndpointSlice", slice_of(T + 80))
    assert store.times.one(NAME) == ServiceTimes(T, T + 80)
    store.delete("EndpointSlice", slice_of())
    assert store.times.one(NAME) == ServiceTimes(T, T)
    store.delete("Service", service())
    assert not len(store.times) and not store._service_times and not store._slice_changes


@pytest.mark.parametrize("label", ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"])
def test_a_service_of_another_proxy(label: str) -> None:
    assert times(service(label)) == ServiceTimes(T, T, is_for_kube_proxy=False)
    assert times(service(f"{label}x")) == ServiceTimes(T, T)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"creationTimestamp": "1970-01-01T00:01:00Z"}, (60, 0)),
        ({"managedFields": [{"time": "1970-01-01T00:02:00Z"}, {"time": "1970-01-01T00:01:30.123456789Z"}]}, (0, 120)),
        ({"creationTimestamp": "1970-01-01T00:01:00Z", "managedFields": [{"time": "1970-01-01T00:02:00Z"}, {}]}, (60, 120)),
        ({"creationTimestamp": "1970-01-01T00:01:00"}, (0, 0)),
        ({"creationTimestamp": "0001-01-01T00:00:00Z"}, (0, 0)),
        ({"creationTimestamp": "soonZ", "managedFields": [7, {"time": 7}, {"time": "9" * 100 + "Z"}, None]}, (0, 0)),
        ({"creationTimestamp": 7, "managedFields": {"time": 7}}, (0, 0)),
        (7, (0, 0)),
        (None, (0, 0)),
    ],
)
def test_times_that_may_be_anything(meta: Any, expected: tuple[int, int]) -> None:
    assert objects.times({"metadata": meta}) == expected
    assert objects.is_for_kube_proxy({"metadata": meta})
