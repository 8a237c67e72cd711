# SPDX-License-Identifier: Apache-2.0
"""An API server that never stops sending: its answer is not read into memory, and one sentence reports it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.waiting import until
from tracer.kube import api_client
from tracer.kube.api_client import SERVICES, ApiClient, ResponseTooLarge
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.store import ObjectStore
from tracer.kube.watch import ObjectWatch

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
PAGES = b'{"metadata": {"continue": "on"}, "items": [' + b"{}," * 3000 + b"{}]}"


class Endless:
    """Answers each request with `begin`, then repeats `rest` until the client closes. sent: bytes of `rest` that were sent."""

    def __init__(self, begin: bytes, rest: bytes) -> None:
        self._begin, self._rest, self.sent = begin, rest, 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.access = ApiAccess("http", "127.0.0.1", self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(HEAD + self._begin)
                    while self._rest:
                        self.sent += connection.send(self._rest)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("MOST_PAGE", 2 << 20), ("MOST_LIST", 3 << 20), ("MOST_LINE", 1 << 20)):
        monkeypatch.setattr(api_client, name, size)


@pytest.fixture(params=["list", "text"])
def endless(request: pytest.FixtureRequest) -> Iterator[Endless]:
    server = Endless(b'{"items": [', b"{}," * 1000 if request.param == "list" else b"x" * 4096)
    yield server
    server.close()


def test_a_list_without_end(endless: Endless) -> None:
    with pytest.raises(ResponseTooLarge, match="a list of more than 2 MB"):
        ApiClient(endless.access).list(SERVICES)
    watch = ObjectWatch(endless.access, ObjectStore(), lambda store: "")
    watch.start()
    until(lambda: watch.troubled)
    assert "sends more than this program takes (a list of more than 2 MB)" in watch.notes()[0]
    watch.close()


def test_a_list_of_pages_without_end() -> None:
    server = Endless(PAGES, b"")
    with pytest.raises(ResponseTooLarge, match="a list of more than 3 MB"):
        ApiClient(server.access).list(SERVICES)
    server.close()


def test_an_event_without_end() -> None:
    server = Endless(b'{"type": "ADDED", "object": "', b"x" * 4096)
    with pytest.raises(ResponseTooLarge, match="an event of more than 1 MB"):
        list(ApiClient(server.access).watch(SERVICES, "1"))
    server.close()
