"""A process of the node listens on a port that is also a NodePort: it never sees what comes from outside."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit.ports import node_ports
from tracer.audit.state import State
from tracer.findings.model import Finding
from tracer.findings.node import Listener
from tracer.findings.nodeport_host_process import conflict


def check(state: State) -> Iterator[Finding]:
    for claim in node_ports(state):
        listener = _listener(state, claim.port, claim.protocol)
        if listener and not state.context.node.is_kube_proxy(listener.pid):
            yield conflict(claim.owner, listener, claim.protocol, claim.fate, [claim.shown], state.context)


def _listener(state: State, port: int, protocol: str) -> Listener | None:
    """Who listens on the port at an address that others reach the node by."""
    addresses = sorted(a for a in state.known.local if not a.startswith("127.") and a != "::1")
    found = (state.context.node.listener(address, port, protocol) for address in addresses)
    return next(filter(None, found), None)
