# SPDX-License-Identifier: Apache-2.0
"""A rule treats a Service of policy Local as without local endpoints although its pods run here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tracer.audit import _needs, _traffic
from tracer.audit._senders import OUTSIDE
from tracer.audit.state import NodeState
from tracer.findings.no_local_endpoints import conflict, port_of
from tracer.kube.missing_endpoints import NONE_HERE
from tracer.kube.owners.kube_proxy_nftables import owner_of_element
from tracer.kube.rule_text import destination_ports, protocol
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.kube import Owner, ServicePort
from tracer.packets.outcome import BAD

_PORT = re.compile(r"\. (\d+)\b")

NEEDS = (_needs.services,)


def check(state: NodeState) -> Iterator[Finding]:
    for owner, proto, number, shown in _without_endpoints(state):
        port = port_of(owner, proto, number, state.context)
        found = conflict(port, [shown], state.context) if port else None
        if found and port:
            yield from _confirmed(state, port, found)


def _confirmed(state: NodeState, port: ServicePort, found: Finding) -> Iterator[Finding]:
    """The finding, if a request from outside is refused; only likely if it is refused on some paths, or if that is not
    known."""
    addresses = [(a, port.port) for a in (*port.external_ips, *port.balancer_ips)]
    targets = [("", port.node_port)] if port.node_port else addresses
    traffic = [a for address, number in targets for a in _traffic.at_port(state, number, port.protocol, address)]
    fates = {w.predicted.packet.outcome in BAD for a in traffic if a.sender.name == OUTSIDE for w in a.paths}
    if fates != {False}:
        yield replace(found, certain=found.certain and fates == {True})


def _without_endpoints(state: NodeState) -> Iterator[tuple[Owner, str, int, FindingEvidence]]:
    """(owner, protocol, port or 0, evidence) of each rule or element for a Service without local endpoints."""
    for rule, ruleset in state.rules():
        if rule.comment.endswith("has " + NONE_HERE):
            owner = state.owner(rule, ruleset)
            number = next(iter(destination_ports(rule)), 0)
            yield owner, protocol(rule) or "tcp", number, state.proof(rule, ruleset, owner.text)
    for (family, table, name), found in (state.installed.nft.maps if state.installed.nft else {}).items():
        for element in found.elements.values() if (family, table, name) in state.maps and table == "kube-proxy" else ():
            owner_found = owner_of_element(element.text, state.cluster) if element.verdict == "drop" else None
            port = _PORT.search(element.text)
            if owner_found and NONE_HERE in owner_found.detail and port:
                proto = next((k for k in element.key if k in ("tcp", "udp", "sctp")), "tcp")
                shown = FindingEvidence("rule", f"element of map {family} {table} {name}: {element.text}", "nft")
                yield owner_found, proto, int(port[1]), shown
