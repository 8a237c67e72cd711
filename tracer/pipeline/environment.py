# SPDX-License-Identifier: Apache-2.0
"""The parts of a run that ask the live machine, made here and nowhere else.

`Parts` makes the live ones. A recording makes the same with a tape behind them (tracer/capture/record/environment.py), a replay
makes those that answer from the tape (tracer/capture/replay/environment.py).
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.connections.change_log import Changes
from tracer.connections.conntrack_events import EntryEvents, Heard
from tracer.kernel.session import Session
from tracer.kube.catalog import Known
from tracer.kube.cni_cache import Cache
from tracer.kube.resolver import Kube
from tracer.kube.store import Store
from tracer.node import addresses
from tracer.node.namespace_view import Spaces
from tracer.node.namespaces import Namespaces
from tracer.node.node import Node
from tracer.node.processes import Processes
from tracer.pipeline.live_source import Live
from tracer.rules.iptables.reader import Reader
from tracer.rules.nftables.snapshot_cache import Watching


class Parts:
    """Those of a run that nobody records."""

    def known(self) -> Known:
        """What names of Kubernetes are found with."""
        return Known(Store(), Cache(), addresses.local_addresses(), addresses.ipvs_addresses())

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
