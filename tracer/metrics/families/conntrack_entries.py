# SPDX-License-Identifier: Apache-2.0
"""Entries in conntrack's table, read when the metrics are read."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample

SETTING = "net/netfilter/nf_conntrack_count"


class ConntrackEntries(Family):
    """Reads procfs; no sample while the module nf_conntrack is not loaded."""

    DESCRIPTION = MetricDescription(
        MetricKind.GAUGE, "Entries of conntrack in the network namespace of the agent, the node's own one.", unit="entries"
    )

    def samples(self) -> Iterable[Sample]:
        text = self._sources.host.setting(SETTING, kept_seconds=0)
        return [Sample((), int(text))] if text.isdecimal() else []


METRIC = ConntrackEntries
