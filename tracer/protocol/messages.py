# SPDX-License-Identifier: Apache-2.0
"""The bodies of frames that are no objects of the model, and the kinds of frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tracer.model.check import CheckResult
from tracer.protocol.limits import VERSION


class FrameKind(IntEnum):
    """The kinds of frames, by their numbers on the wire. A number is never used for something else."""

    HELLO = 1
    BEGIN = 2
    TEMPLATE = 3
    PACKET = 4
    FINDING = 5
    VERDICT = 6
    TIMELINE = 7
    CONNECTION = 8
    LOSS = 9
    SHED = 10
    NOTE = 11
    PONG = 12
    ALIVE = 13
    BATCH = 14
    CLOCK = 15
    SUMMARY = 16
    END = 17
    CAPTURE = 18
    CLIENT_HELLO = 64
    CREDIT = 65
    PING = 66
    CLIENT_ALIVE = 67
    STOP = 68


NEEDS_CREDIT = frozenset({
    FrameKind.TEMPLATE, FrameKind.PACKET, FrameKind.FINDING, FrameKind.VERDICT, FrameKind.TIMELINE, FrameKind.CONNECTION,
    FrameKind.LOSS, FrameKind.NOTE, FrameKind.BATCH, FrameKind.CAPTURE,
})  # fmt: skip
"""The frames that an agent sends only on credit: one each."""


@dataclass(frozen=True)
class Hello:
    """The first frame of an agent.

    Attributes:
        protocol: Version of the protocol.
        program: Version of the program.
        node: Name of the node in Kubernetes, or the host's name.
        kernel: Release of the running kernel.
        boot: Boot id of the kernel; "" = not known.
        monotonic: CLOCK_MONOTONIC when this was written, ns.
        wall: Time since the epoch when this was written, ns.
        is_replay: Packets come from a capture, so their times are not those of this machine's clock.
    """

    protocol: int = VERSION
    program: str = ""
    node: str = ""
    kernel: str = ""
    boot: str = ""
    monotonic: int = 0
    wall: int = 0
    is_replay: bool = False


@dataclass(frozen=True)
class Begin:
    """The probes are on.

    Attributes:
        results: What this run cannot show, or all results of `doctor`.
        options: The options of the run.
        release: Release of the traced kernel.
    """

    results: tuple[CheckResult, ...] = ()
    options: str = ""
    release: str = ""


@dataclass(frozen=True)
class Shed:
    """Frames that were not sent because the client did not take them in time.

    Attributes:
        frames: Number of frames by kind: "packet", "finding" ...
        since: Time of the first of them, ns, CLOCK_MONOTONIC.
        until: Time of the last of them, ns, CLOCK_MONOTONIC.
    """

    frames: Mapping[str, int] = field(default_factory=dict)
    since: int = 0
    until: int = 0


@dataclass(frozen=True)
class Note:
    """One line for the user."""

    text: str = ""


@dataclass(frozen=True)
class Ping:
    """A clock question. number: counts from 1."""

    number: int = 0


@dataclass(frozen=True)
class Pong:
    """The answer to a ping.

    Attributes:
        number: That of the ping.
        received: CLOCK_MONOTONIC when the ping was read, ns.
        sent: CLOCK_MONOTONIC when this was written, ns.
    """

    number: int = 0
    received: int = 0
    sent: int = 0


@dataclass(frozen=True)
class PacketClock:
    """The clock of packets. offset: ns to add to CLOCK_MONOTONIC to get the times of packets."""

    offset: int = 0


@dataclass(frozen=True)
class BatchEnd:
    """All results of a batch were sent. now: time up to which all packets were sent, ns, CLOCK_MONOTONIC."""

    now: int = 0


@dataclass(frozen=True)
class End:
    """The last frame of an agent: its exit status."""

    status: int = 0


@dataclass(frozen=True)
class ClientHello:
    """The first frame of a client: its versions of protocol and program."""

    protocol: int = VERSION
    program: str = ""


@dataclass(frozen=True)
class Credit:
    """The agent may send this many more frames."""

    frames: int = 0
