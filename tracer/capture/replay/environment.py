# SPDX-License-Identifier: Apache-2.0
"""The objects of a replay: they answer from a capture instead of the machine.

A replay needs no root rights, and queries no kernel and no cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

from tracer.capture.change_events import ReplayedChangeLog, ReplayedConntrackListener
from tracer.capture.format.codec import MalformedRecord, from_json
from tracer.capture.format.schema import HOLDS_ANSWERS
from tracer.capture.journal import (
    JournaledProcesses,
    JournaledPrograms,
    ReplayedNamespaces,
    journaled_function,
)
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.source import ReplaySource
from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.namespace_name import Netns
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.node.namespaces import NamespaceNames
from tracer.node.node import HostReader
from tracer.node.processes import SocketOwners
from tracer.pipeline.assembly import Assembler, AssemblyParts, KernelNames, packet_assembler
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.table_reader import TableRequest
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.questions import Journal


class ReplayEnvironment:
    """Asks a capture.

    Args:
        capture: the capture.
        progress: called with the number of events of each replayed chunk.
    """

    def __init__(self, capture: CaptureReader, progress: Callable[[int], None] = lambda events: None) -> None:
        self.meta, self._version = capture.meta, capture.version
        self._source = ReplaySource(capture, progress)

    def cluster_view(self) -> ClusterView:
        local, ipvs = (frozenset(self._meta_value(name, [], list)) for name in ("addresses", "ipvs_addresses"))
        return ClusterView(self._source.store, self._source.sandboxes, local, ipvs)

    def host_reader(self) -> HostReader:
        return HostReader()

    def journal(self) -> Journal:
        return self._source.journal

    def processes(self) -> JournaledProcesses:
        return JournaledProcesses(self._source.journal)

    def inspector(self, namespaces: NamespaceNames, processes: SocketOwners) -> NamespaceInspector:
        return NamespaceInspector(NamespaceReader(namespaces, processes), self._source.journal)

    def kernel_names(self) -> KernelNames:
        function = journaled_function(self._source.journal, lambda address: "")
        return KernelNames(function, self._meta_value("drop_reasons", {}, dict))

    def programs(self, stack: ExitStack) -> JournaledPrograms:
        return JournaledPrograms(self._source.journal)

    def tracking(self) -> Collection[int]:
        return [i for i in self._meta_value("tracking", [], list) if isinstance(i, int)]

    def change_log(self) -> ReplayedChangeLog:
        return self._source.changes

    def conntrack_listener(self) -> ReplayedConntrackListener:
        return self._source.entries

    def assembler(self, parts: AssemblyParts) -> Assembler:
        return packet_assembler(parts, holds_answers=self._version >= HOLDS_ANSWERS, version=self._source.version)

    def source(self, kube: OwnerResolver) -> ReplaySource:
        return self._source

    def clock(self) -> int:
        clock = self.meta.get("clock")
        return _int(clock.get("offset")) if isinstance(clock, dict) else 0

    def _meta_value(self, name: str, default: Any, kind: type) -> Any:
        """A value of `meta`; `default` where it has another type, so that damage does not cause an error elsewhere."""
        try:
            found = from_json(self.meta.get(name, default)) if kind is dict else self.meta.get(name, default)
        except MalformedRecord:
            return default
        return found if isinstance(found, kind) else default

    def namespaces(self) -> ReplayedNamespaces:
        stored = self.meta.get("namespaces")
        stored = stored if isinstance(stored, dict) else {}
        try:
            names = {int(k): Netns(str(v)) for k, v in from_json(stored.get("names", {"dict": []})).items()}
        except (MalformedRecord, ValueError, TypeError, AttributeError):
            names = {}
        node, own = (_int(stored.get(name)) for name in ("node", "own"))
        return ReplayedNamespaces(self._source.journal, node, own, names, self._source.version)

    def rules(self, namespaces: NamespaceNames, stack: ExitStack) -> RuleResolver:
        try:
            acts = from_json(self.meta.get("acts", {"set": []}))
        except MalformedRecord:
            acts = frozenset()
        legacy = TableGenerations(self._source.reader, lambda act: act in acts)
        stored = self.meta.get("namespaces")
        named = stored.get("named") if isinstance(stored, dict) else []
        for netns in named if isinstance(named, list) else []:
            for family in ("ip", "ip6"):
                legacy.request(TableRequest(netns, family, ""))
        self._source.expect_readings(legacy)
        has_nft = any(isinstance(p, list) and p[:1] == ["nft_rule"] for p in self._meta_value("probes", [], list))
        return RuleResolver(legacy, SnapshotCache(self._source.watch) if has_nft else None)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
