# SPDX-License-Identifier: Apache-2.0
"""How a packet ended, in one plain sentence and one word.

Each rule looks at the whole packet and either speaks or passes; the first that speaks wins, so what ends a packet stands
before what merely happened to it. A rule is one function, named after what it recognises, listed once in RULES.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracer.model.other_host import for_another_host
from tracer.model.packet import Drop, Handshake, Hop, Packet
from tracer.packets import purged
from tracer.util.endpoint_format import format_endpoint

Ending = tuple[str, str] | None

BAD = frozenset({"dropped", "rejected", "refused"})
"""Outcomes of a packet that did not get where it should."""


def classify(packet: Packet, untracked: str = "") -> tuple[str, str]:
    """(sentence, word) for a packet. untracked: "INVALID" or "UNTRACKED" when it had no conntrack entry, "" otherwise."""
    hops = [h for h in packet.hops if not h.clone]
    if any(for_another_host(h.drop) for h in hops) and len(hops) < len(packet.hops):
        # A bridge flooded it: the other ports' packets are no one's, and a copy may have been the one that counts.
        hops = [h for h in packet.hops if not for_another_host(h.drop)]
    if any(h.drop and purged.undecided(h.drop) for h in hops) and len(hops) < len(packet.hops):
        # A packet socket may have got the packet itself, and the stack its copy (deliver_skb).
        hops = [h for h in packet.hops if not (h.drop and purged.undecided(h.drop))]
    if not hops:
        return "only a copy of it was seen", "unknown"
    for rule in RULES:
        ending = rule(packet, hops)
        if ending:
            sentence, word = ending
            if untracked and word in ("dropped", "rejected"):
                sentence += f", conntrack state {untracked}"
            return sentence, word
    return "seen, its end was not", "unknown"


def benign(drop: Drop) -> bool:
    """Whether this is how a kernel frees what somebody has already taken."""
    return bool(purged.taken_by(drop))


def _where(hop: Hop) -> str:
    """ " in pod-a"; nothing for the node itself."""
    return f" in {hop.netns}" if hop.netns and hop.netns != "node" else ""


def rejected(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if h.verdict == "REJECT"), None)
    return (f"REJECTED in {hop.table}/{hop.chain or hop.hook} with {hop.reject}{_where(hop)}", "rejected") if hop else None


def refused_by_ipvs(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if h.ipvs and h.verdict), None)
    if hop is None or hop.ipvs is None:
        return None
    if hop.verdict != "REJECT":
        return f"DROPPED by IPVS, which gives no reason{_where(hop)}", "dropped"
    server = f"{packet.protocol} {format_endpoint(hop.ipvs.virtual, hop.ipvs.virtual_port)}"
    return f"REJECTED by IPVS with {hop.reject}: {server} has no real server available{_where(hop)}", "rejected"


def dropped_by_rules(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if h.what in ("table", "chain") and h.verdict == "DROP"), None)
    return (f"DROPPED in {hop.table}/{hop.chain or hop.hook}{_where(hop)}", "dropped") if hop else None


def handshake_refused(packet: Packet, hops: list[Hop]) -> Ending:
    told = next((h for h in hops if h.handshake and h.handshake.accepted is False and _refuses(packet, h.handshake)), None)
    if told is None or told.handshake is None:
        return None
    what, shake = packet.tcp_flags or "segment", told.handshake
    why = f"accept queue {shake.accept_queue}/{shake.accept_limit}" if shake.accept_queue_full else _reason(hops)
    return f"{what} dropped: {why}{_where(told)}", "dropped"


def _refuses(packet: Packet, shake: Handshake) -> bool:
    """A half-open connection takes no second SYN, but answers it again: that is no refusal."""
    return shake.stage != "request" or packet.tcp_flags != "SYN"


def syn_again(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if h.handshake and h.handshake.stage == "request" and not h.handshake.accepted), None)
    return (f"SYN once more, its connection is half-open already{_where(hop)}", "delivered") if hop else None


def _reason(hops: list[Hop]) -> str:
    drop = next((h.drop for h in reversed(hops) if h.drop), None)
    return f"{drop.reason or 'no reason given'} in {drop.function}" if drop else "no reason seen"


def without_socket(hops: Iterable[Hop]) -> Hop | None:
    """Where a packet was dropped because no socket was there for it. Kernels before 5.17 give no reason; but only then does TCP
    answer with a reset that is no socket's, once the checksum was right."""
    hops = list(hops)
    no_ones_reset = any(h.detail and h.detail.what == "reset" and "state" not in h.detail.facts for h in hops)
    reasons = ("NO_SOCKET", "") if no_ones_reset else ("NO_SOCKET",)
    return next((h for h in hops if h.drop and h.drop.reason in reasons), None)


def no_listener(packet: Packet, hops: list[Hop]) -> Ending:
    hop = without_socket(hops)
    return (f"nobody listens{_where(hop) or ' here'}: {_last_destination(packet, hops)}", "refused") if hop else None


