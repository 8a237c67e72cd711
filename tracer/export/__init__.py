# SPDX-License-Identifier: Apache-2.0
"""A capture in other programs' formats. A format is one file of this package, found by its name; its class is EXPORT there.

    EXPORT(target, about)   begins to write; target: a Path that does not exist yet; about: what the capture says of its run
    packet(packet)          a packet, in the order they ended
    finding(finding)        as it stood at the end
    close(totals)           nothing more comes

TELLS says in some words what it makes, for --help and docs/capture.md.

Must not know: the format of a capture file, other formats.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

from tracer.errors import BadOption
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary


@dataclass(frozen=True)
class CaptureInfo:
    """What a capture says of its run. drops: lost events by (probe, why), filled while it is read."""

    path: str
    host: str
    kernel: str
    options: str
    began: int
    results: tuple[CheckResult, ...] = ()
    lost: dict[tuple[str, str], int] = field(default_factory=dict)


class Export(Protocol):
    """What a file of this package has."""

    def __init__(self, target: Path, about: CaptureInfo) -> None: ...
    def packet(self, packet: Packet) -> None: ...
    def finding(self, finding: Finding) -> None: ...
    def close(self, summary: RunSummary) -> None: ...


@cache
def names() -> tuple[str, ...]:
    """Of every format there is."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def find(name: str) -> type[Export]:
    """The class of a format. Raises BadOption when there is none of that name."""
    if name not in names():
        raise BadOption(f"There is no export {name!r}: choose one of {', '.join(names())}.")
    found: type[Export] = import_module(f"{__name__}.{name}").EXPORT
    return found
