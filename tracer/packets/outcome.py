# SPDX-License-Identifier: Apache-2.0
"""Classifies how a packet ended, as one sentence and one word.

Each rule looks at the whole packet and returns an ending or None. The first ending is used, so rules about what ended the
packet stand before rules about what merely happened to it. A rule is one function, named after the case it recognises and
listed once in RULES.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracer.model.bpf_program import AttachPoint
from tracer.model.hop import (
    DetailHop,
    Drop,
    DropHop,
    Handshake,
    HandshakeHop,
    HookHop,
    Hop,
    IpvsRefusalHop,
    RedirectHelper,
    RedirectHop,
    RewriteHop,
    RuleHop,
    SocketHop,
    verdict_of,
)
from tracer.model.namespace_name import in_netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.other_host import for_another_host
from tracer.model.packet import Outcome, Packet
from tracer.packets import purged
from tracer.packets.ovs_drops import ovs_sentence
from tracer.packets.queue_drops import SEGMENTED, format_queue_drop, queue_drop
from tracer.util.endpoint_format import format_endpoint

Ending = tuple[str, Outcome] | None

BAD = frozenset({Outcome.DROPPED, Outcome.REJECTED, Outcome.REFUSED})
"""Outcomes of a packet that did not reach its destination."""


def classify(packet: Packet, untracked: str = "") -> tuple[str, Outcome]:
    """Classifies a packet.

    Args:
        packet: The packet with its hops.
        untracked: "INVALID" or "UNTRACKED" if it had no conntrack entry, "" otherwise.

    Returns:
        (sentence, word): the verdict as shown, and the outcome.
    """
    hops = [h for h in packet.hops if not h.clone]
    drops = [h for h in hops if isinstance(h, DropHop)]
    if any(for_another_host(h) for h in drops) and len(hops) < len(packet.hops):
        # A bridge flooded it: the packets of the other ports are dropped, and a copy may be the one that was delivered.
        hops = [h for h in packet.hops if not for_another_host(h)]
        drops = [h for h in hops if isinstance(h, DropHop)]
    if any(purged.has_unknown_receiver(h.drop) for h in drops) and len(hops) < len(packet.hops):
        # A packet socket may have received the packet itself, and the stack a copy (deliver_skb).
        hops = [h for h in packet.hops if not (isinstance(h, DropHop) and purged.has_unknown_receiver(h.drop))]
    if not hops:
        return "only a copy of it was seen", Outcome.UNKNOWN
    for rule in RULES:
        ending = rule(packet, hops)
        if ending:
            sentence, word = ending
            if untracked and word in (Outcome.DROPPED, Outcome.REJECTED):
                sentence += f", conntrack state {untracked}"
            return sentence, word
    return "seen, but not how it ended", Outcome.UNKNOWN


def is_benign(drop: Drop) -> bool:
    """Whether the kernel freed a packet that had already been delivered."""
    return bool(purged.receiver(drop))


def _last_drop(hops: list[Hop]) -> DropHop | None:
    return next((h for h in reversed(hops) if isinstance(h, DropHop)), None)


def _where(hop: Hop) -> str:
    """ " in pod-a"; "" for the node itself."""
    return in_netns(hop.netns)


def rejected(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if isinstance(h, RuleHop) and h.verdict is Verdict.REJECT), None)
    if hop is None:
        return None
    return f"REJECTED in {hop.place} with {hop.reject}{_where(hop)}", Outcome.REJECTED


def refused_by_ipvs(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if isinstance(h, IpvsRefusalHop) and h.verdict), None)
    if hop is None:
        return None
    if hop.verdict is not Verdict.REJECT:
        return f"DROPPED by IPVS, which gives no reason{_where(hop)}", Outcome.DROPPED
    server = f"{packet.protocol} {format_endpoint(hop.decision.virtual, hop.decision.virtual_port)}"
    return f"REJECTED by IPVS with {hop.reject}: {server} has no real server available{_where(hop)}", Outcome.REJECTED


def dropped_by_rules(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if isinstance(h, RuleHop) and h.verdict is Verdict.DROP), None)
    return (f"DROPPED in {hop.place}{_where(hop)}", Outcome.DROPPED) if hop else None


def handshake_refused(packet: Packet, hops: list[Hop]) -> Ending:
    shakes = (h for h in hops if isinstance(h, HandshakeHop))
    refusing = next((h for h in shakes if h.handshake.accepted is False and _is_refusal(packet, h.handshake)), None)
    if refusing is None:
        return None
    what, handshake = packet.tcp_flags or "segment", refusing.handshake
    why = f"accept queue {handshake.accept_queue}/{handshake.accept_limit}" if handshake.accept_queue_full else _reason(hops)
    return f"{what} dropped: {why}{_where(refusing)}", Outcome.DROPPED


def _is_refusal(packet: Packet, handshake: Handshake) -> bool:
    """Whether the packet was refused. A half-open connection does not accept a second SYN but answers it again: no refusal."""
    return handshake.stage != "request" or packet.tcp_flags != "SYN"


def repeated_syn(packet: Packet, hops: list[Hop]) -> Ending:
    shakes = (h for h in hops if isinstance(h, HandshakeHop))
    hop = next((h for h in shakes if h.handshake.stage == "request" and not h.handshake.accepted), None)
    return (f"repeated SYN, its connection is already half-open{_where(hop)}", Outcome.DELIVERED) if hop else None


def _reason(hops: list[Hop]) -> str:
    hop = _last_drop(hops)
    return f"{hop.drop.reason or 'no reason given'} in {hop.drop.function}" if hop else "no reason seen"


def without_socket(hops: Iterable[Hop]) -> DropHop | None:
    """The hop that dropped a packet because it had no socket, or None. One that a program of sk_lookup refused is not meant.

    Kernels before 5.17 give no drop reason. But only in this case does TCP answer a segment with a valid checksum by a reset
    that belongs to no socket.
    """
    hops = list(hops)
    details = [h.detail for h in hops if isinstance(h, DetailHop)]
    has_reset_without_socket = any(d.what == "reset" and "state" not in d.facts for d in details)
    reasons = ("NO_SOCKET", "") if has_reset_without_socket else ("NO_SOCKET",)
    return next((h for h in hops if isinstance(h, DropHop) and h.drop.reason in reasons and not h.drop.program), None)


def no_listener(packet: Packet, hops: list[Hop]) -> Ending:
    hop = without_socket(hops)
    return (f"no listener{_where(hop) or ' here'}: {_last_destination(packet, hops)}", Outcome.REFUSED) if hop else None


def _last_destination(packet: Packet, hops: list[Hop]) -> str:
    nat = next((h.nat for h in reversed(hops) if isinstance(h, RewriteHop)), None)
    ends = nat.after if nat else packet.endpoints
    return f"{packet.protocol} {format_endpoint(ends.dst, ends.dport)}"


def closing(packet: Packet, hops: list[Hop]) -> Ending:
    """The last segments of a closed connection: the kernel acts on them and frees them without a reason."""
    hop = next((h for h in reversed(hops) if isinstance(h, SocketHop)), None)
    if not hop or hop.socket.state != "TIME_WAIT" or packet.tcp_flags == "SYN":
        return None
    last = _last_drop(hops)
    if last and last.drop.reason not in ("", "NOT_SPECIFIED"):
        return None
    return f"delivered to a connection in TIME_WAIT{_where(hop)}", Outcome.DELIVERED


def other_host(packet: Packet, hops: list[Hop]) -> Ending:
    """A packet that a bridge flooded, where the copy that reached the destination was not tracked."""
    hop = _last_drop(hops)
    if hop is None or not for_another_host(hop):
        return None
    place = _where(hop) or " here"
    return f"dropped{place}: link address of another host (OTHERHOST); no copy was seen at its destination", Outcome.UNKNOWN


def dropped(packet: Packet, hops: list[Hop]) -> Ending:
    hop = _last_drop(hops)
    if hop is None or is_benign(hop.drop):
        return None
    if purged.has_unknown_receiver(hop.drop):
        return f"freed when a queue was emptied{_where(hop)}; the queue's owner is not known", Outcome.UNKNOWN
    if hop.drop.program and hop.drop.program.point is AttachPoint.SK_LOOKUP:
        # The sender gets a reset or an ICMP error, as where nothing listens.
        return f"REFUSED {hop.drop.program.text}{_where(hop)}", Outcome.REFUSED
    if hop.drop.program:
        return f"DROPPED {hop.drop.program.text}{_where(hop)}", Outcome.DROPPED
    if queued := queue_drop(hops, hop):
        if queued.cause == SEGMENTED:
            return f"taken over in {queued.hook}: queued in segments{_where(hop)}", Outcome.STOLEN
        return f"DROPPED {format_queue_drop(queued)}{_where(hop)}", Outcome.DROPPED
    if sentence := ovs_sentence(hop.drop):
        return f"DROPPED {sentence}{_where(hop)}", Outcome.DROPPED
    in_hook = next((h.hook for h in hops if isinstance(h, HookHop) and h.verdict is Verdict.DROP), "")
    place = f"in {in_hook} by {hop.drop.function}" if in_hook else f"in {hop.drop.function or 'an unknown function'}"
    return f"DROPPED {place}: {hop.drop.reason or 'no reason given by this kernel'}{_where(hop)}", Outcome.DROPPED


def dropped_by_hook(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if isinstance(h, HookHop) and h.verdict is Verdict.DROP), None)
    return (f"DROPPED in {hop.hook}{_where(hop)}", Outcome.DROPPED) if hop else None


def delivered(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in reversed(hops) if isinstance(h, SocketHop)), None)
    if hop is None:
        return None
    after = hops[len(hops) - hops[::-1].index(hop) :]
    if any(isinstance(h, HookHop) for h in after):
        return None
    socket = hop.socket
    who = f"pid {socket.pid} {socket.command}" if socket.pid else "a socket"
    handshake = next((h.handshake for h in after if isinstance(h, HandshakeHop)), None)
    if handshake and handshake.stage == "SYN" and handshake.accepted:
        return f"SYN answered by {who}{_where(hop)}", Outcome.DELIVERED
    return f"delivered to {who}{_where(hop)}", Outcome.DELIVERED


def freed_unread(packet: Packet, hops: list[Hop]) -> Ending:
    """Delivered, as the freeing function shows: the delivery itself was not seen, or the copy was made for another socket."""
    hop = hops[-1]
    who = purged.receiver(hop.drop) if isinstance(hop, DropHop) else ""
    return (f"delivered to {who}{_where(hop)}, which was closed before it read the packet", Outcome.DELIVERED) if who else None


def stolen(packet: Packet, hops: list[Hop]) -> Ending:
    hop = hops[-1]
    held = verdict_of(hop) in (Verdict.STOLEN, Verdict.QUEUE)
    return (f"taken over in {hop.hook}: queued or stolen{_where(hop)}", Outcome.STOLEN) if held else None


def redirected(packet: Packet, hops: list[Hop]) -> Ending:
    own = [h for h in hops if not (isinstance(h, RedirectHop) and h.is_copy)]
    hop = own[-1] if own else None
    if not isinstance(hop, RedirectHop):
        return None
    sentence = f"redirected {hop.redirect.text}{_where(hop)}"
    if hop.redirect.is_ingress or hop.redirect.helper is RedirectHelper.PEER:
        return f"{sentence}; no later event seen", Outcome.UNKNOWN
    return sentence, Outcome.FORWARDED if any(h.in_iface for h in hops if h.netns == hop.netns) else Outcome.SENT


def forwarded_or_sent(packet: Packet, hops: list[Hop]) -> Ending:
    # A hook without a verdict belongs to a device: a rule there may have taken over the packet.
    hop = next((h for h in reversed(hops) if isinstance(h, HookHop) and h.verdict), None)
    if hop is None or hop.hook is not Hook.POSTROUTING:
        return None
    came_in = any(h.in_iface for h in hops if h.netns == hop.netns)
    word = Outcome.FORWARDED if came_in else Outcome.SENT
    return f"{word} to {hop.out_iface or '?'}{_where(hop)}", word


def accepted_in_input(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in reversed(hops) if isinstance(h, HookHop)), None)
    if hop is None or hop.hook is not Hook.INPUT:
        return None
    if packet.protocol.startswith("ICMP"):
        return f"delivered to {hop.netns}'s kernel", Outcome.DELIVERED
    return f"accepted in INPUT{_where(hop)}, no socket took it while watched", Outcome.UNKNOWN


def last_hook_seen(packet: Packet, hops: list[Hop]) -> Ending:
    hop = hops[-1]
    return (f"passed {hop.hook}{_where(hop)}, no later event seen", Outcome.UNKNOWN) if hop.hook else None


RULES = (
    refused_by_ipvs, rejected, dropped_by_rules, handshake_refused, repeated_syn, no_listener, closing, other_host, dropped,
    dropped_by_hook, delivered, freed_unread, stolen, redirected, forwarded_or_sent, accepted_in_input, last_hook_seen,
)  # fmt: skip
