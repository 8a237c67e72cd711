# SPDX-License-Identifier: Apache-2.0
"""The stages of a run: steps that closed packets pass one after the other, in the order of `build` in builder.py.

A stage is one file. It does what it needs at each point of the run and leaves the other methods as they are here.
"""

from __future__ import annotations

from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.shared_packet import AnyPacket, SharedPacket
from tracer.render.base import Output


class Stage:
    """One step. Each method does nothing here."""

    def begin(self, output: Output) -> None:
        """The probes are attached; called once, before the first batch."""

    def begin_batch(self) -> None:
        """A batch was read; its packets follow."""

    def feed(self, packet: Packet, output: Output) -> Packet | None:
        """Takes a closed packet.

        Returns:
            The packet for the next stage; None = the packet is not selected, and no later stage gets it.
        """
        return packet

    def repeat(self, packet: SharedPacket, output: Output) -> AnyPacket | None:
        """Takes a closed packet that repeats the path of an earlier one.

        A stage that needs only its path and its values leaves it as it is; the effect is that of `feed`. Here it is made whole.

        Returns:
            As `feed`.
        """
        return self.feed(packet.packet(), output)

    def feed_unexplained(self, packet: Packet, output: Output) -> Packet | None:
        """Takes a packet that the recorded run had not explained; it is printed, but proves nothing. Returns as `feed`."""
        return packet

    def add_loss(self, now: int, is_unexplained: bool = False) -> None:
        """Packets were lost up to `now` (ns, CLOCK_MONOTONIC); is_unexplained: they were seen, but not explained."""

    def end_batch(self, now: int, output: Output) -> None:
        """All packets up to `now` have passed, ns, CLOCK_MONOTONIC: the time of the batch, or less while rules are read."""

    def flush(self, summary: RunSummary, output: Output) -> None:
        """The run ends: writes what is left, and fills in the summary."""

    def close(self) -> None:
        """Releases what the stage holds. Called once, also after an error."""
