# SPDX-License-Identifier: Apache-2.0
"""The largest number of entries in conntrack's table."""

from __future__ import annotations

from tracer.metrics.family import MetricDescription, MetricKind, SettingFamily


class ConntrackLimit(SettingFamily):
    """No sample while the module nf_conntrack is not loaded."""

    DESCRIPTION = MetricDescription(
        MetricKind.GAUGE, "Largest number of entries of conntrack in one network namespace (nf_conntrack_max).", unit="entries"
    )
    SETTING = "net/netfilter/nf_conntrack_max"


METRIC = ConntrackLimit
