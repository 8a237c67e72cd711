# SPDX-License-Identifier: Apache-2.0
"""Words for what IPVS did with a packet, for people."""

from __future__ import annotations

from tracer.model.evidence import Evidence
from tracer.model.packet import Hop, IpvsDecision
from tracer.render._style import KEEP, plain
from tracer.util.endpoint_format import format_endpoint

_CHOSEN = {
    ("earlier", Evidence.OBSERVED): "a known connection: chosen for an earlier packet",
    ("earlier", Evidence.DERIVED): "a known connection: chosen earlier, which was not seen",
}


def virtual_server(told: IpvsDecision) -> str:
    """172.30.0.10:53/udp"""
    return f"{format_endpoint(told.virtual, told.virtual_port)}/{told.protocol}"


def act(hop: Hop, told: IpvsDecision) -> tuple[str, str]:
    """Who acted, and what it did."""
    if not told.virtual:
        return "IPVS", f"{hop.verdict}, for no reason that it gives"
    how = ", ".join(word for word in (told.scheduler, "persistent" * told.persistent) if word)
    server = virtual_server(told) + f"{KEEP}({plain(how)})" * bool(how)
    if not told.real:
        return "IPVS", f"{server} has no real server available, {hop.verdict} with {hop.reject}"
    real = format_endpoint(told.real, told.real_port)
    if hop.nat and hop.nat.kind.startswith("reverse"):
        return "reverse IPVS", f"{real}{KEEP}-> {server}"
    return "IPVS", f"{server}{KEEP}-> {real}"


def remark(told: IpvsDecision) -> str:
    """How the real server is known, where it was not chosen for this very packet."""
    return _CHOSEN.get((told.chosen, told.evidence), "")
