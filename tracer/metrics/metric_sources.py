# SPDX-License-Identifier: Apache-2.0
"""What metrics are made of beside the results of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tracer.node.node import HostReader

LABEL_SETS = 100
"""Number of label sets of a metric that have a series each, unless the user gives another one."""


@dataclass(frozen=True)
class MetricSources:
    """What metrics are made of beside the results of the run.

    Attributes:
        label_sets: Largest number of series of a metric, beside `other`.
        version: Version of this program.
        kernel: Release of the kernel.
        node: Name of the node.
        is_ready: Whether the probes are attached.
        host: Reads this machine; for threads that serve metrics only.
        evicted: Gives the number of series that ended, by the name of their metric.
        event_results: Gives what became of Events about findings; empty = they are not asked for.
        otlp_results: Gives what became of spans and log records by (signal, result); empty = there is no collector.
        captures: Gives the number of captures around findings, by finding and by what became of the capture.
    """

    label_sets: int = LABEL_SETS
    version: str = ""
    kernel: str = ""
    node: str = ""
    is_ready: Callable[[], bool] = lambda: False
    host: HostReader = field(default_factory=HostReader)
    evicted: Callable[[], dict[str, int]] = dict
    event_results: Callable[[], dict[str, int]] = dict
    otlp_results: Callable[[], dict[tuple[str, str], int]] = dict
    captures: Callable[[], Mapping[tuple[str, str], int]] = dict
