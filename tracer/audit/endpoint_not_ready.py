# SPDX-License-Identifier: Apache-2.0
"""A Service is refused although it has pods: none of them is ready, or with policy Local none of those on this node.

The finding of the same name looks at the packets that the predictor gives for requests to such Services.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracer.audit import _needs, _traffic
from tracer.audit._senders import OUTSIDE, senders
from tracer.audit._traffic import PredictedTraffic
from tracer.audit.state import NodeState
from tracer.findings.endpoint_not_ready import find
from tracer.model.finding import Finding
from tracer.model.kube import ServicePort

NEEDS = (_needs.services,)


def check(state: NodeState) -> Iterator[Finding]:
    for port in dict.fromkeys(state.cluster.store.services.values()):
        ends = state.cluster.store.endpoints.all((port.label, port.protocol))
        if all(e.ready for e in ends):
            continue
        requests = _requests(state, port)
        if any(e.ready for e in ends):  # only policy Local refuses then, and only requests from outside
            requests = [r for r in requests if r.sender.name == OUTSIDE]
        yield from _as_predicted(port, requests, state)


def _as_predicted(port: ServicePort, requests: list[PredictedTraffic], state: NodeState) -> Iterator[Finding]:
    """The finding if a predicted packet shows it; certain only if each one does."""
    each = [find(path.predicted.packet, state.context) for path in _traffic.all_paths(requests)]
    found = [f for f in each if f and f.key[:2] == (port.label, port.protocol)]
    if found:
        objects = [proof for proof in found[0].proofs if proof.what == "object"]
        yield replace(found[0], proofs=(*_traffic.proofs(requests), *objects), certain=len(found) == len(each))


def _requests(state: NodeState, port: ServicePort) -> list[PredictedTraffic]:
    """Requests to the Service port, of each sender that can reach it: its NodePort, or its first cluster IP."""
    if port.node_port:
        return _traffic.at_port(state, port.node_port, port.protocol)
    address = next(iter(port.cluster_ips), "")
    if not address:
        return []
    family = "ip6" if ":" in address else "ip"
    found = [_traffic.predict(state, s, address, port.port, port.protocol) for s in senders(state, family) if s.name != OUTSIDE]
    return [one for one in found if one]
