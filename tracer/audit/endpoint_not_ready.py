# SPDX-License-Identifier: Apache-2.0
"""A Service is refused although it has pods: none of them is ready, or by policy Local none of those of this node.

The API's endpoints say which pods are not ready; what happens to a request is asked from the predictor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracer.audit import _traffic
from tracer.audit._senders import OUTSIDE, senders
from tracer.audit._traffic import PredictedTraffic
from tracer.audit.state import NodeState
from tracer.findings.endpoint_not_ready import not_here, nowhere
from tracer.model.finding import Finding
from tracer.model.kube import ServicePort
from tracer.packets.outcome import BAD

_REFUSED = frozenset({*BAD, "refused", "rejected"})


def check(state: NodeState) -> Iterator[Finding]:
    for port in dict.fromkeys(state.cluster.store.services.values()):
        if nowhere(port, (), state.context):
            yield from _as_it_goes(port, _requests(state, port), state)
        elif port.local and port.node_port and not_here(port, (), "refused", state.context):
            asked = [a for a in _traffic.at_port(state, port.node_port, port.protocol) if a.sender.name == OUTSIDE]
            yield from _as_it_goes(port, asked, state)


def _as_it_goes(port: ServicePort, asked: list[PredictedTraffic], state: NodeState) -> Iterator[Finding]:
    """The finding, if requests are refused: certain where they are on every path, else only likely."""
    outcomes = {path.predicted.packet.outcome for path in _traffic.all_paths(asked)}
    if not outcomes & _REFUSED:
        return
    fate = "dropped" if "dropped" in outcomes else "refused"
    shown = _traffic.proofs(asked)
    found = nowhere(port, shown, state.context) or not_here(port, shown, fate, state.context)
    if found:
        yield replace(found, certain=found.certain and outcomes <= _REFUSED)


def _requests(state: NodeState, port: ServicePort) -> list[PredictedTraffic]:
    """Requests to the Service port, of each sender that can ask for it: its NodePort, or its first cluster IP."""
    if port.node_port:
        return _traffic.at_port(state, port.node_port, port.protocol)
    address = next(iter(port.cluster_ips), "")
    if not address:
        return []
    family = "ip6" if ":" in address else "ip"
    found = [_traffic.predict(state, s, address, port.port, port.protocol) for s in senders(state, family) if s.name != OUTSIDE]
    return [one for one in found if one]
