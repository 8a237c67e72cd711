# SPDX-License-Identifier: Apache-2.0
"""What a row of `top` stands for. Each dimension is one entry of DIMENSIONS: it gives a packet, or a SYN, its row.

A key has no port that a connection chose, so that packets on a shared path have the same key, which is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from tracer.analysis.top.view_orders import ViewOrder, asker_first, deciding_first, server_first
from tracer.model.endpoints import Endpoints
from tracer.model.handshake import HandshakeVerdict
from tracer.model.hop import IpvsRefusalHop, Nat, RuleHop, nat_of, owner_of, verdict_of
from tracer.model.kube import Owner
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD
from tracer.render.parts.deciding_hop import deciding_hop, deciding_program, deciding_rule, program_owner
from tracer.util.endpoint_format import format_endpoint

UNKNOWN = "unknown"
NOT_DROPPED = "not dropped"
NO_RULE = "no rule decided"


class RowKey(NamedTuple):
    """The row of a packet.

    Attributes:
        text: What is common to the packets of the row: the Service, the rule, ...; UNKNOWN = not known.
        owner: The owner of the rule or of the address, as this packet shows it; UNKNOWN = not known; "" = the dimension has no
            owners.
    """

    text: str
    owner: str = ""


class Dimension(NamedTuple):
    """One way to put packets in rows.

    Attributes:
        title: Title of the column.
        of_packet: Gives the row of a packet.
        of_syn: Gives the row of a SYN; None = that of its packet. Not None: the packets of the table are the SYNs alone.
        order: The views of a packet of several nodes, in the order in which they are asked for its row.
        is_by_node: Each node has a row, and a packet is counted in the row of each node that saw it.
    """

    title: str
    of_packet: Callable[[Packet], RowKey]
    of_syn: Callable[[HandshakeVerdict], RowKey] | None = None
    order: ViewOrder = deciding_first
    is_by_node: bool = False

    @staticmethod
    def is_known(key: RowKey) -> bool:
        """Whether a row says something of a packet: if not, another view of it may."""
        return key.text not in (UNKNOWN, NO_RULE)


def service_of(packet: Packet) -> Owner | None:
    """The Service of the rule that acted; without such a rule, that of the packet's addresses; None = not known."""
    acted = (owner_of(hop) for hop in packet.hops if not hop.clone)
    found = (owner for owner in (*acted, packet.dst_owner, packet.src_owner) if owner and owner.kind == "Service")
    return next(found, None)


def _service(packet: Packet) -> RowKey:
    owner = service_of(packet)
    return RowKey(owner.label if owner else UNKNOWN)


def _rule(packet: Packet) -> RowKey:
    hop = deciding_hop(packet)
    if hop is None and (found := deciding_program(packet)):
        if program := found.program:
            return RowKey(f"{found.point} {program.name}", _rule_owner(program_owner(found)))
        return RowKey(UNKNOWN, UNKNOWN)
    if hop is None:
        return RowKey(NO_RULE) if packet.complete else RowKey(UNKNOWN, UNKNOWN)
    rule = deciding_rule(hop)
    if rule is None:
        return RowKey(UNKNOWN, UNKNOWN)
    return RowKey(f"{rule.table} {rule.place}".strip(), _rule_owner(owner_of(hop)))


def _rule_owner(owner: Owner | None) -> str:
    """The owner of a rule, without what made the rule act on this packet."""
    return replace(owner, cause="").text if owner and owner.known else UNKNOWN


def _reason(packet: Packet) -> RowKey:
    if packet.outcome not in BAD:
        return RowKey(NOT_DROPPED)
    for hop in reversed(packet.hops):
        if not hop.clone and isinstance(hop, RuleHop) and verdict_of(hop) in REFUSALS:
            return RowKey(f"{hop.verdict} in {hop.place}")
        if not hop.clone and isinstance(hop, IpvsRefusalHop) and verdict_of(hop) in REFUSALS:
            return RowKey(f"{hop.verdict} by IPVS")
    shake, drop = packet.handshake, packet.drop
    if shake and shake.accepted is False and shake.accept_queue_full:
        return RowKey("accept queue full")
    if not drop:
        return RowKey(UNKNOWN)
    return RowKey(" in ".join(filter(None, (drop.reason, drop.function))) or UNKNOWN)


