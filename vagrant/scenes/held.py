# SPDX-License-Identifier: Apache-2.0
"""A process that holds connections open."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence

from scenes.netns import Child, entered
from scenes.topology import CLIENT, STATE_DIR


def hold(address: str, port: int, count: int, *, ns: str | None = CLIENT) -> Child[None]:
    """Makes connections that stay open until the scene ends. OSError if one of them cannot be made."""
    socks = []
    try:
        for _ in range(count):
            with entered(ns):
                socks.append(sock := socket.socket())
            sock.settimeout(5)
            sock.connect((address, port))
        return keep(socks, ns=ns)
    finally:
        for sock in socks:
            sock.close()


def keep(socks: Sequence[socket.socket], *, ns: str | None) -> Child[None]:
    """Keeps sockets open until the scene ends, also when the caller has closed them."""
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    child: Child[None] = Child(ns, _wait, comm="scene-held", log=STATE_DIR / "held.log", keep=[s.fileno() for s in socks])
    (STATE_DIR / f"{child.pid}-held.pid").touch()
    return child


def _wait() -> None:
    while True:
        signal.pause()
