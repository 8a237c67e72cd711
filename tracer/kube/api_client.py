# SPDX-License-Identifier: Apache-2.0
"""Lists and watches API objects over HTTP with http.client, like the reflector of client-go; creates and patches Events.

Source of the protocol: "API Concepts" of the Kubernetes documentation: lists in pages with `continue`, watches from the list's
resourceVersion, bookmarks, and 410 Gone when a version is too old.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tracer.kube.kubeconfig import ApiAccess
from tracer.util.retry_after import retry_seconds

PAGE = 500
"""Objects per page of a list."""
WATCH_SECONDS = 300
"""Time after which the server ends a watch, s. Then it is started again."""
SILENCE_SECONDS = WATCH_SECONDS + 30
ANSWER_SECONDS = 15
MOST_ANSWER = 1 << 20
"""Maximum size of the answer to a write, bytes: the object that was written."""
MOST_PAGE, MOST_LIST, MOST_LINE = 64 << 20, 512 << 20, 8 << 20
"""Maximum size of a page of a list, of all its pages, and of one watch event, bytes. etcd limits an object to 1.5 MB."""
_KEEPALIVE = (
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 20),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 10),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 3),
)
"""TCP keepalive. It detects a dead server within a minute, even if a watch has no events for longer."""


class RequestRefused(Exception):
    """The server refused a request.

    Attributes:
        status: The HTTP status, or that of the Status object in a watch.
        retry_after: Time after which the server asks for the request again, s; 0 = it says nothing.
    """

    def __init__(self, status: int, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class ResponseTooLarge(ValueError):
    """The response is larger than any valid one."""


@dataclass(frozen=True)
class ApiResource:
    """A collection of objects.

    Attributes:
        kind: The kind of its objects.
        path: Path below the server's URL.
        selector: A field selector; "" = all objects.
        labels: A label selector; "" = all objects.
    """

    kind: str
    path: str
    selector: str = ""
    labels: str = ""


SERVICES = ApiResource("Service", "/api/v1/services")
SLICES = ApiResource("EndpointSlice", "/apis/discovery.k8s.io/v1/endpointslices")
SLICES_BETA = ApiResource("EndpointSlice", "/apis/discovery.k8s.io/v1beta1/endpointslices")
ENDPOINTS = ApiResource("Endpoints", "/api/v1/endpoints")
NODES = ApiResource("Node", "/api/v1/nodes")
POLICIES = ApiResource("NetworkPolicy", "/apis/networking.k8s.io/v1/networkpolicies")


def pods_of(node: str) -> ApiResource:
    """Returns the collection of the pods of one node."""
    return ApiResource("Pod", "/api/v1/pods", f"spec.nodeName={node}")


class ApiClient:
    """A client with one connection at a time to one API server. Network errors are OSError or http.client.HTTPException."""

    def __init__(self, access: ApiAccess, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._access, self._seconds = access, answer_seconds
        self._connection: http.client.HTTPConnection | None = None
        self._stream: socket.socket | None = None
        self._ended = False

    def interrupt(self) -> None:
        """Ends the current request and all later ones. Called from another thread; the waiting thread gets an OSError."""
        self._ended = True
        stream = self._stream
        if stream:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def list(self, resource: ApiResource) -> tuple[list[dict[str, Any]], str]:
        """Returns all objects and the resourceVersion for a watch.

        Raises:
            RequestRefused, ResponseTooLarge, OSError, HTTPException, ValueError: The list failed.
        """
        items: list[dict[str, Any]] = []
        length = 0
        query: dict[str, str] = {"limit": str(PAGE)}
        while True:
            response = self._get(resource, query, self._seconds)
            text = response.read(MOST_PAGE + 1)
            length += len(text)
            if len(text) > MOST_PAGE or length > MOST_LIST:
                most = MOST_PAGE if len(text) > MOST_PAGE else MOST_LIST
                raise ResponseTooLarge(f"a list of more than {most >> 20} MB")
            body = _object(text)
            inside, meta = body.get("items") or [], body.get("metadata") or {}
            if not isinstance(inside, list) or not isinstance(meta, dict):
                raise ValueError("it sent no list of objects")
            items += inside
            if not meta.get("continue"):
                return items, str(meta.get("resourceVersion", ""))
            query["continue"] = meta["continue"]

    def watch(self, resource: ApiResource, version: str) -> Iterator[tuple[str, Any]]:
        """Yields (ADDED / MODIFIED / DELETED / BOOKMARK, object) until the server ends the watch.

        The object can be of any type, as sent by the server. When this method returns, the server has accepted the watch. The
        iterator raises later errors: the same as `list`, and RequestRefused for 410.
        """
        query = {
            "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS),
        }  # fmt: skip
        return _events(self._get(resource, query, SILENCE_SECONDS))

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Creates an object, and returns it as the server has it. path: that of its collection, below the server's URL.

        Raises:
            RequestRefused, ResponseTooLarge, OSError, HTTPException, ValueError: It may not exist; after another error than
                RequestRefused it may exist all the same.
        """
        return self._write("POST", path, body, "application/json")

    def patch(self, path: str, change: dict[str, Any]) -> dict[str, Any]:
        """Changes an object by a JSON merge patch (RFC 7386), and returns it. path: its own. Raises the same as `create`."""
        return self._write("PATCH", path, change, "application/merge-patch+json")

    def _write(self, method: str, path: str, body: dict[str, Any], content_type: str) -> dict[str, Any]:
        response = self._request(method, path, json.dumps(body).encode(), {"Content-Type": content_type})
        text = response.read(MOST_ANSWER + 1)
        if len(text) > MOST_ANSWER:
            raise ResponseTooLarge(f"an object of more than {MOST_ANSWER >> 20} MB")
        return _object(text)

    def _get(self, resource: ApiResource, query: dict[str, str], seconds: float) -> http.client.HTTPResponse:
        if resource.selector:
            query = {**query, "fieldSelector": resource.selector}
        if resource.labels:
            query = {**query, "labelSelector": resource.labels}
        response = self._request("GET", f"{resource.path}?{urlencode(query)}")
        stream = self._stream
        if stream:
            stream.settimeout(seconds)
            for option, value in _KEEPALIVE:
                stream.setsockopt(*option, value)
        return response

    def _request(
        self, method: str, path: str, body: bytes | None = None, more: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Sends a request on a new connection; returns its answer before its body is read. more: headers."""
        access = self._access
        if self._connection:
            self._connection.close()
        if access.context:
            connection: http.client.HTTPConnection = _Tls(access, self._seconds)
        else:
            connection = http.client.HTTPConnection(access.host, access.port, timeout=self._seconds)
        self._connection = connection
        headers = {"Accept": "application/json", "User-Agent": "k8snet-trace", **(more or {}), **access.headers()}
        connection.request(method, f"{access.path}{path}", body, headers)
        # http.client drops its reference to the socket if the server announces to close the connection.
        self._stream = connection.sock
        if self._ended:
            raise OSError("interrupted")
        response = connection.getresponse()
        if response.status not in (200, 201):
            after = retry_seconds(response.getheader("Retry-After", ""))
            raise RequestRefused(response.status, _message(response.read(65536)) or response.reason, after)
        return response


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yields the events of a watch: one JSON object per line."""
    while line := response.readline(MOST_LINE + 1):
        if len(line) > MOST_LINE:
            raise ResponseTooLarge(f"an event of more than {MOST_LINE >> 20} MB")
        if not line.strip():
            continue
        event = _object(line)
        body = event.get("object")
        if event.get("type") == "ERROR":
            status = body if isinstance(body, dict) else {}
            raise RequestRefused(_status(status.get("code")), str(status.get("message", "watch failed")))
        yield str(event.get("type")), body


def _object(text: bytes) -> dict[str, Any]:
    """Parses a JSON object. Raises ValueError for anything else, and for an object that is nested too deep."""
    try:
        found = json.loads(text)
    except RecursionError as e:
        raise ValueError("its JSON is nested too deep") from e
    if not isinstance(found, dict):
        raise ValueError("it sent no JSON object")
    return found


def _status(code: object) -> int:
    return code if isinstance(code, int) else 500


class _Tls(http.client.HTTPSConnection):
    """An HTTPS connection that verifies the certificate for the kubeconfig's tls-server-name, if there is one."""

    def __init__(self, access: ApiAccess, seconds: float) -> None:
        super().__init__(access.host, access.port, timeout=seconds, context=access.context)
        self._name = access.server_name or access.host
        self._tls = access.context or ssl.create_default_context()

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError, RecursionError):
        return ""
