# SPDX-License-Identifier: Apache-2.0
"""The parts of a run that ask the live machine, made here and nowhere else.

`Parts` makes the live ones. A recording makes the same with a tape behind them (tracer/capture/recording.py), a replay makes
those that answer from the tape (tracer/capture/replay.py).
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.findings.node import Node
from tracer.kernel.session import Session
from tracer.kube import node
from tracer.kube.cni import Cache
from tracer.kube.known import Known
from tracer.kube.live import Kube
from tracer.kube.store import Store
from tracer.names import Namespaces, Processes
from tracer.rules.nft_view import Watching
from tracer.rules.reader import Reader
from tracer.source import Live
from tracer.syns.spaces import Spaces
from tracer.timelines.changes import Changes
from tracer.timelines.conntrack import EntryEvents, Heard


class Parts:
    """Those of a run that nobody records."""

    def known(self) -> Known:
        """What names of Kubernetes are found with."""
        return Known(Store(), Cache(), node.local_addresses(), node.ipvs_addresses())

    def namespaces(self) -> Namespaces:
        return Namespaces()

    def processes(self) -> Processes:
        return Processes()

    def spaces(self, namespaces: Namespaces, processes: Processes) -> Spaces:
        """What verdicts on SYNs ask of namespaces."""
        return Spaces(namespaces, processes)

    def function(self, symbols: Callable[[int], str]) -> Callable[[int], str]:
        """The kernel function that an address lies in."""
        return symbols

    def node(self) -> Node:
        """What findings ask of the node."""
        return Node()

    def reader(self) -> Reader:
        """Reads legacy tables."""
        return Reader()

    def watch(self, watch: Watching) -> Watching:
        """Reads nftables' rules."""
        return watch

    def changes(self) -> Changes:
        """Takes what is replaced meanwhile: tables of rules, objects."""
        return Changes()

    def entries(self) -> Heard:
        """What is heard of conntrack's entries."""
        return EntryEvents()

    def source(self, session: Session, kube: Kube) -> Live:
        """Gives the turns."""
        return Live(session, kube)

    def close(self, seconds: float | None = None) -> list[str]:
        """The run is over. seconds: how long it took, None when it was cut short. Returns what the user should be told."""
        return []
