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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATHS = {
    "/api/v1/services": "Service", "/api/v1/pods": "Pod", "/api/v1/nodes": "Node", "/api/v1/endpoints": "Endpoints",
    "/apis/discovery.k8s.io/v1/endpointslices": "EndpointSlice",
}  # fmt: skip

Object = dict[str, Any]


class ApiServer:
    """refuse: kind -> status answered instead (403, 404, 500 ...). token: the only one believed, "" = any. page: objects of a
    list at once. answering: cleared, no request is answered until it is set again. tls: to speak https.

    Listens from the start; a context manager that ends it.
    """

    def __init__(
        self, objects: Iterable[Object] = (), token: str = "", page: int = 2, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self.answering = threading.Event()
        self.answering.set()
        self.refuse: dict[str, int] = {}
        self.token, self.page = token, page
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.version, self.oldest = 100, 0
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._events: list[tuple[int, str, str, Object]] = []
        self._news = threading.Condition()
        self._sockets: set[socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        for body in objects:
            self.put(body)
        self.start()

    def put(self, body: Object) -> None:
        """Adds or changes an object."""
        key = _key(body)
        self._change("MODIFIED" if key in self._objects else "ADDED", body)

    @property
    def objects(self) -> list[Object]:
        return list(self._objects.values())

    def remove(self, kind: str, namespace: str, name: str) -> None:
        self._change("DELETED", self._objects[kind, namespace, name])

    def _change(self, what: str, body: Object) -> None:
        with self._news:
            self.version += 1
            body = json.loads(json.dumps(body))
            body["metadata"]["resourceVersion"] = str(self.version)
            if what == "DELETED":
                del self._objects[_key(body)]
            else:
                self._objects[_key(body)] = body
            self._events.append((self.version, what, body["kind"], body))
            self._news.notify_all()

    def bookmark(self) -> None:
        with self._news:
            self.version += 1
            for kind in PATHS.values():
                self._events.append((self.version, "BOOKMARK", kind, {"kind": kind, "metadata": {}}))
            self._news.notify_all()

    def forget(self) -> None:
        """Compacts: whoever watches from an older version than now is told 410 Gone."""
        self.version += 1
        self.oldest = self.version

    def break_off(self) -> None:
        """Cuts every connection, as a server that is killed does."""
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(SHUT_RDWR)

    def start(self) -> None:
        """Listens; on the same port as before, if there was one."""
        outer = self

        class Handler(_Handler):
            api = outer

        class Server(ThreadingHTTPServer):
            daemon_threads, allow_reuse_address = True, True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Connections that break are what this is for."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        """Stops listening, and cuts every connection."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._news:
            self._news.notify_all()
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


def _key(body: Object) -> tuple[str, str, str]:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.api._sockets.add(self.connection)

    def finish(self) -> None:
        self.api._sockets.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        api, kind = self.api, PATHS.get(url.path, "")
        api.asked.append((url.path, query))
        api.answering.wait()
        if api.token and self.headers.get("Authorization") != f"Bearer {api.token}":
            return self._status(401, "Unauthorized")
        if not kind or kind in api.refuse:
            return self._status(api.refuse.get(kind, 404), f"{kind or url.path} refused")
        selector = query.get("fieldSelector", "")
        if "watch" in query:
            return self._watch(kind, int(query["resourceVersion"] or 0), selector)
        with api._news:
            found = [o for key, o in sorted(api._objects.items()) if key[0] == kind and _selected(o, selector)]
            meta: Object = {"resourceVersion": str(api.version)}
        start = int(query.get("continue", 0))
        size = min(api.page, int(query.get("limit", 500)))
        if start + size < len(found):
            meta["continue"] = str(start + size)
        items = [{name: value for name, value in o.items() if name != "kind"} for o in found[start : start + size]]
        return self._answer(200, {"kind": f"{kind}List", "metadata": meta, "items": items})

    def _answer(self, status: int, body: Object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _status(self, code: int, message: str) -> None:
        self._answer(code, {"kind": "Status", "status": "Failure", "code": code, "message": message})

    def _watch(self, kind: str, since: int, selector: str) -> None:
        api = self.api
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if since < api.oldest:
            self._chunk({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}})
            self.wfile.write(b"0\r\n\r\n")
            return
        server = api._server
        while api._server is server and server is not None:
            with api._news:
                due = [e for e in api._events if e[0] > since and e[2] == kind]
                if not due:
                    api._news.wait(0.05)
            for version, what, _, body in due:
                since = version
                if what == "BOOKMARK":
                    body = {"kind": kind, "metadata": {"resourceVersion": str(version)}}
                if what == "BOOKMARK" or _selected(body, selector):
                    try:
                        self._chunk({"type": what, "object": body})
                    except OSError:
                        return
            if self.connection.fileno() < 0:
                return
        self.close_connection = True

    def _chunk(self, body: Object) -> None:
        text = json.dumps(body).encode() + b"\n"
        self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
        self.wfile.flush()


def _selected(body: Object, selector: str) -> bool:
    if not selector:
        return True
    path, _, value = selector.partition("=")
    found: Any = body
    for name in path.split("."):
        found = (found or {}).get(name)
    return bool(found == value)
