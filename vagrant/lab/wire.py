# SPDX-License-Identifier: Apache-2.0
"""The wire between the machines of a cluster: a switch on the host that can lose, double and reorder frames, and counts them.

The machines see only its effect. Its log is the independent count of what the wire really did.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from .wire_key import WireKey, key_of

BROADCAST = 0x01
"""Bit of the first byte of an Ethernet address: more than one machine gets the frame."""
HELD_SECONDS = 0.03
"""Longest time that a frame is held to be overtaken, s."""
LARGEST_FRAME = 1 << 16
MOST_LOGGED = 1 << 20
"""Largest number of frames in the log."""


class Fate(StrEnum):
    """What the wire does to a frame."""

    CARRIED = "carried"
    DROPPED = "dropped"
    DOUBLED = "doubled"
    HELD = "held"
    """Sent after the next frame in its direction, or after HELD_SECONDS."""


@dataclass(frozen=True)
class Faults:
    """Shares of the frames, 0 to 1; each frame has one fate.

    Attributes:
        seed: Of the random numbers.
        longest: Longer frames are dropped, bytes; 0 = none.
    """

    dropped: float = 0.0
    doubled: float = 0.0
    held: float = 0.0
    seed: int = 1
    longest: int = 0


@dataclass(frozen=True)
class WireFrame:
    """One frame that the wire took. time: ns since the epoch of the host's clock."""

    time: int
    source: str
    target: str
    key: WireKey
    fate: Fate


@dataclass
class _Port:
    name: str
    end: socket.socket
    waiting: deque[bytes] = field(default_factory=deque)


class Wire:
    """A switch with a port for each machine. wants: whether a packet is logged and may meet a fault; others are carried."""

    def __init__(self, wants: Callable[[WireKey], bool] = lambda key: True) -> None:
        self._wants = wants
        self._ports: dict[str, _Port] = {}
        self._macs: dict[bytes, _Port] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._held: dict[str, tuple[float, _Port, bytes]] = {}
        self._faults, self._random = Faults(), random.Random(1)
        self._log: list[WireFrame] = []
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._is_over = False
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)
        self._thread.start()

    def plug(self, name: str, mac: str) -> int:
        """Adds a machine, or replaces it. Returns the descriptor for its interface."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with self._lock:
            self.unplug(name)
            port = self._ports[name] = _Port(name, ours)
            self._macs[bytes.fromhex(mac.replace(":", ""))] = port
            self._selector.register(ours, selectors.EVENT_READ, port)
        self._wake.send(b".")
        descriptor = os.dup(theirs.fileno())
        theirs.close()
        return descriptor

    def unplug(self, name: str) -> None:
        """Removes a machine."""
        with self._lock:
            port = self._ports.pop(name, None)
            if port:
                self._macs = {mac: each for mac, each in self._macs.items() if each is not port}
                self._held = {source: held for source, held in self._held.items() if held[1] is not port}
                self._selector.unregister(port.end)
                port.end.close()

    def set_faults(self, faults: Faults) -> None:
        """What happens to frames from now on."""
        with self._lock:
            self._faults, self._random = faults, random.Random(faults.seed)

    def log(self) -> list[WireFrame]:
        """The logged frames so far."""
        with self._lock:
            return list(self._log)

    def clear(self) -> None:
        """Empties the log."""
        with self._lock:
            self._log.clear()

    def close(self) -> None:
        """Ends the wire."""
        self._is_over = True
        self._wake.send(b".")
        self._thread.join()
        with self._lock:
            for name in list(self._ports):
                self.unplug(name)
        self._selector.close()
        self._wake.close()
        self._woken.close()

    # ---- in the wire's own thread ----

    def _carry(self) -> None:
        while not self._is_over:
            ready = self._selector.select(HELD_SECONDS if self._held else 1.0)
            with self._lock:
                for key, events in ready:
                    if key.data is None:
                        self._woken.recv(64)
                    elif key.data.name in self._ports and self._ports[key.data.name] is key.data:
                        if events & selectors.EVENT_WRITE:
                            self._send_waiting(key.data)
                        if events & selectors.EVENT_READ:
                            self._receive(key.data)
                self._release(time.monotonic())

    def _receive(self, port: _Port) -> None:
        for _ in range(64):  # then the other ports have their turn
            try:
                frame = port.end.recv(LARGEST_FRAME)
            except OSError:
                return
            if not frame:
                return
            self._switch(port, frame)

    def _switch(self, source: _Port, frame: bytes) -> None:
        target = self._macs.get(frame[:6])
        if target is None:
            if frame[0] & BROADCAST:
                for port in self._ports.values():
                    if port is not source:
                        self._send(port, frame)
            return
        if target is source:
            return
        key = key_of(frame)
        if key is None or not self._wants(key):
            self._send(target, frame)
            return
        fate = Fate.DROPPED if 0 < self._faults.longest < len(frame) else self._draw()
        if len(self._log) < MOST_LOGGED:
            self._log.append(WireFrame(time.time_ns(), source.name, target.name, key, fate))
        held = self._held.pop(source.name, None)
        if fate is Fate.HELD:
            self._held[source.name] = (time.monotonic() + HELD_SECONDS, target, frame)
        elif fate is not Fate.DROPPED:
            self._send(target, frame)
            if fate is Fate.DOUBLED:
                self._send(target, frame)
        if held:
            self._send(*held[1:])

    def _draw(self) -> Fate:
        value = self._random.random()
        for share, fate in (
            (self._faults.dropped, Fate.DROPPED),
            (self._faults.doubled, Fate.DOUBLED),
            (self._faults.held, Fate.HELD),
        ):
            if value < share:
                return fate
            value -= share
        return Fate.CARRIED

    def _release(self, now: float) -> None:
        for source, (until, port, frame) in list(self._held.items()):
            if now >= until:
                del self._held[source]
                self._send(port, frame)

    def _send(self, port: _Port, frame: bytes) -> None:
        port.waiting.append(frame)
        if len(port.waiting) == 1:
            self._send_waiting(port)

    def _send_waiting(self, port: _Port) -> None:
        try:
            while port.waiting:
                port.end.send(port.waiting[0])
                port.waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the machine has ended
            port.waiting.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if port.waiting else 0)
        self._selector.modify(port.end, events, port)
