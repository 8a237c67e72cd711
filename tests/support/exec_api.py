# SPDX-License-Identifier: Apache-2.0
"""An API server whose pods run commands: `kubectl exec` over a WebSocket, into processes of this or of another machine."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.exec_socket import ExecSession, ExecSocket
from tests.support.kubectl_api import KubectlApi, KubectlHandler

READ_BYTES = 1 << 16
MOST_WAITING = 16
"""Pieces of output of a local command that wait to be read."""

Executor = Callable[[str, str, Sequence[str]], ExecSession]
"""Starts a command: namespace, pod, program and arguments. Raises OSError if it cannot be started."""


class LocalCommand:
    """A command on this machine."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._pieces: queue.Queue[tuple[int, bytes] | None] = queue.Queue(MOST_WAITING)
        self._is_abandoned = False
        self.status: int | None = None
        threading.Thread(target=self._complete, daemon=True).start()

    def write(self, data: bytes) -> None:
        assert self._process.stdin
        with suppress(OSError):  # the command does not read its input
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.close()

    def read(self) -> tuple[int, bytes] | None:
        return self._pieces.get()

    def abandon(self) -> None:
        self._is_abandoned = True
        self.close_input()

    def _complete(self) -> None:
        assert self._process.stdout and self._process.stderr
        pumps = [
            threading.Thread(target=self._read, args=(channel, pipe.fileno()), daemon=True)
            for channel, pipe in ((1, self._process.stdout), (2, self._process.stderr))
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        self.status = self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()
        self._put(None)

    def _read(self, channel: int, descriptor: int) -> None:
        while data := os.read(descriptor, READ_BYTES):
            self._put((channel, data))

    def _put(self, piece: tuple[int, bytes] | None) -> None:
        while not self._is_abandoned:
            with suppress(queue.Full):
                self._pieces.put(piece, timeout=0.2)
                return
        with suppress(queue.Full):
            self._pieces.put_nowait(None)


def run_here(namespace: str, pod: str, argv: Sequence[str]) -> ExecSession:
    """Starts a command on this machine, whatever the pod."""
    return LocalCommand(argv)


class ExecHandler(KubectlHandler):
    """Answers `exec`, and everything that the double answers."""

    api: ExecApi

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        if parts[:3] == ["api", "v1", "namespaces"] and len(parts) == 4:  # kubectl looks for it when a pod is missing
            return self._answer(200, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": parts[3]}})
        if len(parts) != 7 or parts[2] != "namespaces" or parts[4] != "pods" or parts[6] != "exec":
            return super().do_GET()
        namespace, pod = unquote(parts[3]), unquote(parts[5])
        query = parse_qs(url.query)
        self.api.requests.append((url.path, {name: " ".join(values) for name, values in query.items()}))
        if not self._is_authorized():
            return None
        if ("Pod", namespace, pod) not in self.api.stored:
            return self._status(404, f'pods "{pod}" not found')
        if "websocket" not in self.headers.get("Upgrade", "").lower():
            return self._status(400, "Upgrade request required")
        self.close_connection = True
        link = ExecSocket(self, self.api.cuts.get(pod))
        if link.is_open:
            try:
                session = self.api.executor(namespace, pod, query.get("command", []))
            except OSError as error:
                return link.fail(f"failed to exec in container: {error.strerror}")
            link.serve(session)
        return None


class ExecApi(KubectlApi):
    """Listens at once. executor: runs the commands.

    cuts: pod -> bytes of standard output after which a stream of this pod is broken.
    """

    handler = ExecHandler

    def __init__(self, executor: Executor = run_here) -> None:
        self.executor = executor
        self.cuts: dict[str, int] = {}
        super().__init__()
