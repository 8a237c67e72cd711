# SPDX-License-Identifier: Apache-2.0
"""Entries in conntrack's table, read when the metrics are read."""

from __future__ import annotations

from tracer.metrics.family import MetricDescription, MetricKind, SettingFamily


class ConntrackEntries(SettingFamily):
    """No sample while the module nf_conntrack is not loaded."""

    DESCRIPTION = MetricDescription(
        MetricKind.GAUGE, "Entries of conntrack in the network namespace of the agent, the node's own one.", unit="entries"
    )
    SETTING = "net/netfilter/nf_conntrack_count"


METRIC = ConntrackEntries
