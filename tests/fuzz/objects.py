# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects with wrong types in any place: as a file for --objects, and as a server sends them."""

from __future__ import annotations

import io
import json
import random
import tempfile
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from tests.fuzz import values
from tests.fuzz.bases import OBJECTS
from tracer.errors import NoObjects
from tracer.kube import api_client, objects
from tracer.kube.api_client import ApiClient, RequestRefused
from tracer.kube.catalog import ClusterView
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.store import ObjectStore

RESOURCES = (
    api_client.SERVICES, api_client.SLICES, api_client.ENDPOINTS, api_client.pods_of("node-1"), api_client.NODES,
    api_client.POLICIES,
)  # fmt: skip
KINDS = {str(body["kind"]): resource for body, resource in zip(OBJECTS, RESOURCES, strict=True)}
ADDRESSES = ("10.244.0.11", "192.168.56.10", "172.30.253.123", "x", "")


class Canned(ApiClient):
    """An API client that gets this text as the answer."""

    def __init__(self, text: bytes) -> None:
        super().__init__(ApiAccess("http", "127.0.0.1", 1))
        self._text = text

    def _get(self, *_: Any) -> HTTPResponse:
        response = HTTPResponse(_Socket(self._text))  # type: ignore[arg-type]
        response.begin()
        return response


class _Socket:
    def __init__(self, text: bytes) -> None:
        self._text = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + text

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._text)


def load(dice: random.Random) -> int:
    """Runs one case, and returns its length. Exceptions that the callers of these functions handle are no crash."""
    bodies = [
        values.changed(body, dice, dice.choice((0, 1, 1, 2, 4))) for body in dice.choices(OBJECTS, k=dice.choice((1, 3, 6)))
    ]
    store, way = ObjectStore("node-1"), dice.random()
    if way < 0.4:
        text = values.text(values.changed({"kind": "List", "items": bodies}, dice, dice.choice((0, 0, 1))), dice)
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "objects.json"
            path.write_bytes(text)
            try:
                store.load(objects.read(str(path)))
            except NoObjects as e:
                assert str(e).endswith(".") and len(str(e)) < 2000, e
    elif way < 0.7:
        kind, resource = dice.choice(list(KINDS.items()))
        body = {"kind": f"{kind}List", "metadata": {"resourceVersion": "7"}, "items": bodies}
        text = values.text(values.changed(body, dice, dice.choice((0, 0, 1))), dice)
        text = text.replace(b'"continue"', b'"continued"')
        try:
            items, _ = Canned(text).list(resource)
            store.replace(kind, items)
        except (RequestRefused, OSError, ValueError):
            pass
    else:
        kind, resource = dice.choice(list(KINDS.items()))
        lines = [values.changed({"type": dice.choice(("ADDED", "MODIFIED", "DELETED", "ERROR", "BOOKMARK")), "object": b}, dice,
                                dice.choice((0, 0, 1))) for b in bodies]  # fmt: skip
        text = b"\n".join(values.text(line, dice) for line in lines)
        try:
            for what, body in Canned(text).watch(resource, "1"):
                if objects.has_name(body):
                    (store.delete if what == "DELETED" else store.apply)(kind, body)
        except (RequestRefused, OSError, ValueError):
            pass
    _query(store)
    json.dumps([store.node, store.version])
    return len(text)


def _query(store: ObjectStore) -> None:
    """Asks a store what packets and rules ask it."""
    known = ClusterView(store)
    for address in ADDRESSES:
        known.leads_to(address)
        known.is_local(address)
        known.service_at(address, 80, "tcp")
        store.node_of_network(address)
