# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of the API server: lists in pages, watches, single objects, and the other requests of a real client.

A streamed list (sendInitialEvents) is a watch that begins with all objects, and then a bookmark. Events are accepted and not
stored, unless the test asks for more (tests/support/api_events.py). All answers are JSON, also to a client that prefers
protobuf.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.support.api_objects import PATHS, Object, is_selected, key, served, version_of

if TYPE_CHECKING:
    from tests.support.api_server import ApiServer

WATCH_SECONDS = 600.0
"""Duration of a watch, s, when the request has no timeoutSeconds."""
HEALTH = ("/healthz", "/livez", "/readyz")
NAMESPACED = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/(\w+)")
"""The path of a collection in one namespace."""
LIST_ENDS = {"annotations": {"k8s.io/initial-events-end": "true"}}
"""The metadata of the bookmark that follows the last object of a streamed list."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection. api: the ApiServer, which sets it."""

    api: ApiServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def setup(self) -> None:
        super().setup()
        self.api.sockets.add(self.connection)

    def finish(self) -> None:
        self.api.sockets.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        api = self.api
        api.requests.append((url.path, dict(query)))
        if not self._is_authorized():
            return None
        if url.path in HEALTH:
            return self._send(200, b"ok", "text/plain")
        if url.path == "/version":
            return self._answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"})
        path = url.path
        if found := NAMESPACED.fullmatch(path):
            path, of_namespace = f"{found[1]}/{found[3]}", f"metadata.namespace={found[2]}"
            query["fieldSelector"] = ",".join(filter(None, (query.get("fieldSelector"), of_namespace)))
        kind = PATHS.get(path, "")
        collection, _, name = path.rpartition("/")
        if not kind and collection in PATHS:
            return self._one(collection, name)
        if not kind or kind in api.refuse:
            return self._status(api.refuse.get(kind, 404), f"{kind or path} refused")
        if "watch" in query:
            return self._watch(path, query)
        return self._list(path, query)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        self.api.posted.append(path)
        if not self._is_authorized():
            return None
        if self.api.reported.is_asked(path):
            return self._event(path, body)
        collection = path.rpartition("/")[2]
        group = version_of(path).partition("/namespaces/")[0]
        if collection == "events":
            return self._answer(201, {"kind": "Event", "apiVersion": group, "metadata": {"name": "noted"}})
        if collection.endswith("accessreviews"):
            kind = {"selfsubjectaccessreviews": "SelfSubjectAccessReview"}.get(collection, "SubjectAccessReview")
            return self._answer(201, {"kind": kind, "apiVersion": group, "metadata": {}, "status": {"allowed": True}})
        return self._status(404, f"{path} refused")

    do_PATCH = do_POST

    def _event(self, path: str, body: bytes) -> None:
        """Creates or changes an Event, or has the next fault of the test."""
        reported = self.api.reported
        fault = reported.next_fault()
        if not (fault and fault.status) and not (fault and fault.is_cut):
            answer = reported.write(self.command, path, self.headers.get("Content-Type", ""), body)
        else:
            answer = fault.status, {"message": fault.message, "code": fault.status}
        if fault:
            reported.released.wait(fault.seconds)
        if fault and (fault.is_cut or fault.is_cut_after):
            self.close_connection = True
            self.connection.shutdown(SHUT_RDWR)
            return None
        return self._send(answer[0], json.dumps(answer[1]).encode(), "application/json", fault.headers if fault else {})

    def _is_authorized(self) -> bool:
        """Waits until the server answers requests, and refuses a request with another token."""
        self.api.answering.wait()
        if self.api.token and self.headers.get("Authorization") != f"Bearer {self.api.token}":
            self._status(401, "Unauthorized")
            return False
        return True

    def _one(self, collection: str, name: str, namespace: str = "") -> None:
        kind = PATHS[collection]
        body = self.api.stored.get((kind, namespace, name))
        if kind in self.api.refuse or body is None:
            return self._status(self.api.refuse.get(kind, 404), f'{kind} "{name}" not found')
        return self._answer(200, served(body, collection))

    def _list(self, path: str, query: dict[str, str]) -> None:
        api = self.api
        with api.news:
            found = self._selected(path, query)
            meta: Object = {"resourceVersion": str(api.version)}
        start = int(query.get("continue", 0))
        size = min(api.page, int(query["limit"])) if "limit" in query else len(found)
        if start + size < len(found):
            meta["continue"] = str(start + size)
        # A server states kind and version once, for the whole list.
        page = found[start : start + size]
        items = [{name: value for name, value in o.items() if name not in ("kind", "apiVersion")} for o in page]
        kind = f"{PATHS[path]}List"
        return self._answer(200, {"kind": kind, "apiVersion": version_of(path), "metadata": meta, "items": items})

    def _selected(self, path: str, query: dict[str, str]) -> list[Object]:
        kind = PATHS[path]
        every = [served(o, path) for k, o in sorted(self.api.stored.items()) if k[0] == kind]
        return [o for o in every if is_selected(o, query)]

    def _watch(self, path: str, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # A watch that the server breaks off has no last chunk.
        with suppress(OSError):
            since = self._begin(path, query)
            if since is None or self._follow(path, query, since):
                self.wfile.write(b"0\r\n\r\n")
                return
        self.close_connection = True

    def _begin(self, path: str, query: dict[str, str]) -> int | None:
        """Sends what precedes the changes. Returns the version at which the changes begin, None when there are none."""
        api = self.api
        since = int(query.get("resourceVersion") or 0)
        if query.get("sendInitialEvents") == "true":
            with api.news:
                found, since = self._selected(path, query), api.version
            for body in found:
                self._chunk({"type": "ADDED", "object": body})
            self._bookmark(path, since, LIST_ENDS)
        elif since < api.oldest:
            self._chunk({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}})
            return None
        return since

    def _follow(self, path: str, query: dict[str, str], since: int) -> bool:
        """Sends changes until the requested time is over. Returns False when the server or the connection ended before."""
        api, kind, server = self.api, PATHS[path], self.api.running
        ends = time.monotonic() + float(query.get("timeoutSeconds", WATCH_SECONDS))
        known = {key(o) for o in self._selected(path, query)}
        while time.monotonic() < ends:
            if api.running is not server or server is None or self.connection.fileno() < 0:
                return False
            with api.news:
                due = [e for e in api.events if e[0] > since and e[2] == kind]
                if not due:
                    api.news.wait(0.05)
            for version, what, _, body in due:
                since = version
                if what == "BOOKMARK":
                    self._bookmark(path, version)
                    continue
                body = served(body, path)
                if is_selected(body, query):
                    self._chunk({"type": what, "object": body})
                    known.add(key(body))
                elif key(body) in known:
                    # An object that the selector no longer matches is deleted for this client.
                    self._chunk({"type": "DELETED", "object": body})
                    known.discard(key(body))
        return True

    def _bookmark(self, path: str, version: int, meta: Object | None = None) -> None:
        head = {"kind": PATHS[path], "apiVersion": version_of(path)}
        self._chunk({"type": "BOOKMARK", "object": head | {"metadata": {"resourceVersion": str(version)} | (meta or {})}})

    def _answer(self, status: int, body: Object) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _status(self, code: int, message: str) -> None:
        reason = {404: "NotFound", 401: "Unauthorized", 403: "Forbidden"}.get(code, "")
        head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self._answer(code, head | {"code": code, "message": message, "reason": reason})

    def _send(self, status: int, text: bytes, form: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", form)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _chunk(self, body: Object) -> None:
        text = json.dumps(body).encode() + b"\n"
        self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
        self.wfile.flush()
