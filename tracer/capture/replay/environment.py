# SPDX-License-Identifier: Apache-2.0
"""The objects of a replay: they answer from a capture instead of the machine.

A replay needs no root rights, and queries no kernel and no cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer.capture.format.codec import MalformedRecord, from_json
from tracer.capture.journal import (
    JournaledNamespaces,
    JournaledProcesses,
    journaled_function,
)
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.source import ReplaySource
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.catalog import ClusterView
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.table_reader import TableRequest
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.rule_resolver import RuleResolver


class ReplayEnvironment:
    """Creates from a capture the objects that tracer/pipeline/environment.py creates for a machine.

    Attributes:
        meta: values that do not change in a run.
        source: the recorded batches.
    """

    def __init__(self, capture: CaptureReader, progress: Callable[[int], None] = lambda events: None) -> None:
        self.meta = capture.meta
        self.source = ReplaySource(capture, progress)

    def cluster_view(self) -> ClusterView:
        local, ipvs = (frozenset(self._meta_value(name, [], list)) for name in ("addresses", "ipvs_addresses"))
        return ClusterView(self.source.store, self.source.sandboxes, local, ipvs)

    def handshakes(self, partial: bool = False) -> HandshakeAnalyzer:
        """Gives each SYN its verdict. partial: the recorded run had --drops-only."""
        reader = NamespaceReader(self.namespaces(), JournaledProcesses(self.source.journal))
        inspector = NamespaceInspector(reader, self.source.journal)
        return HandshakeAnalyzer(inspector, self.offset, partial)

    @property
    def offset(self) -> int:
        """ns to add to CLOCK_MONOTONIC to get ns since the epoch."""
        clock = self.meta.get("clock")
        return _int(clock.get("offset")) if isinstance(clock, dict) else 0

    def _meta_value(self, name: str, default: Any, kind: type) -> Any:
        """A value of `meta`; `default` where it has another type, so that damage does not cause an error elsewhere."""
        try:
            found = from_json(self.meta.get(name, default)) if kind is dict else self.meta.get(name, default)
        except MalformedRecord:
            return default
        return found if isinstance(found, kind) else default

    def namespaces(self) -> JournaledNamespaces:
        stored = self.meta.get("namespaces")
        stored = stored if isinstance(stored, dict) else {}
        try:
            names = {int(k): str(v) for k, v in from_json(stored.get("names", {"dict": []})).items()}
        except (MalformedRecord, ValueError, TypeError, AttributeError):
            names = {}
        return JournaledNamespaces(self.source.journal, None, _int(stored.get("node")), _int(stored.get("own")), names)

    def assembler(self, no_rules: bool) -> PacketAssembler:
        """Assembles packets from the batches."""
        namespaces = self.namespaces()
        function = journaled_function(self.source.journal, lambda address: "")
        processes, reasons = JournaledProcesses(self.source.journal), self._meta_value("drop_reasons", {}, dict)
        hops = HopBuilder(namespaces, processes, reasons, function)
        tracking = [i for i in self._meta_value("tracking", [], list) if isinstance(i, int)]
        return PacketAssembler(hops, self.offset, tracking, rules=RuleResolver() if no_rules else self._rules())

    def _rules(self) -> RuleResolver:
        try:
            acts = from_json(self.meta.get("acts", {"set": []}))
        except MalformedRecord:
            acts = frozenset()
        legacy = TableGenerations(self.source.reader, lambda act: act in acts)
        stored = self.meta.get("namespaces")
        named = stored.get("named") if isinstance(stored, dict) else []
        for netns in named if isinstance(named, list) else []:
            for family in ("ip", "ip6"):
                legacy.request(TableRequest(netns, family, ""))
        self.source.expect_readings(legacy)
        has_nft = any(isinstance(p, list) and p[:1] == ["nft_rule"] for p in self._meta_value("probes", [], list))
        return RuleResolver(legacy, SnapshotCache(self.source.watch) if has_nft else None)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
