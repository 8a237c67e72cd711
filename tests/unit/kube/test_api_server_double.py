# SPDX-License-Identifier: Apache-2.0
"""The API server double answers requests of real clients: streamed lists, selectors, older versions, single objects, events."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from tests.support.api_server import ApiServer

V1, V1BETA1 = "/apis/discovery.k8s.io/v1/endpointslices", "/apis/discovery.k8s.io/v1beta1/endpointslices"


def request(server: ApiServer, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, body, {"Accept": "application/vnd.kubernetes.protobuf, */*"})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "application/json"
    lines = [json.loads(line) for line in answer.read().splitlines()]
    return answer.status, lines if "watch=true" in path else lines[0]


def test_each_version_has_its_own_fields(server: ApiServer) -> None:
    status, new = request(server, V1)
    assert (status, new["kind"], new["apiVersion"]) == (200, "EndpointSliceList", "discovery.k8s.io/v1")
    assert not any("topology" in end for item in new["items"] for end in item["endpoints"] or ())
    status, old = request(server, V1BETA1)
    ends = [end for item in old["items"] for end in item["endpoints"] or () if end.get("nodeName")]
    assert status == 200 and ends and old["apiVersion"] == "discovery.k8s.io/v1beta1"
    assert all(end["topology"]["kubernetes.io/hostname"] == end["nodeName"] for end in ends)


def test_a_list_without_a_limit_is_whole_and_selectors_choose(server: ApiServer) -> None:
    names = {o["metadata"]["name"] for o in server.objects if o["kind"] == "Service"}
    _, every = request(server, "/api/v1/services?resourceVersion=0")
    assert {o["metadata"]["name"] for o in every["items"]} == names and "continue" not in every["metadata"]
    assert all(o["spec"]["type"] and o["spec"]["sessionAffinity"] for o in every["items"])
    _, paged = request(server, "/api/v1/services?limit=1")
    assert len(paged["items"]) == 1 and paged["metadata"]["continue"]
    headless = {"kind": "Service", "metadata": {"namespace": "shop", "name": "none", "labels": {"is/headless": ""}},
                "spec": {"clusterIP": "None", "ports": []}}  # fmt: skip
    server.put(headless)
    for selector in ("fieldSelector=spec.clusterIP!=None", "labelSelector=!is/headless,!is/other"):
        _, chosen = request(server, f"/api/v1/services?{selector}")
        assert {o["metadata"]["name"] for o in chosen["items"]} == names


def test_a_streamed_list_ends_with_a_bookmark_and_a_watch_with_its_time(server: ApiServer) -> None:
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=0"
    status, events = request(server, f"/api/v1/nodes?{query}&fieldSelector=metadata.name=node-1")
    assert status == 200 and [e["type"] for e in events] == ["ADDED", "BOOKMARK"]
    assert events[0]["object"]["apiVersion"] == "v1" and events[0]["object"]["metadata"]["name"] == "node-1"
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_single_objects_events_and_reviews(server: ApiServer) -> None:
    status, found = request(server, "/api/v1/nodes/node-1")
    assert (status, found["kind"], found["apiVersion"]) == (200, "Node", "v1")
    assert request(server, "/api/v1/nodes/other")[0] == 404
    status, made = request(server, "/apis/events.k8s.io/v1/namespaces/default/events", "POST", b"k8s\0protobuf")
    assert (status, made["apiVersion"]) == (201, "events.k8s.io/v1")
    _, review = request(server, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "POST", b"{}")
    assert review["status"] == {"allowed": True}
    assert request(server, "/version")[1]["gitVersion"].startswith("v1.")
