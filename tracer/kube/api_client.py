# SPDX-License-Identifier: Apache-2.0
"""List and watch over HTTP, with nothing but Python's own http.client: what client-go calls a reflector asks for.

Source of the rules: "API Concepts" of the Kubernetes documentation: lists in pages with `continue`, watches from the list's
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

PAGE = 500
"""Objects a page of a list."""
WATCH_SECONDS = 300
"""The server ends a watch after so long, and it is begun again."""
SILENCE_SECONDS = WATCH_SECONDS + 30
ANSWER_SECONDS = 15
MOST_PAGE, MOST_LIST, MOST_LINE = 64 << 20, 512 << 20, 8 << 20
"""Bytes of a page of a list, of all its pages, and of one event of a watch. etcd takes no object larger than 1.5 MB."""
_KEEPALIVE = (
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 20),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 10),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 3),
)
"""A server that vanishes without a word is noticed within a minute, though a watch may be silent for longer."""


class RequestRefused(Exception):
    """The server answered, but not with what was asked for. status: of HTTP, or of the Status object in a watch."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ResponseTooLarge(ValueError):
    """The server sends more than there can be of what was asked for."""


@dataclass(frozen=True)
class ApiResource:
    """A collection. kind: of its objects. path: below the server's URL. selector: a field selector, "" for all."""

    kind: str
    path: str
    selector: str = ""


SERVICES = ApiResource("Service", "/api/v1/services")
SLICES = ApiResource("EndpointSlice", "/apis/discovery.k8s.io/v1/endpointslices")
SLICES_BETA = ApiResource("EndpointSlice", "/apis/discovery.k8s.io/v1beta1/endpointslices")
ENDPOINTS = ApiResource("Endpoints", "/api/v1/endpoints")
NODES = ApiResource("Node", "/api/v1/nodes")


def pods_of(node: str) -> ApiResource:
    """The pods of one node."""
    return ApiResource("Pod", "/api/v1/pods", f"spec.nodeName={node}")


class ApiClient:
    """One connection at a time to one API server. Errors of the network are OSError or http.client.HTTPException."""

    def __init__(self, access: ApiAccess, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._access, self._seconds = access, answer_seconds
        self._connection: http.client.HTTPConnection | None = None
        self._stream: socket.socket | None = None
        self._ended = False

    def interrupt(self) -> None:
        """Ends what is under way, for good; the thread that waits for an answer gets an OSError. For another thread."""
        self._ended = True
        stream = self._stream
        if stream:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def list(self, resource: ApiResource) -> tuple[list[dict[str, Any]], str]:
        """All objects, and the version to watch from. Raises RequestRefused, ResponseTooLarge, OSError, HTTPException,
        ValueError."""
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
        """(ADDED / MODIFIED / DELETED / BOOKMARK, object) until the server ends it. Raises as list does; 410 as RequestRefused.

        An object is whatever the server sent, of any type. The server has agreed when this returns; what goes wrong later is
        raised by the iterator.
        """
        query = {
            "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS),
        }  # fmt: skip
        return _events(self._get(resource, query, SILENCE_SECONDS))

    def _get(self, resource: ApiResource, query: dict[str, str], seconds: float) -> http.client.HTTPResponse:
        access = self._access
        if self._connection:
            self._connection.close()
        if resource.selector:
            query = {**query, "fieldSelector": resource.selector}
        if access.context:
            connection: http.client.HTTPConnection = _Tls(access, self._seconds)
        else:
            connection = http.client.HTTPConnection(access.host, access.port, timeout=self._seconds)
        self._connection = connection
        headers = {"Accept": "application/json", "User-Agent": "k8snet-trace", **access.headers()}
        connection.request("GET", f"{access.path}{resource.path}?{urlencode(query)}", headers=headers)
        # http.client forgets the socket of a connection that the server means to close.
        self._stream = stream = connection.sock
        if self._ended:
            raise OSError("interrupted")
        response = connection.getresponse()
        if response.status != 200:
            raise RequestRefused(response.status, _message(response.read(65536)) or response.reason)
        if stream:
            stream.settimeout(seconds)
            for option, value in _KEEPALIVE:
                stream.setsockopt(*option, value)
        return response


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """One JSON object a line."""
    while line := response.readline(MOST_LINE + 1):
        if len(line) > MOST_LINE:
            raise ResponseTooLarge(f"an event of more than {MOST_LINE >> 20} MB")
        if not line.strip():
            continue
        event = _object(line)
        body = event.get("object")
        if event.get("type") == "ERROR":
            told = body if isinstance(body, dict) else {}
            raise RequestRefused(_status(told.get("code")), str(told.get("message", "watch failed")))
        yield str(event.get("type")), body


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError for anything else, and for one that is nested too deep."""
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
    """With the name that the kubeconfig wants the certificate to have, if it names one."""

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
