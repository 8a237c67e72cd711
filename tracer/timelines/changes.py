"""What was replaced while connections were open: tables of rules, Kubernetes' objects. Each becomes a step between packets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tracer.timelines.model import Step

KEPT = 1000


class Changes:
    """Takes changes from any thread; hands them out to the run. now: ns, CLOCK_MONOTONIC."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._steps: deque[Step] = deque(maxlen=KEPT)
        self._now = now

    def rules(self, at: int, what: str, thread: int = 0) -> None:
        """Rules were replaced. at: ns, CLOCK_MONOTONIC. what: "nat". thread: of who did it, 0 = not known."""
        self._steps.append(Step(at, "change", f"{program(thread)} replaced {what}"))

    def objects(self) -> None:
        """An object of the API, an endpoint for one, is there, has changed, or is gone."""
        self._steps.append(Step(self._now(), "change", "Kubernetes' objects changed"))

    def take(self) -> list[Step]:
        """What has come since the last call, oldest first."""
        return [self._steps.popleft() for _ in range(len(self._steps))]


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
