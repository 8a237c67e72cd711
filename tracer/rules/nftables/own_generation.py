# SPDX-License-Identifier: Apache-2.0
"""The generation of the nftables rules in this process's own network namespace, asked over one socket that stays open.

A thread that enters a namespace for one message takes a hundred times as long as the message, ten times a second. The socket
keeps no namespace alive that this process does not keep alive itself.
"""

from __future__ import annotations

from pathlib import Path

from tracer.node import netns
from tracer.node.nfnetlink import Nfnetlink
from tracer.rules.nftables import netlink_dump


class OwnGeneration:
    """Asks for it. Must be used by one thread, in the namespace of the process."""

    def __init__(self) -> None:
        self._inode = Path("/proc/self/ns/net").stat().st_ino
        self._socket: Nfnetlink | None = None

    def of(self, space: int) -> int:
        """The generation in force in a namespace (netns.identity); 0 = another namespace, or no answer of the kernel."""
        if netns.inode_of(space) != self._inode:
            return 0
        try:
            self._socket = self._socket or Nfnetlink()
            return netlink_dump.generation(self._socket)
        except OSError:
            self.close()
            return 0

    def close(self) -> None:
        """Closes the socket."""
        if self._socket:
            self._socket.close()
            self._socket = None
