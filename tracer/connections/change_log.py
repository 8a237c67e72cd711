# SPDX-License-Identifier: Apache-2.0
"""What was replaced while connections were open: tables of rules, Kubernetes' objects. Each becomes a step between packets."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tracer.kube import objects
from tracer.kube.store import Change
from tracer.model.timeline import TimelineEntry

KEPT = 1000
MOST = 6
"""Addresses of endpoints that are named."""
ENDS = {"apply": "changed", "delete": "is gone"}
ENDPOINTS = {"EndpointSlice": objects.slice_endpoints, "Endpoints": objects.endpoints_endpoints}


class ChangeLog:
    """Takes changes from any thread; hands them out to the run. now: ns, CLOCK_MONOTONIC."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._steps: deque[TimelineEntry] = deque(maxlen=KEPT)
        self._now = now
        self._applied = threading.local()

    def rules(self, at: int, what: str, thread: int = 0) -> None:
        """Rules were replaced. at: ns, CLOCK_MONOTONIC. what: "nat". thread: of who did it, 0 = not known."""
        self._steps.append(TimelineEntry(at, "change", f"{program(thread)} replaced {what}"))

    def applied(self, change: Change) -> None:
        """What is being done to the objects of the API, in this thread."""
        self._applied.words = format_change(change)

    def objects(self) -> None:
        """What has just been applied, an endpoint for one, differs from what was known."""
        self._steps.append(TimelineEntry(self._now(), "change", getattr(self._applied, "words", "Kubernetes' objects changed")))

    def read(self) -> list[TimelineEntry]:
        """What has come since the last call, oldest first."""
        return [self._steps.popleft() for _ in range(len(self._steps))]


def format_change(change: Change) -> str:
    """One phrase for a change of objects: "EndpointSlice shop/cart-x changed, ready: 10.244.0.11, 10.244.0.12"."""
    what, kind, bodies = change
    if what not in ENDS or len(bodies) != 1:
        return f"all {kind}s were listed anew" if what == "replace" else "Kubernetes' objects changed"
    name = "/".join(part for part in objects.key(bodies[0]) if part)
    told = f"{kind} {name} {ENDS[what]}"
    if kind not in ENDPOINTS or what == "delete":
        return told
    ready = sorted({end.address for _, end in ENDPOINTS[kind](bodies[0])[1] if end.ready})
    return f"{told}, ready: {', '.join(ready[:MOST]) or 'none'}{', ...' * (len(ready) > MOST)}"


def program(thread: int, proc: Path = Path("/proc")) -> str:
    """Who runs a thread, by the name of the program that started it where that is one of iptables': "kube-proxy"."""
    name, parent = _status(proc / str(thread))
    if name.startswith(("iptables", "ip6tables", "xtables", "ipset")) and parent > 1:
        name = _status(proc / str(parent))[0] or name
    return name or "somebody"


def _status(directory: Path) -> tuple[str, int]:
    """(name, parent's pid); ("", 0) when it is gone."""
    try:
        lines = (directory / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", 0
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return found.get("Name", ""), int(found.get("PPid", "0"))
