# SPDX-License-Identifier: Apache-2.0
"""Whether the filter of a run selects a packet for certain when it comes to a node with known addresses, and nothing else is
known of it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracer.kube import selectors
from tracer.kube.catalog import ClusterView
from tracer.kube.selected_ends import LOCAL, End
from tracer.kube.selectors import Selectors
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.selection.display_filter import DisplayFilter
from tracer.selection.filter_options import FilterOptions

UNKNOWABLE = (
    "iface", "netns", "pids", "commands", "expression", "drops_only", "quiet", "follow", "excluded_ports", "excluded_hosts",
)  # fmt: skip
"""Options by which a node leaves out packets for what only it knows, or shows others than single packets."""


class FilterCoverage:
    """The filter of a run, as each node has it.

    Args:
        found: Its conditions on a header; None = it depends on what only the node knows.
        words: Its conditions by objects of Kubernetes.
        view: The objects of Kubernetes when the run began.

    Attributes:
        is_by_name: It follows objects of Kubernetes, so what it selects can change.
    """

    @classmethod
    def of(cls, options: Mapping[str, Any], view: ClusterView) -> FilterCoverage:
        """The filter of these options of the command line."""
        is_known = not any(options.get(name) for name in UNKNOWABLE)
        # An expression would need libpcap here, too.
        known = {name: value for name, value in options.items() if name not in UNKNOWABLE}
        found = FilterOptions.of(known).capture_filter()
        return cls(found if is_known else None, Selectors.of(options), view)

    def __init__(self, found: DisplayFilter | None, words: Selectors, view: ClusterView) -> None:
        self._filter = found
        self.is_by_name = bool(words)
        directed = selectors.directed_ends(words, view)
        self._sources, self._destinations = directed.sources, directed.destinations
        self._either = selectors.ends(words, view) if words.has_either_end else None
        self._addresses = {node.name: frozenset(node.addresses) for node in view.store.nodes.values()}

    def __call__(self, node: str, packet: Packet, ends: Endpoints) -> bool:
        """Whether a packet is selected on a node for certain. ends: the addresses with which it comes there."""
        if self._filter is None or not self._filter(replace(packet, endpoints=ends, flow=None, hops=())):
            return False
        source, destination = (ends.src, ends.sport), (ends.dst, ends.dport)
        return (
            self._has(self._either, node, packet, source, destination)
            and self._has(self._sources, node, packet, source)
            and self._has(self._destinations, node, packet, destination)
        )

    def _has(self, wanted: frozenset[End] | None, node: str, packet: Packet, *found: tuple[str, int]) -> bool:
        """Whether one of these addresses and ports is wanted; None = any."""
        if wanted is None:
            return True
        protocol, own = packet.protocol.lower(), self._addresses.get(node, frozenset())
        return any(
            (place, number, kind) in wanted
            for address, port in found
            for place in ((address, LOCAL) if address in own else (address,))
            for number in (port, 0)
            for kind in (protocol, "")
            if place or number
        )
