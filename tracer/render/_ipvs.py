# SPDX-License-Identifier: Apache-2.0
"""Formats for people what IPVS did with a packet."""

from __future__ import annotations

from tracer.model.evidence import Evidence
from tracer.model.hop import IpvsDecision, IpvsHop, IpvsNatHop
from tracer.render._style import KEEP, plain
from tracer.util.endpoint_format import format_endpoint

_CHOSEN = {
    ("earlier", Evidence.OBSERVED): "existing connection: chosen for an earlier packet",
    ("earlier", Evidence.DERIVED): "existing connection: chosen earlier, the choice was not observed",
}


def virtual_server(decision: IpvsDecision) -> str:
    """Formats a virtual server: `172.30.0.10:53/udp`."""
    return f"{format_endpoint(decision.virtual, decision.virtual_port)}/{decision.protocol}"


def describe(hop: IpvsHop) -> tuple[str, str]:
    """Returns (subject, detail): "IPVS" or "reverse IPVS", and what it did."""
    decision = hop.decision
    how = ", ".join(word for word in (decision.scheduler, "persistent" * decision.persistent) if word)
    server = virtual_server(decision) + f"{KEEP}({plain(how)})" * bool(how)
    if not isinstance(hop, IpvsNatHop):
        if not decision.virtual:
            return "IPVS", f"{hop.verdict}, no reason given"
        return "IPVS", f"{server} has no real server available, {hop.verdict} with {hop.reject}"
    real = format_endpoint(decision.real, decision.real_port)
    if hop.nat.kind.startswith("reverse"):
        return "reverse IPVS", f"{real}{KEEP}-> {server}"
    return "IPVS", f"{server}{KEEP}-> {real}"


def remark(decision: IpvsDecision) -> str:
    """Returns how the real server is known; "" if it was chosen for this packet."""
    return _CHOSEN.get((decision.chosen, decision.evidence), "")
