# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server in this process: real list and watch over HTTP, from objects recorded on a real cluster.

The server splits lists into pages, counts resource versions, keeps a history until forget() is called, and sends bookmarks. A
test can let it refuse requests, compact its history (410), break off watches, stop, and start again on the same port.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any, Self

from tests.support.api_events import ReportedEvents
from tests.support.api_handler import Handler
from tests.support.api_objects import PATHS, Object, key


class ApiServer:
    """An API server that listens as soon as it is made; as a context manager it stops at the end.

    refuse: kind -> status to answer with instead of objects (403, 404, 500 ...). token: the only token accepted, "" = any.
    page: objects per page of a list. answering: while cleared, no request is answered. tls: for https. handler: class that
    answers the requests. reported: the Events of clients.
    """

    handler: type[Handler] = Handler

    def __init__(
        self, objects: Iterable[Object] = (), token: str = "", page: int = 2, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self.answering = threading.Event()
        self.answering.set()
        self.refuse: dict[str, int] = {}
        self.token, self.page = token, page
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.posted: list[str] = []
        self.reported = ReportedEvents()
        self.version, self.oldest = 100, 0
        self.stored: dict[tuple[str, str, str], Object] = {}
        self.events: list[tuple[int, str, str, Object]] = []
        self.news = threading.Condition()
        self.sockets: set[socket] = set()
        self.running: ThreadingHTTPServer | None = None
        self.port = 0
        for body in objects:
            self.put(body)
        self.start()

    def put(self, body: Object) -> None:
        """Adds or changes an object."""
        self._change("MODIFIED" if key(body) in self.stored else "ADDED", body)

    @property
    def objects(self) -> list[Object]:
        return list(self.stored.values())

    def remove(self, kind: str, namespace: str, name: str) -> None:
        self._change("DELETED", self.stored[kind, namespace, name])

    def _change(self, what: str, body: Object) -> None:
        with self.news:
            self.version += 1
            body = json.loads(json.dumps(body))
            body["metadata"]["resourceVersion"] = str(self.version)
            if what == "DELETED":
                del self.stored[key(body)]
            else:
                self.stored[key(body)] = body
            self.events.append((self.version, what, body["kind"], body))
            self.news.notify_all()

    def bookmark(self) -> None:
        with self.news:
            self.version += 1
            for kind in dict.fromkeys(PATHS.values()):
                self.events.append((self.version, "BOOKMARK", kind, {"kind": kind, "metadata": {}}))
            self.news.notify_all()

    def forget(self) -> None:
        """Compacts: a watch from a version older than now is answered with 410 Gone."""
        self.version += 1
        self.oldest = self.version

    def break_off(self) -> None:
        """Closes every connection, as when a server is killed."""
        for one in list(self.sockets):
            with suppress(OSError):
                one.shutdown(SHUT_RDWR)

    def start(self) -> None:
        """Listens, on the same port as before if it listened before."""
        outer = self

        class Answering(self.handler):  # type: ignore[name-defined, misc]
            api = outer

        class Server(ThreadingHTTPServer):
            daemon_threads, allow_reuse_address = True, True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignores errors: the tests break connections on purpose."""

        self.running = Server(("127.0.0.1", self.port), Answering)
        self.port = self.running.server_address[1]
        if self._tls:
            self.running.socket = self._tls.wrap_socket(self.running.socket, server_side=True)
        threading.Thread(target=self.running.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        """Stops listening, and closes every connection."""
        if self.running:
            self.running.shutdown()
            self.running.server_close()
            self.running = None
        with self.news:
            self.news.notify_all()
        self.break_off()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def kubeconfig(self, folder: Path, token: str = "") -> str:
        """Writes a kubeconfig for this server into the folder, and returns its path."""
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "lab", "user": "me"}}],
            "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": {"token": token} if token else {}}],
        }
        path = folder / "config"
        path.write_text(json.dumps(config))
        return str(path)

    def watched(self, kind: str) -> int:
        """The number of watches of this kind that were requested."""
        return sum(1 for path, query in self.requests if PATHS.get(path) == kind and "watch" in query)

    def listed(self, kind: str) -> int:
        return sum(1 for path, q in self.requests if PATHS.get(path) == kind and "watch" not in q and "continue" not in q)