def _cause(packet: Packet) -> RowKey:
    return RowKey(UNKNOWN)


def _cause_of_syn(verdict: HandshakeVerdict) -> RowKey:
    return RowKey(verdict.cause.name)


def _endpoint(packet: Packet) -> RowKey:
    """The server's end behind all translations. Which end is the server's, is not known of a packet without a connection."""
    if not packet.flow and packet.tcp_flags not in ("SYN", "SYN ACK"):
        return RowKey(UNKNOWN, UNKNOWN)
    if _is_answer(packet):
        nat = next((nat for nat in _rewrites(packet) if nat.before.src != nat.after.src), None)
        ends = nat.before if nat else packet.endpoints
        owner = packet.src_owner if ends.src == packet.endpoints.src else None
        return RowKey(format_endpoint(ends.src, ends.sport), _address_owner(owner))
    rewrites = list(_rewrites(packet))
    ends = rewrites[-1].after if rewrites else packet.endpoints
    return RowKey(format_endpoint(ends.dst, ends.dport), _target(packet, ends))


def _target(packet: Packet, ends: Endpoints) -> str:
    """The owner of the address that a request came to: of a translated one, only where the rule's owner names its pod."""
    if ends.dst == packet.endpoints.dst:
        return _address_owner(packet.dst_owner)
    owners = (owner_of(hop) for hop in packet.hops if (nat := nat_of(hop)) and nat.after.dst == ends.dst)
    pods = (_pod(owner) for owner in owners if owner)
    return next((pod for pod in pods if pod), UNKNOWN)


def _pod(owner: Owner) -> str:
    """The pod that a rule leads to; "" = the owner names none."""
    return owner.target.partition(" (")[0] if owner.target else f"pod {owner.label}" * (owner.kind == "Pod")


def _client(packet: Packet) -> RowKey:
    """The address that asked, before all translations. Not known of a packet without a connection, as above."""
    if not packet.flow and packet.tcp_flags not in ("SYN", "SYN ACK"):
        return RowKey(UNKNOWN, UNKNOWN)
    if not _is_answer(packet):
        return RowKey(packet.endpoints.src, _address_owner(packet.src_owner))
    rewrites = list(_rewrites(packet))
    address = rewrites[-1].after.dst if rewrites else packet.endpoints.dst
    return RowKey(address, _address_owner(packet.dst_owner if address == packet.endpoints.dst else None))


def _is_answer(packet: Packet) -> bool:
    return packet.flow.is_reply if packet.flow else packet.tcp_flags == "SYN ACK"


def _rewrites(packet: Packet) -> Iterator[Nat]:
    return (nat for hop in packet.hops if not hop.clone and (nat := nat_of(hop)))


def _address_owner(owner: Owner | None) -> str:
    """The owner of an address. A pod is named alone, without its node, as a rule's owner and an address's owner name it."""
    if not owner or not owner.known:
        return UNKNOWN
    return f"pod {owner.label}" if owner.kind == "Pod" else owner.text


def _node(packet: Packet) -> RowKey:
    """The node that saw a packet is not known from the packet."""
    return RowKey(UNKNOWN)


DIMENSIONS = {
    "service": Dimension("Service", _service),
    "rule": Dimension("rule", _rule),
    "reason": Dimension("reason of the drop", _reason),
    "cause": Dimension("cause of the SYN", _cause, _cause_of_syn),
    "endpoint": Dimension("endpoint", _endpoint, order=server_first),
    "client": Dimension("client", _client, order=asker_first),
    "node": Dimension("node", _node, is_by_node=True),
}
"""The dimensions by the word of --by; the keys 1 to 7 choose them in this order."""
