# SPDX-License-Identifier: Apache-2.0
"""A collector of OpenTelemetry in this process: takes OTLP/HTTP, reads it with the specification's protobuf classes."""

from __future__ import annotations

import gzip
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass
class CollectorFault:
    """What goes wrong with one request.

    Attributes:
        status: Status of the answer; 0 = the connection ends without one.
        headers: More headers of the answer.
        seconds: Time before the answer, s, or until the collector ends.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Collector:
    """Listens as soon as it is made; a context manager that ends.

    Attributes:
        faults: Faults of the next requests.
        always: The fault of all requests after these; None = none.
        asked: Paths of all requests.
        traces: The requests with traces that were accepted.
        logs: The requests with log records that were accepted.
    """

    def __init__(self) -> None:
        self.faults: deque[CollectorFault] = deque()
        self.always: CollectorFault | None = None
        self.asked: list[str] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.logs: list[ExportLogsServiceRequest] = []
        self._released = threading.Event()
        self._port = 0
        self.start()

    def start(self) -> None:
        """Listens, on the same port as before if it listened before."""
        outer = self

        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append(self.path)
                fault = outer.faults.popleft() if outer.faults else outer.always
                if fault:
                    outer._released.wait(fault.seconds)
                if fault and not fault.status:
                    self.close_connection = True
                    return
                if not fault or fault.status == 200:
                    outer._take(self.path, gzip.decompress(body), self.headers["Content-Type"])
                self.send_response(fault.status if fault else 200)
                for name, value in (fault.headers if fault else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Prints nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads, allow_reuse_address, block_on_close = True, True, False

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignores errors: clients end in the middle."""

        self._server: ThreadingHTTPServer | None = Server(("127.0.0.1", self._port), Answering)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def _take(self, path: str, body: bytes, content_type: str) -> None:
        assert content_type == "application/x-protobuf"
        if path.endswith("/v1/traces"):
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        elif path.endswith("/v1/logs"):
            self.logs.append(ExportLogsServiceRequest.FromString(body))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def spans(self) -> list[Any]:
        return [s for r in self.traces for of in r.resource_spans for scope in of.scope_spans for s in scope.spans]

    @property
    def log_records(self) -> list[Any]:
        return [s for r in self.logs for of in r.resource_logs for scope in of.scope_logs for s in scope.log_records]

    def stop(self) -> None:
        """Stops listening."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self.stop()


def values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes by name."""
    return dict(_values(attributes))


def _values(attributes: Iterable[KeyValue]) -> Iterator[tuple[str, Any]]:
    for each in attributes:
        kind = each.value.WhichOneof("value")
        assert kind in ("string_value", "int_value", "bool_value"), each
        yield each.key, getattr(each.value, kind)
