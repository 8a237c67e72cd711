# SPDX-License-Identifier: Apache-2.0
"""What a test asks of a hop that must be of a certain kind."""

from __future__ import annotations

from tracer.model.hop import (
    DecidingHop,
    Drop,
    DropHop,
    Handshake,
    HandshakeHop,
    Hop,
    RuleHop,
    Socket,
    SocketHop,
    decision_of,
    owner_of,
    trace_of,
)
from tracer.model.kube import Owner
from tracer.model.rule import RuleHit


def socket(hop: Hop) -> Socket:
    assert isinstance(hop, SocketHop), hop
    return hop.socket


def handshake(hop: Hop) -> Handshake:
    assert isinstance(hop, HandshakeHop), hop
    return hop.handshake


def drop(hop: Hop) -> Drop:
    assert isinstance(hop, DropHop), hop
    return hop.drop


def owner(hop: Hop) -> Owner:
    found = owner_of(hop)
    assert found, hop
    return found


def table(hop: Hop) -> str:
    """The table; "" for a hop without rules."""
    return hop.table if isinstance(hop, RuleHop) else ""


def chain(hop: Hop) -> str:
    """The nftables base chain; "" for a hop without one."""
    return hop.base_chain if isinstance(hop, RuleHop) else ""


def decision(hop: Hop) -> RuleHit:
    found = decision_of(hop)
    assert found, hop
    return found


def undecided(hop: Hop) -> str:
    """Why the deciding rule is not known; "" = it is known, or no rules acted."""
    trace = trace_of(hop)
    return trace.undecided if trace else ""


def hits(hop: Hop) -> tuple[RuleHit, ...]:
    """The rules that acted; () for a hop without rules."""
    trace = trace_of(hop)
    return trace.hits if trace else ()


def reject(hop: Hop) -> str:
    """How REJECT answered the packet; "" = it did not."""
    return hop.reject if isinstance(hop, DecidingHop) else ""
