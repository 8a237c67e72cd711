# SPDX-License-Identifier: Apache-2.0
"""moto's S3 server behind a door that fails as networks and storages do."""

from __future__ import annotations

import http.client
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

BUCKET = "traces"
SLOW_SECONDS = 0.3
SKEWED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>RequestTimeTooSkewed</Code>'
    b"<Message>The difference between the request time and the current time is too large.</Message></Error>"
)
BUSY = b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
NOT_PASSED_ON = ("expect", "connection", "transfer-encoding", "content-length")


@dataclass
class FaultyS3:
    """The door.

    Attributes:
        url: The store in it.
        fault: What befalls requests that write: "", "busy" (503), "slow", "half" (the connection breaks in the middle of the
            body), "skewed" (the clock of the node is wrong), "away" (no answer at all), "unanswered" (written, but the
            answer is lost).
        writes: Number of requests that write.
    """

    url: str = ""
    fault: str = ""
    writes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def running() -> Iterator[FaultyS3]:
    """A block with a bucket, and the environment of a client that uses it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    storage = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    storage.start()
    _, port = storage.get_host_and_port()
    door = FaultyS3()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(door, port))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    }
    door.url = f"s3://{BUCKET}/night"
    try:
        with patch.dict(os.environ, environment):
            make_bucket(port)
            yield door
    finally:
        server.shutdown()
        server.server_close()
        storage.stop()


def make_bucket(port: int) -> None:
    """Makes the bucket in an S3 server of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    signed = {
        "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    }
    connection.request("PUT", f"/{BUCKET}", headers=signed)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def _handler(door: FaultyS3, port: int) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None: ...

        def pass_on(self) -> None:
            is_write = self.command in ("PUT", "POST", "DELETE")
            fault = door.fault if is_write else ("away" if door.fault == "away" else "")
            with door.lock:
                door.writes += is_write
            if fault == "away" or fault == "half":
                self.rfile.read(100 if fault == "half" else 0)  # at most a part of the body
                self.close_connection = True
                self.connection.close()
                return
            body = self.body()
            if fault == "busy":
                self.answer(503, {"Content-Type": "application/xml"}, BUSY)
                return
            if fault == "skewed":
                self.answer(403, {"Content-Type": "application/xml"}, SKEWED)
                return
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if fault == "unanswered":
                self.close_connection = True
                self.connection.close()
                return
            dropped = ("transfer-encoding", "connection", "content-length", "date", "server")
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
            if self.command == "HEAD":
                kept["Content-Length"] = answer.getheader("Content-Length") or "0"
            self.answer(answer.status, kept, content)

        def body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            pieces = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(pieces)

        def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on

    return Door