def _last_destination(packet: Packet, hops: list[Hop]) -> str:
    nat = next((h.nat for h in reversed(hops) if h.nat), None)
    ends = nat.after if nat else packet.endpoints
    return f"{packet.protocol} {format_endpoint(ends.dst, ends.dport)}"


def closing(packet: Packet, hops: list[Hop]) -> Ending:
    """The last segments of a connection that is over already: the kernel acts on them and frees them without a reason."""
    hop = next((h for h in reversed(hops) if h.socket), None)
    if not hop or not hop.socket or hop.socket.state != "TIME_WAIT" or packet.tcp_flags == "SYN":
        return None
    drop = next((h.drop for h in reversed(hops) if h.drop), None)
    if drop and drop.reason not in ("", "NOT_SPECIFIED"):
        return None
    return f"delivered to a connection in TIME_WAIT{_where(hop)}", "delivered"


def not_for_here(packet: Packet, hops: list[Hop]) -> Ending:
    """What a bridge flooded, where the copy that counts was not followed."""
    hop = next((h for h in reversed(hops) if h.drop), None)
    if hop is None or not for_another_host(hop.drop):
        return None
    told = f"dropped{_where(hop) or ' here'}, which it is not for (OTHERHOST); no copy was seen where it belongs"
    return told, "unknown"


def dropped(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in reversed(hops) if h.drop), None)
    if hop is None or hop.drop is None:
        return None
    if benign(hop.drop):
        return None
    if purged.undecided(hop.drop):
        return f"freed with a queue{_where(hop)}; whose queue it was is not known", "unknown"
    in_hook = next((h.hook for h in hops if h.what == "hook" and h.verdict == "DROP"), "")
    place = f"in {in_hook} by {hop.drop.function}" if in_hook else f"in {hop.drop.function or 'an unknown function'}"
    return f"DROPPED {place}: {hop.drop.reason or 'no reason given by this kernel'}{_where(hop)}", "dropped"


def dropped_by_hook(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in hops if h.what == "hook" and h.verdict == "DROP"), None)
    return (f"DROPPED in {hop.hook}{_where(hop)}", "dropped") if hop else None


def delivered(packet: Packet, hops: list[Hop]) -> Ending:
    at = next((i for i in range(len(hops) - 1, -1, -1) if hops[i].socket), -1)
    if at < 0 or any(h.what == "hook" for h in hops[at:]):
        return None
    hop, socket = hops[at], hops[at].socket
    assert socket
    who = f"pid {socket.pid} {socket.command}" if socket.pid else "a socket"
    told = next((h.handshake for h in hops[at:] if h.handshake), None)
    if told and told.stage == "SYN" and told.accepted:
        return f"SYN answered by {who}{_where(hop)}", "delivered"
    return f"delivered to {who}{_where(hop)}", "delivered"


def unread(packet: Packet, hops: list[Hop]) -> Ending:
    """Taken, as its end alone tells: what came before was not seen, or its copy was made for another socket."""
    hop = hops[-1]
    who = purged.taken_by(hop.drop) if hop.drop else ""
    return (f"delivered to {who}{_where(hop)}, which was closed with it unread", "delivered") if who else None


def stolen(packet: Packet, hops: list[Hop]) -> Ending:
    hop = hops[-1]
    held = hop.verdict in ("STOLEN", "QUEUE")
    return (f"taken over in {hop.hook}: queued or stolen{_where(hop)}", "stolen") if held else None


def sent_on(packet: Packet, hops: list[Hop]) -> Ending:
    # A hook without a verdict is of a device: a rule there might have taken the packet over.
    hop = next((h for h in reversed(hops) if h.what == "hook" and h.verdict), None)
    if hop is None or hop.hook != "POSTROUTING":
        return None
    came_in = any(h.in_iface for h in hops if h.netns == hop.netns)
    word = "forwarded" if came_in else "sent"
    return f"{word} to {hop.out_iface or '?'}{_where(hop)}", word


def let_in(packet: Packet, hops: list[Hop]) -> Ending:
    hop = next((h for h in reversed(hops) if h.what == "hook"), None)
    if hop is None or hop.hook != "INPUT":
        return None
    if packet.protocol.startswith("ICMP"):
        return f"delivered to {hop.netns}'s kernel", "delivered"
    return f"accepted in INPUT{_where(hop)}, no socket took it while watched", "unknown"


def under_way(packet: Packet, hops: list[Hop]) -> Ending:
    hop = hops[-1]
    return (f"passed {hop.hook}{_where(hop)}, then out of sight", "unknown") if hop.hook else None


RULES = (
    refused_by_ipvs, rejected, dropped_by_rules, handshake_refused, syn_again, no_listener, closing, not_for_here, dropped,
    dropped_by_hook, delivered, unread, stolen, sent_on, let_in, under_way,
)  # fmt: skip
