# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server in this process: real list and watch over HTTP, from objects recorded on a real cluster.

It pages, counts resource versions, keeps a history as long as it is told to, sends bookmarks, and can be made to refuse, to
forget (410), to break off watches, to die and to come back on the same port.
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
from typing import Any

from tests.support.api_handler import Handler
from tests.support.api_objects import PATHS, Object, key


class ApiServer:
    """refuse: kind -> status answered instead (403, 404, 500 ...). token: the only one believed, "" = any. page: objects of a
    list at once. answering: cleared, no request is answered until it is set again. tls: to speak https.

    Listens from the start; a context manager that ends it. handler: what answers its requests.
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
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.posted: list[str] = []
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
        """Compacts: whoever watches from an older version than now is told 410 Gone."""
        self.version += 1
        self.oldest = self.version

    def break_off(self) -> None:
        """Cuts every connection, as a server that is killed does."""
        for one in list(self.sockets):
            with suppress(OSError):
                one.shutdown(SHUT_RDWR)

    def start(self) -> None:
        """Listens; on the same port as before, if there was one."""
        outer = self

        class Answering(self.handler):  # type: ignore[name-defined, misc]
            api = outer

        class Server(ThreadingHTTPServer):
            daemon_threads, allow_reuse_address = True, True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Connections that break are what this is for."""

        self.running = Server(("127.0.0.1", self.port), Answering)
        self.port = self.running.server_address[1]
        if self._tls:
            self.running.socket = self._tls.wrap_socket(self.running.socket, server_side=True)
        threading.Thread(target=self.running.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        """Stops listening, and cuts every connection."""
        if self.running:
            self.running.shutdown()
            self.running.server_close()
            self.running = None
        with self.news:
            self.news.notify_all()
        self.break_off()

    def __enter__(self) -> ApiServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def kubeconfig(self, folder: Path, token: str = "") -> str:
        """The path of a kubeconfig that leads here, made in the folder."""
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
        """How many watches of this kind were asked for."""
        return sum(1 for path, query in self.asked if PATHS.get(path) == kind and "watch" in query)

    def listed(self, kind: str) -> int:
        return sum(1 for path, q in self.asked if PATHS.get(path) == kind and "watch" not in q and "continue" not in q)
