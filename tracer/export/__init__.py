# SPDX-License-Identifier: Apache-2.0
"""Exports a capture to formats of other programs. Each format is one file of this package, found by its file name.

Its `EXPORT` is a class derived from `Export`:

    EXPORT(target, about, options)
                            starts to write; target: a Path that does not exist yet; about: information about the run
    packet(packet)          writes a packet, in the order in which packets were closed
    finding(finding)        writes a finding in its final state
    close(summary)          ends the file

A format that writes SYN verdicts, connections and losses, too, has the methods `syn`, `connection` and `loss`.

DESCRIPTION is a short description of the format, for docs/capture.md. OPTIONS are the names of the ExportOptions that it has.

Must not know: the format of a capture file, other formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.errors import BadOption
from tracer.util.registry import Registry

if TYPE_CHECKING:  # the command line imports this package for the names of the formats
    from tracer.model.check import CheckResult
    from tracer.model.finding import Finding
    from tracer.model.handshake import HandshakeVerdict
    from tracer.model.loss import Loss
    from tracer.model.packet import Packet
    from tracer.model.summary import RunSummary
    from tracer.model.timeline import Timeline


@dataclass(frozen=True)
class CaptureInfo:
    """The capture's information about its run.

    Attributes:
        path: The name of the capture file.
        began: Start of the run, ns since the epoch; 0 = not known.
        clock_offset: ns to add to CLOCK_MONOTONIC to get ns since the epoch; 0 = not known.
        lost: Number of lost events by (probe, reason), filled while the capture is read.
    """

    path: str
    host: str
    kernel: str
    options: str
    began: int
    results: tuple[CheckResult, ...] = ()
    clock_offset: int = 0
    lost: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportOptions:
    """What was asked of a format.

    Attributes:
        as_it_came: One copy of each packet, as it came, without the later rewritten ones.
    """

    as_it_came: bool = False


class Export(ABC):
    """The interface of an export format."""

    @abstractmethod
    def __init__(self, target: Path, about: CaptureInfo, options: ExportOptions = ...) -> None: ...
    @abstractmethod
    def packet(self, packet: Packet) -> None: ...
    @abstractmethod
    def finding(self, finding: Finding) -> None: ...
    @abstractmethod
    def close(self, summary: RunSummary) -> None: ...

    def syn(self, verdict: HandshakeVerdict) -> None:
        """Writes the verdict of a SYN, after its packet. Optional for a format."""
        return

    def connection(self, timeline: Timeline) -> None:
        """Writes a connection that is over; its packets came before. Optional for a format."""
        return

    def loss(self, loss: Loss) -> None:
        """Writes a loss. Optional for a format."""
        return


_EXPORTS: Registry[type[Export]] = Registry(__name__, "EXPORT", kind="export format")


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all formats."""
    return _EXPORTS.names()


def find(name: str) -> type[Export]:
    """Returns the class of a format. Raises BadOption for an unknown name."""
    return _EXPORTS.find(name)


def check_options(name: str, options: ExportOptions) -> None:
    """Raises BadOption for an option that the format does not have, and for an unknown format."""
    _EXPORTS.require(name)
    for given in (each.name for each in fields(options) if getattr(options, each.name)):
        having = [each for each, names in _EXPORTS.values("OPTIONS", frozenset[str]()).items() if given in names]
        if name not in having:
            raise BadOption(f"--{given.replace('_', '-')} is an option of {', '.join(having)}, not of {name}.")
