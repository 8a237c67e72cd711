# SPDX-License-Identifier: Apache-2.0
"""SYNs by their Service and by what became of them."""

from __future__ import annotations

from tracer.analysis.top.dimensions import service_of
from tracer.analysis.top.row import NOT_KNOWN
from tracer.metrics.family import CounterFamily, MetricDescription, MetricKind
from tracer.metrics.label_value import NONE, UNKNOWN, label_value
from tracer.metrics.metric_sources import MetricSources
from tracer.model.handshake import Cause, HandshakeVerdict
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo


class SynOutcomes(CounterFamily):
    """Counts the SYNs. The Service of a shared path is found once."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "SYNs by Service, by what became of them (answered, failed, unknown) and by the cause.",
        labels=("service_namespace", "service", "result", "cause"),
    )

    def __init__(self, sources: MetricSources) -> None:
        super().__init__(sources)
        self._services = PathMemo(_service)

    def syn(self, verdict: HandshakeVerdict) -> None:
        service = self._services.of(verdict.attempt.syn) if verdict.attempt else (UNKNOWN, UNKNOWN)
        self._add((*service, _result(verdict.cause), label_value(verdict.cause.name)))


def _service(syn: Packet) -> tuple[str, str]:
    """Namespace and name of the Service; NONE: no rule and no address of the SYN belongs to one that is known."""
    owner = service_of(syn)
    return (label_value(owner.namespace), label_value(owner.name)) if owner else (NONE, NONE)


def _result(cause: Cause) -> str:
    return "answered" if cause.good else UNKNOWN if cause.name == NOT_KNOWN else "failed"


METRIC = SynOutcomes
