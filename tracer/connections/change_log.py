# SPDX-License-Identifier: Apache-2.0
"""Rule tables and Kubernetes objects that were replaced during the run. Each change becomes an entry between packets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tracer.kube import objects
from tracer.kube.store import Change, ObjectStore
from tracer.model.timeline import TimelineEntry
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.bounded_queue import BoundedQueue

MAX_ENTRIES = 1000
"""Changes that are kept until they are read; the oldest are dropped."""
MAX_ENDPOINTS = 6
"""Endpoint addresses that one change names."""
ACTIONS = {"apply": "changed", "delete": "is gone"}
ENDPOINTS = {"EndpointSlice": objects.slice_endpoints, "Endpoints": objects.endpoints_endpoints}


class ChangeSource(Protocol):
    """Gives the changes of a run: those of this machine, or recorded ones."""

    def connect(self, rules: RuleResolver, store: ObjectStore) -> None:
        """Takes the replacements of these rules and objects, if they are this machine's."""

    def read(self) -> list[TimelineEntry]:
        """The changes since the previous call, oldest first."""

    @property
    def lost(self) -> int:
        """Changes that were not kept until they were read."""


class ChangeLog:
    """Takes changes from any thread and gives them to the run. now: gives ns, CLOCK_MONOTONIC."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._entries: BoundedQueue[TimelineEntry] = BoundedQueue(MAX_ENTRIES, "changes of rules and objects")
        self._now = now
        self._applied = threading.local()

    def connect(self, rules: RuleResolver, store: ObjectStore) -> None:
        """Takes the replacements of these rules and objects."""
        rules.replaced = self.add_rule_change
        store.on_apply(self.begin_object_change)
        store.on_change(self.add_object_change)

    def add_rule_change(self, time_ns: int, table: str, thread: int = 0) -> None:
        """Adds a replacement of rules.

        Args:
            time_ns: ns, CLOCK_MONOTONIC.
            table: the replaced table: "nat".
            thread: thread that replaced it; 0 = unknown.
        """
        self._entries.append(TimelineEntry(time_ns, "change", f"{program_name(thread)} replaced {table}"))

    def begin_object_change(self, change: Change) -> None:
        """Notes the change of API objects that this thread is applying."""
        self._applied.text = format_change(change)

    def add_object_change(self) -> None:
        """Adds the change that this thread has just applied: it changed an owner or an endpoint."""
        text = getattr(self._applied, "text", "Kubernetes' objects changed")
        self._entries.append(TimelineEntry(self._now(), "change", text))

    def read(self) -> list[TimelineEntry]:
        """The changes since the previous call, oldest first."""
        return self._entries.read()

    @property
    def lost(self) -> int:
        """Number of changes that were dropped before they were read."""
        return self._entries.evicted


def format_change(change: Change) -> str:
    """One phrase for a change of objects: "EndpointSlice shop/cart-x changed, ready: 10.244.0.11, 10.244.0.12"."""
    what, kind, bodies = change
    if what not in ACTIONS or len(bodies) != 1:
        return f"all {kind}s were listed anew" if what == "replace" else "Kubernetes' objects changed"
    name = "/".join(part for part in objects.key(bodies[0]) if part)
    text = f"{kind} {name} {ACTIONS[what]}"
    if kind not in ENDPOINTS or what == "delete":
        return text
    ready = sorted({end.address for _, end in ENDPOINTS[kind](bodies[0])[1] if end.ready})
    return f"{text}, ready: {', '.join(ready[:MAX_ENDPOINTS]) or 'none'}{', ...' * (len(ready) > MAX_ENDPOINTS)}"


def program_name(thread: int, proc: Path = Path("/proc")) -> str:
    """Name of the program of a thread: "kube-proxy". For a tool of iptables: the name of the program that started it."""
    name, parent = _status(proc / str(thread))
    if name.startswith(("iptables", "ip6tables", "xtables", "ipset")) and parent > 1:
        name = _status(proc / str(parent))[0] or name
    return name or "an unknown program"


def _status(directory: Path) -> tuple[str, int]:
    """(name, parent's pid); ("", 0) when the process has ended."""
    try:
        lines = (directory / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", 0
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return found.get("Name", ""), int(found.get("PPid", "0"))
