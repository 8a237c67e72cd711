# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the agent: /metrics, /healthz and /readyz. Any process that reaches the address may ask it.

So nothing that a client does may cost much: a request has a largest number of seconds and of bytes, few are answered at once,
and nothing of it is used but its path and its header Accept.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from socketserver import TCPServer, ThreadingMixIn
from types import TracebackType
from typing import Any, NamedTuple

from tracer.errors import BadOption, MetricsNotServed
from tracer.metrics.health import AgentHealth
from tracer.node.capabilities import give_up
from tracer.util.reading_limit import reading_limit
from tracer.util.worker import Worker, user_warnings

DEFAULT_ADDRESS = "127.0.0.1:9849"
"""Where metrics are served unless the user says otherwise: they have names of objects, and the server asks for no password."""
TEXT = "text/plain; charset=utf-8"
MOST_CONNECTIONS = 16
"""Number of requests that are answered at once."""
CONNECTION_SECONDS = 10.0
"""Age of a connection from which another one may take its place, s."""
SILENCE_SECONDS = 5.0
"""Longest wait for the next bytes of a request, s."""
WAIT_SECONDS = 0.25
"""Longest wait for a request before the thread looks whether the run has ended, s."""

_log = logging.getLogger(__name__)
Text = Callable[[str], tuple[str, bytes]]
"""Gives the type and the content of /metrics, from the header Accept of a request."""


class ListenAddress(NamedTuple):
    """Where the agent listens.

    Attributes:
        host: An IP address.
        port: The port; 0 = the kernel chooses one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen_address(text: str) -> ListenAddress:
    """Reads ADDRESS:PORT; an IPv6 address may be in brackets. Raises BadOption."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    try:
        ip_address(host)
        number = int(port) if port.isascii() and port.isdecimal() else -1
    except ValueError:
        number = -1
    if not 0 <= number < 65536:
        raise BadOption(f"--metrics {text!r} is no ADDRESS:PORT: write an IP address and a port, as in {DEFAULT_ADDRESS}.")
    return ListenAddress(host, number)


class MetricsEndpoint:
    """Answers requests in its own threads, from its creation on; a context manager that ends them.

    Args:
        address: Where to listen.
        health: Answers /healthz and /readyz.
        text: Answers /metrics.

    Attributes:
        address: Where it listens, with the port that the kernel has chosen.

    Raises:
        MetricsNotServed: It cannot listen there.
    """

    def __init__(self, address: ListenAddress, health: AgentHealth, text: Text) -> None:
        try:
            self._server = _Server(address, health, text)
        except OSError as e:
            raise MetricsNotServed(
                f"The metrics cannot be served at {address}: {e.strerror or e}. Choose another address with --metrics."
            ) from e
        host, port = self._server.server_address[:2]
        self.address = ListenAddress(str(host), int(port))
        self._is_over = self._is_restricted = False
        self._thread = Worker("metrics endpoint", self._answer_next).start()

    def _answer_next(self) -> bool:
        """Waits for a request, and starts the thread that answers it. Neither of these threads needs a capability."""
        if not self._is_restricted:
            give_up(())
            self._is_restricted = True
        self._server.handle_request()
        return not self._is_over

    def __enter__(self) -> MetricsEndpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over = True
        self._thread.join(4 * WAIT_SECONDS)
        self._server.server_close()


class _Server(ThreadingMixIn, TCPServer):
    """Answers each request in a thread of its own, MOST_CONNECTIONS at once."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    timeout = WAIT_SECONDS

    def __init__(self, address: ListenAddress, health: AgentHealth, text: Text) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.health, self.text = health, text
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((address.host, address.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        now = time.monotonic()
        with self._lock:
            if len(self._since) >= MOST_CONNECTIONS:
                oldest = min(self._since, key=lambda each: self._since[each])
                if now - self._since[oldest] < CONNECTION_SECONDS:
                    _log.debug("a request was refused: %d are being answered", len(self._since))
                    super().shutdown_request(request)
                    return
                del self._since[oldest]
                _hang_up(oldest)
            self._since[request] = now
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called in the handling of an exception."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            _log.debug("a client has ended its request", exc_info=error)
        elif isinstance(error, Exception):
            user_warnings.add_failure("an answer of the metrics endpoint", error)


def _hang_up(connection: socket.socket) -> None:
    """Ends the waiting of the thread that reads it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as e:
        _log.debug("the connection had ended", exc_info=e)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    server_version, sys_version = "k8snet-trace", ""
    timeout = SILENCE_SECONDS

    def do_GET(self) -> None:
        status, content_type, content = self._answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        health = self.server.health
        match path:
            case "/metrics":
                return HTTPStatus.OK, *self.server.text(self.headers.get("Accept", ""))
            case "/healthz":
                return _state(health.problem, reading_limit.text)
            case "/readyz":
                return _state("" if health.is_ready else "The probes are not attached.")
        return HTTPStatus.NOT_FOUND, TEXT, b"There are /metrics, /healthz and /readyz.\n"

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _state(problem: str, limit: str = "") -> tuple[HTTPStatus, str, bytes]:
    """An answer. problem: why the agent does not work, "" = it does; limit: what it leaves out on purpose."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
    return status, TEXT, "".join(f"{line}\n" for line in (problem or "ok", limit) if line).encode()
