# SPDX-License-Identifier: Apache-2.0
"""A run done again from a capture: the parts of it that asked the machine, made to answer from the turns that were recorded.

No root is needed, and no kernel or cluster is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer.capture.format.codec import MalformedRecord, rich
from tracer.capture.journal import (
    JournaledHostReader,
    JournaledNamespaceInspector,
    JournaledNamespaces,
    JournaledProcesses,
    asked_function,
)
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.source import ReplaySource
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.catalog import ClusterView
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.table_reader import TableRequest
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.rule_resolver import RuleResolver


class ReplayEnvironment:
    """What tracer/pipeline/environment.py makes of a machine, of a capture. turns: the source."""

    def __init__(self, capture: CaptureReader, progress: Callable[[int], None] = lambda events: None) -> None:
        self.meta = capture.meta
        self.turns = ReplaySource(capture, progress)

    def cluster_view(self) -> ClusterView:
        local, ipvs = (frozenset(self._told(name, [], list)) for name in ("addresses", "ipvs_addresses"))
        return ClusterView(self.turns.store, self.turns.sandboxes, local, ipvs)

    def node(self) -> JournaledHostReader:
        return JournaledHostReader(self.turns.asking)

    def syns(self, partial: bool = False) -> HandshakeAnalyzer:
        """What gives each SYN its verdict. partial: the recorded run had only what --drops-only asks for."""
        spaces = JournaledNamespaceInspector(self.turns.asking, self.namespaces(), JournaledProcesses(self.turns.asking))
        return HandshakeAnalyzer(spaces, self.offset, partial)

    @property
    def offset(self) -> int:
        """What to add to CLOCK_MONOTONIC to get ns since the epoch."""
        clock = self.meta.get("clock")
        return _int(clock.get("offset")) if isinstance(clock, dict) else 0

    def _told(self, name: str, default: Any, kind: type) -> Any:
        """A piece of `meta` of that type; damage must not become an error elsewhere."""
        try:
            found = rich(self.meta.get(name, default)) if kind is dict else self.meta.get(name, default)
        except MalformedRecord:
            return default
        return found if isinstance(found, kind) else default

    def namespaces(self) -> JournaledNamespaces:
        told = self.meta.get("namespaces")
        told = told if isinstance(told, dict) else {}
        try:
            names = {int(k): str(v) for k, v in rich(told.get("names", {"dict": []})).items()}
        except (MalformedRecord, ValueError, TypeError, AttributeError):
            names = {}
        return JournaledNamespaces(self.turns.asking, None, _int(told.get("node")), _int(told.get("own")), names)

    def assembler(self, no_rules: bool) -> PacketAssembler:
        """What makes packets of the turns' batches."""
        spaces = self.namespaces()
        function = asked_function(self.turns.asking, lambda address: "")
        hops = HopBuilder(spaces, JournaledProcesses(self.turns.asking), self._told("drop_reasons", {}, dict), function)
        tracking = [i for i in self._told("tracking", [], list) if isinstance(i, int)]
        return PacketAssembler(hops, self.offset, tracking, rules=RuleResolver() if no_rules else self._hits())

    def _hits(self) -> RuleResolver:
        try:
            acts = rich(self.meta.get("acts", {"set": []}))
        except MalformedRecord:
            acts = frozenset()
        legacy = TableGenerations(self.turns.reader, lambda act: act in acts)
        told = self.meta.get("namespaces")
        named = told.get("named") if isinstance(told, dict) else []
        for netns in named if isinstance(named, list) else []:
            for family in ("ip", "ip6"):
                legacy.request(TableRequest(netns, family, ""))
        self.turns.expect(legacy)
        watched = any(isinstance(p, list) and p[:1] == ["nft_rule"] for p in self._told("probes", [], list))
        return RuleResolver(legacy, SnapshotCache(self.turns.watch) if watched else None)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
