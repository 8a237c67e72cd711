# SPDX-License-Identifier: Apache-2.0
"""The largest number of entries in conntrack's table."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample

SETTING = "net/netfilter/nf_conntrack_max"


class ConntrackLimit(Family):
    """Reads procfs; no sample while the module nf_conntrack is not loaded."""

    DESCRIPTION = MetricDescription(
        MetricKind.GAUGE, "Largest number of entries of conntrack in one network namespace (nf_conntrack_max).", unit="entries"
    )

    def samples(self) -> Iterable[Sample]:
        text = self._sources.host.setting(SETTING, kept_seconds=0)
        return [Sample((), int(text))] if text.isdecimal() else []


METRIC = ConntrackLimit
