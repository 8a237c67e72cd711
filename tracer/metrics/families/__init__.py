# SPDX-License-Identifier: Apache-2.0
"""The metrics, a file each: `METRIC` is a subclass of Family, and the name of the file is the name of the metric.

The full name has the prefix k8snet_trace_, and a counter the suffix _total. docs/metrics.md has a row for each.

Must not know: other metrics, HTTP.
"""

from __future__ import annotations

from functools import cache

from tracer.metrics.family import Family
from tracer.util.registry import Registry

_METRICS: Registry[type[Family]] = Registry(__name__, "METRIC", kind="metric")


@cache
def metrics() -> tuple[tuple[str, type[Family]], ...]:
    """Returns (file name, class) of all metrics."""
    return _METRICS.entries()
