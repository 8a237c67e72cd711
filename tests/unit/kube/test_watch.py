# SPDX-License-Identifier: Apache-2.0
"""An API server that dies, comes back, breaks off, forgets and refuses: the names come back, and one note reports it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support.api_server import ApiServer
from tests.support.waiting import PATIENCE, until
from tracer.kube import kubeconfig
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.store import ObjectStore
from tracer.kube.watch import MOST_NOTES, ObjectWatch


def watching(server: ApiServer, access: ApiAccess | None = None) -> tuple[ObjectWatch, ObjectStore]:
    store = ObjectStore()
    access = access or ApiAccess("http", "127.0.0.1", server.port)
    watch = ObjectWatch(access, store, lambda s: "node-1" if s.nodes.all("node-1") else "", pause=0.02)
    watch.start()
    return watch, store


def service(name: str, port: int) -> dict[str, Any]:
    spec = {"clusterIP": "172.30.9.9", "ports": [{"port": port, "protocol": "TCP", "name": "web"}]}
    return {"kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec}


def test_everything_is_listed_in_pages_and_followed(server: ApiServer) -> None:
    watch, store = watching(server)
    assert watch.wait(PATIENCE)
    assert store.node == "node-1"
    assert store.by_address.one(("172.30.253.123", 8080, "tcp")) is not None
    assert next(q["fieldSelector"] for path, q in server.requests if path == "/api/v1/pods") == "spec.nodeName=node-1"
    server.put(service("cart", 80))
    until(lambda: store.by_address.one(("172.30.9.9", 80, "tcp")))
    server.put(service("cart", 81))
    until(lambda: store.by_address.one(("172.30.9.9", 81, "tcp")))
    assert not store.by_address.all(("172.30.9.9", 80, "tcp"))
    server.remove("Service", "shop", "cart")
    until(lambda: not store.services.all(("shop", "cart")))
    assert watch.notes() == []
    watch.close()


def test_a_server_that_dies_and_comes_back(server: ApiServer) -> None:
    watch, store = watching(server)
    assert watch.wait(PATIENCE)
    server.die()
    until(lambda: watch.troubled)
    time.sleep(0.3)  # the list is requested again, without an answer
    assert store.by_address.one(("172.30.253.123", 8080, "tcp")), "known objects stay known"
    server.put(service("cart", 80))
    server.start()
    until(lambda: store.services.all(("shop", "cart")))
    until(lambda: not watch.troubled)
    first, *rest = watch.notes()
    assert first.startswith(f"The Kubernetes API at 127.0.0.1:{server.port} does not answer (")
    assert rest == ["The Kubernetes API answers again."]
    watch.close()


def test_an_api_that_is_away_at_the_start(server: ApiServer) -> None:
    server.die()
    watch, store = watching(server)
    until(lambda: watch.troubled)
    assert len(store) == 0
    server.start()
    assert watch.wait(PATIENCE)
    assert store.by_node_port.one((30285, "tcp"))
    until(lambda: not watch.troubled)
    assert len(watch.notes()) == 2
    watch.close()


def test_watches_that_are_broken_off_go_on_where_they_were(server: ApiServer) -> None:
    watch, store = watching(server)
    assert watch.wait(PATIENCE)
    until(lambda: server.watched("Service"))
    lists = server.listed("Service")
    for number in range(3):
        server.bookmark()
        seen = server.watched("Service")
        server.break_off()
        server.put(service(f"cart-{number}", 80 + number))
        until(lambda n=number: store.services.all(("shop", f"cart-{n}")))  # type: ignore[misc]
        until(lambda s=seen: server.watched("Service") > s)  # type: ignore[misc]
    assert server.listed("Service") == lists, "nothing was listed again"
    watch.close()


def test_after_gone_objects_are_listed_again_and_missed_changes_are_found(server: ApiServer) -> None:
    watch, store = watching(server)
    assert watch.wait(PATIENCE)
    until(lambda: server.watched("Service"))
    server.die()
    server.put(service("cart", 80))
    server.remove("Service", "default", "http-proxy")
    server.forget()
    server.start()
    until(lambda: store.services.all(("shop", "cart")))
    until(lambda: not store.services.all(("default", "http-proxy")))
    until(lambda: not store.by_node_port.all((30285, "tcp")))
    assert server.listed("Service") >= 2
    assert not any("answered 410" in note for note in watch.notes()), "status 410 is not reported"
    watch.close()


def test_a_forbidden_kind_is_reported_once_and_the_other_kinds_go_on(server: ApiServer) -> None:
    server.refuse = {"Pod": 403}
    watch, store = watching(server)
    assert watch.wait(PATIENCE)
    until(lambda: len([1 for path, _ in server.requests if path == "/api/v1/pods"]) > 3)
    assert store.by_node_port.one((30285, "tcp"))
    assert store.pod_at("10.244.0.11") == ("default", "http-proxy-a", "node-1"), "known as an endpoint"
    notes = watch.notes()
    assert notes == ["The Kubernetes API does not let this account list pods (403): pods may go unnamed."]
    server.refuse = {}
    until(lambda: store.pods.all(("default", "http-proxy-a")))
    until(lambda: watch.notes() == ["The Kubernetes API answers again."])
    watch.close()


def test_an_expired_token_is_read_again(server: ApiServer, tmp_path: Path) -> None:
    server.token = "first"
    token = tmp_path / "token"
    token.write_text("first\n")
    access = ApiAccess("http", "127.0.0.1", server.port, token_file=str(token))
    watch, store = watching(server, access)
    assert watch.wait(PATIENCE)
    server.token = "second"
    server.break_off()
    until(lambda: "(401" in watch.troubled)
    token.write_text("second\n")
    until(lambda: not watch.troubled)
    server.put(service("cart", 80))
    until(lambda: store.services.all(("shop", "cart")))
    notes = watch.notes()
    assert sum("(401: expired token?)" in note for note in notes) == 1
    assert not any("first" in note or "second" in note for note in notes)
    watch.close()


def test_an_old_cluster_has_endpoints_only(server: ApiServer) -> None:
    server.refuse = {"EndpointSlice": 404}
    watch, store = watching(server)
    assert watch.wait(PATIENCE)
    until(lambda: store.endpoints.all(("default/http-proxy", "tcp")))
    assert {e.address for e in store.endpoints.all(("default/http-proxy", "tcp"))} == {f"10.244.0.1{n}" for n in (1, 2, 3)}
    assert watch.notes() == []
    watch.close()


def test_a_server_that_answers_with_an_error(server: ApiServer) -> None:
    server.refuse = {"Service": 500}
    watch, _ = watching(server)
    until(lambda: watch.troubled)
    assert "answered 500 when asked for services" in watch.notes()[0]
    watch.close()


def test_a_kubeconfig_gives_the_server(server: ApiServer, tmp_path: Path) -> None:
    server.token = "of-the-file"
    watch, store = watching(server, kubeconfig.read(server.kubeconfig(tmp_path, "of-the-file")))
    assert watch.wait(PATIENCE)
    assert len(store)
    watch.close()


def test_unread_notes_are_bounded() -> None:
    """An API that fails and answers in turn, while a long batch is being explained."""
    watch = ObjectWatch(ApiAccess("http", "127.0.0.1", 1), ObjectStore(), lambda store: "")
    for n in range(1000):
        watch._say("Service", f"trouble {n}")
        watch._well("Service")
    assert len(watch.notes()) == MOST_NOTES and watch._pending_notes.evicted == 2000 - MOST_NOTES and not watch._failed
