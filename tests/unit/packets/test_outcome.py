# SPDX-License-Identifier: Apache-2.0
"""Outcomes of packets: each rule, and the order of the rules."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.builders import POD, SECOND, Ends, Trail, packet, swapped
from tracer.model.endpoints import Endpoints
from tracer.model.hop import DecisionDetail, DetailHop, Drop, NatHookHop, verdict_of
from tracer.model.namespace_name import HOST
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD, RULES, classify, is_benign

REQUEST: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
INSIDE: Ends = ("192.168.56.1", 40812, "10.244.0.11", 8080)
NO_SOCKET, NETFILTER_DROP, TCP_RESET = 2, 6, 7
IN_HOOK, IN_TCP, IN_UDP, IN_PURGE, IN_DESTRUCT, IN_NEIGHBOUR, IN_RECEIVE = 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70


def came(**fields: object) -> Trail:
    """A packet that came in by eth0 and passed PREROUTING."""
    return Trail(REQUEST).now(**{"in_name": "eth0", **fields}).hook("PREROUTING")


def at_listener(**fields: object) -> Trail:
    return came(**fields).hook("INPUT").add("SOCKET", object=48213, state=10)


def forwarded() -> Trail:
    return came().hook("FORWARD", out_name="cni0").hook("POSTROUTING", in_name="", out_name="cni0")


def rejected() -> Trail:
    """REJECT also drops, and the hook reports the drop: the rule decides."""
    t = came().table("INPUT", "filter", verdict="DROP", flags="REJECT", reason=3)
    return t.add("DROP", reason=NETFILTER_DROP, object=IN_HOOK).hook("INPUT", verdict="DROP", flags="NO_HEADER")


def by_chain() -> Trail:
    t = came(netns=POD).add("CHAIN", hook="FORWARD", table="kube-proxy", chain="filter-forward", verdict="DROP")
    return t.add("DROP", reason=NETFILTER_DROP, object=IN_HOOK)


def by_ipvs(act: int, **fields: object) -> Trail:
    t = came().add("IPVS", hook="INPUT", state=act, verdict="DROP", **fields)
    return t.add("DROP", reason=NETFILTER_DROP, object=IN_HOOK).hook("INPUT", verdict="DROP", flags="NO_HEADER")


def by_hook() -> Trail:
    t = came().add("DROP", reason=NETFILTER_DROP, object=IN_HOOK)
    return t.hook("FORWARD", verdict="DROP", flags="NO_HEADER")


def full_queue() -> Trail:
    t = at_listener().add("SYN", verdict=0, accept_len=129, accept_max=128, flags="NO_HEADER")
    return t.add("DROP", reason=0, object=IN_TCP)


def no_listener(**fields: object) -> Trail:
    return came(protocol=17, **fields).hook("INPUT").add("DROP", reason=NO_SOCKET, object=IN_UDP)


ICMP = {"protocol": 1, "tcp_flags": 0}
NO_PROGRAM = "program unknown: what was attached at that moment is not known"
CASES = {
    "reject": (rejected(), "REJECTED in filter/INPUT with icmp-port-unreachable", "rejected"),
    "no real server": (
        by_ipvs(4, flags="REJECT", reason=3, pf=2, header=REQUEST, orig=REQUEST),
        "REJECTED by IPVS with icmp-port-unreachable: TCP 192.168.56.10:30285 has no real server available", "rejected",
    ),
    "dropped by IPVS": (by_ipvs(5, flags="NO_HEADER"), "DROPPED by IPVS, which gives no reason", "dropped"),
    "dropped by a table": (came().table("FORWARD", "filter", verdict="DROP"), "DROPPED in filter/FORWARD", "dropped"),
    "dropped by a chain": (by_chain(), "DROPPED in kube-proxy/filter-forward in pod-a", "dropped"),
    "for another interface": (
        forwarded().add("DROP", netns=POD, reason=11, object=IN_RECEIVE),
        "dropped in pod-a: link address of another host (OTHERHOST); no copy was seen at its destination", "unknown",
    ),
    "dropped in a hook": (by_hook(), "DROPPED in FORWARD by nf_hook_slow: NETFILTER_DROP", "dropped"),
    "dropped in a hook, unexplained": (came().hook("INPUT", verdict="DROP", flags="NO_HEADER"), "DROPPED in INPUT", "dropped"),
    "dropped elsewhere": (came().add("DROP", reason=9, object=IN_TCP), "DROPPED in tcp_v4_rcv: 9", "dropped"),
    "dropped, no reasons": (
        came().add("DROP", object=0x99), "DROPPED in an unknown function: no reason given by this kernel", "dropped",
    ),
    "accept queue full": (full_queue(), "SYN dropped: accept queue 129/128", "dropped"),
    "last ACK refused": (
        at_listener(tcp_flags=16, netns=POD).add("ACCEPT", verdict=0, accept_len=3, accept_max=2, flags="NO_HEADER"),
        "ACK dropped: accept queue 3/2 in pod-a", "dropped",
    ),
    "SYN refused for another reason": (
        at_listener().add("SYN", verdict=0, accept_max=128, flags="NO_HEADER").add("DROP", reason=9, object=IN_TCP),
        "SYN dropped: 9 in tcp_v4_rcv", "dropped",
    ),
    "SYN refused, no drop seen": (
        at_listener().add("SYN", verdict=0, accept_max=128, flags="NO_HEADER"), "SYN dropped: no reason seen", "dropped",
    ),
    "no listener": (no_listener(), "no listener here: UDP 192.168.56.10:30285", "refused"),
    "no listener in a pod": (no_listener(netns=POD), "no listener in pod-a: UDP 192.168.56.10:30285", "refused"),
    "delivered": (
        came().hook("INPUT").add("SOCKET", object=48213, state=1), "delivered to pid 4242 nginx", "delivered",
    ),
    "delivered to an unknown socket": (
        came(netns=POD).hook("INPUT").add("SOCKET", object=1, state=1),
        "delivered to a socket in pod-a", "delivered",
    ),
    "answered": (
        at_listener().add("SYN", verdict=1, flags="NO_HEADER"), "SYN answered by pid 4242 nginx", "delivered",
    ),
    "not known whether answered": (
        at_listener().add("SYN", verdict=255, flags="NO_HEADER"), "delivered to pid 4242 nginx", "delivered",
    ),
    "last segment of a closed connection": (
        came(netns=POD, tcp_flags=17).add("SOCKET", state=6).add("DROP", object=IN_TCP),
        "delivered to a connection in TIME_WAIT in pod-a", "delivered",
    ),
    "a bad checksum at a closed connection": (
        came(tcp_flags=17).add("SOCKET", state=6).add("DROP", reason=9, object=IN_TCP), "DROPPED in tcp_v4_rcv: 9", "dropped",
    ),
    "a SYN that hit TIME_WAIT": (
        came().add("SOCKET", state=6).add("DROP", object=IN_TCP),
        "DROPPED in tcp_v4_rcv: no reason given by this kernel", "dropped",
    ),
    "unread, freed with its socket": (
        came(netns=POD, protocol=17).add("DROP", object=IN_DESTRUCT),
        "delivered to a socket in pod-a, which was closed before it read the packet", "delivered",
    ),
    "freed with a queue": (
        came(netns=POD).add("DROP", object=IN_PURGE),
        "freed when a queue was emptied in pod-a; the queue's owner is not known", "unknown",
    ),
    "queue": (came().hook("FORWARD", verdict="QUEUE", flags="NO_HEADER"), "taken over in FORWARD: queued or stolen", "stolen"),
    "stolen": (
        came(netns=POD).hook("INPUT", verdict="STOLEN", flags="NO_HEADER"),
        "taken over in INPUT: queued or stolen in pod-a", "stolen",
    ),
    "forwarded": (forwarded(), "forwarded to cni0", "forwarded"),
    "redirected before the stack": (
        Trail(REQUEST).add("REDIRECT", in_ifindex=2, in_name="eth0", chain="eth1", state=1),
        f"redirected to eth1, at tc ingress of eth0, {NO_PROGRAM}", "forwarded",
    ),
    "redirected behind the stack": (
        Trail(REQUEST, out_name="eth0").hook("OUTPUT").hook("POSTROUTING").add("REDIRECT", chain="eth1", state=2),
        f"redirected to eth1, at tc egress of eth0, {NO_PROGRAM}", "sent",
    ),
    "redirected into another interface": (
        Trail(REQUEST).add("REDIRECT", in_name="eth0", accept_len=7, state=1, manip=1),
        f"redirected to interface 7 as received there, at tc ingress of eth0, {NO_PROGRAM}; no later event seen", "unknown",
    ),
    "a copy redirected": (
        forwarded().add("REDIRECT", out_name="cni0", chain="eth1", state=2, manip=8), "forwarded to cni0", "forwarded",
    ),
    "sent": (Trail(REQUEST, out_name="eth0").hook("OUTPUT").hook("POSTROUTING"), "sent to eth0", "sent"),
    "ping": (came(**ICMP).hook("INPUT"), "delivered to node's kernel", "delivered"),
    "let in": (came().hook("INPUT"), "accepted in INPUT, no socket took it while watched", "unknown"),
    "no later event": (came(), "passed PREROUTING, no later event seen", "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_ending(case: str) -> None:
    trail, sentence, word = CASES[case]
    p = packet(trail)
    assert (p.verdict, p.outcome) == (sentence, word)


def test_every_rule_decides_a_case() -> None:
    ended = [packet(trail) for trail, _, _ in CASES.values()]
    ended.append(packet(at_listener().add("REQUEST", verdict=0, flags="NO_HEADER")))
    first = {next(rule.__name__ for rule in RULES if rule(p, list(p.hops))) for p in ended}
    assert first == {rule.__name__ for rule in RULES}


def test_no_listener_names_the_address_after_dnat() -> None:
    t = Trail(REQUEST, protocol=17, in_name="eth0", orig=REQUEST, reply=swapped(INSIDE)).nat("PREROUTING", 1, INSIDE)
    p = packet(t.hook("PREROUTING").now(netns=POD).hook("INPUT").add("DROP", reason=NO_SOCKET, object=IN_UDP))
    assert (p.verdict, p.outcome) == ("no listener in pod-a: UDP 10.244.0.11:8080", "refused")


def test_no_listener_of_ipv6() -> None:
    t = Trail(("fd00::1", 5, "fd00::2", 53), protocol=17, in_name="eth0").add("DROP", reason=NO_SOCKET, object=IN_UDP)
    assert packet(t).verdict == "no listener here: UDP [fd00::2]:53"


@pytest.mark.parametrize(("place", "outcome"), [(IN_DESTRUCT, "delivered"), (IN_NEIGHBOUR, "dropped")])
def test_the_function_that_freed_it_decides_also_without_the_socket(place: int, outcome: str) -> None:
    assert packet(came(protocol=17).hook("INPUT").add("DROP", object=place)).outcome == outcome
    late = came(protocol=17).hook("INPUT").add("SOCKET", object=48213, state=7).add("DROP", object=place, flags="AT_SOCKET")
    assert packet(late).outcome == outcome


def test_the_end_of_a_copy_does_not_decide() -> None:
    t = came().add("DROP", reason=NO_SOCKET, object=IN_UDP, flags="CLONE").hook("INPUT")
    assert packet(t.add("SOCKET", object=48213, state=1)).verdict == "delivered to pid 4242 nginx"


def test_the_queue_of_a_packet_socket_does_not_decide_when_the_stack_had_the_copy() -> None:
    t = came(netns=POD, protocol=17).add("DROP", reason=NO_SOCKET, object=IN_UDP, flags="CLONE").add("DROP", object=IN_PURGE)
    assert packet(t).verdict == "no listener in pod-a: UDP 192.168.56.10:30285"


def test_copies_alone_decide_nothing() -> None:
    t = Trail(REQUEST, protocol=17).add("DROP", reason=NO_SOCKET, object=IN_UDP, flags="CLONE")
    assert (packet(t).verdict, packet(t).outcome) == ("only a copy of it was seen", "unknown")


@pytest.mark.parametrize(("reason", "place"), [(TCP_RESET, IN_TCP), (0, IN_PURGE)])
def test_a_segment_that_tcp_has_acted_on_was_delivered(reason: int, place: int) -> None:
    taken = came(tcp_flags=4).hook("INPUT").add("SOCKET", object=48213, state=1)
    assert packet(taken.add("DROP", reason=reason, object=place, flags="AT_SOCKET")).outcome == "delivered"
    untaken = came(tcp_flags=4).add("DROP", reason=reason, object=place)
    assert packet(untaken).outcome == ("unknown" if place == IN_PURGE else "dropped"), "delivered only if a socket had it"


def test_a_segment_refused_after_its_socket_was_found_was_dropped() -> None:
    t = came(tcp_flags=16).hook("INPUT").add("SOCKET", object=48213, state=1)
    assert packet(t.add("DROP", reason=NO_SOCKET + 7, object=IN_TCP, flags="AT_SOCKET")).outcome == "dropped"


def test_a_repeated_syn_that_a_half_open_connection_answers_was_not_dropped() -> None:
    """tcp_check_req answers it again and does not take the segment; for any other segment that is a refusal."""
    repeated = at_listener().add("REQUEST", verdict=0, flags="NO_HEADER")
    expected = ("repeated SYN, its connection is already half-open", "delivered")
    assert (packet(repeated).verdict, packet(repeated).outcome) == expected
    freed = at_listener().add("REQUEST", verdict=0, flags="NO_HEADER").add("DROP", reason=9, object=IN_TCP)
    assert (packet(freed).verdict, packet(freed).outcome) == expected
    last = at_listener(tcp_flags=16).add("REQUEST", verdict=0, flags="NO_HEADER").add("DROP", reason=9, object=IN_TCP)
    assert (packet(last).verdict, packet(last).outcome) == ("ACK dropped: 9 in tcp_v4_rcv", "dropped")


def test_a_packet_taken_by_a_raw_socket_is_still_forwarded() -> None:
    """A raw socket's copy does not end a packet that goes through more hooks."""
    t = came(**ICMP).add("SOCKET", object=48213).hook("FORWARD", out_name="cni0").hook("POSTROUTING", out_name="cni0")
    assert packet(t).verdict == "forwarded to cni0"


def test_a_rule_that_may_have_taken_over_the_packet() -> None:
    """A device's hook without a verdict: an nftables rule with `fwd` was evaluated. Only its chain reports the result."""
    t = Trail(REQUEST, out_name="eth0").hook("OUTPUT").hook("POSTROUTING").hook("INPUT", pf=5, verdict=255)
    assert [(h.hook, verdict_of(h)) for h in packet(t).hops[-2:]] == [("POSTROUTING", "ACCEPT"), ("EGRESS", "")]
    assert packet(t).verdict == "sent to eth0" and not packet(t).hops[-1].is_decisive
    t.add("CHAIN", hook="INPUT", pf=5, verdict=2, flags="NO_HEADER")
    assert (packet(t).verdict, packet(t).outcome) == ("taken over in EGRESS: queued or stolen", "stolen")


def test_through_two_namespaces_the_last_one_counts() -> None:
    """A packet that a pod sent enters the node by a device: the pod sent it, the node forwarded it."""
    t = Trail(REQUEST, netns=POD, out_name="eth0").hook("OUTPUT").hook("POSTROUTING")
    assert packet(t).verdict == "sent to eth0 in pod-a"
    t.now(netns=100, in_name="cni0", out_name="").hook("PREROUTING").now(out_name="eth1").hook("FORWARD")
    assert packet(t.now(in_name="").hook("POSTROUTING")).verdict == "forwarded to eth1"


def test_conntrack_state_is_reported_for_drops_only() -> None:
    dropped, fine = packet(rejected()), packet(forwarded())
    assert classify(dropped, "INVALID")[0].endswith(" with icmp-port-unreachable, conntrack state INVALID")
    assert classify(dropped, "")[0] == dropped.verdict
    assert classify(fine, "INVALID") == (fine.verdict, fine.outcome)


def test_an_unknown_outcome() -> None:
    p = Packet(1, SECOND, HOST, "", "IPv4", "GRE", Endpoints("10.0.0.1", 0, "10.0.0.2", 0))
    p = replace(p, hops=(NatHookHop(SECOND, HOST),))
    assert classify(p) == ("seen, but not how it ended", "unknown")


def test_sentences_are_one_line_and_outcomes_are_a_fixed_set() -> None:
    words = {word for _, _, word in CASES.values()}
    assert words == {"rejected", "dropped", "refused", "delivered", "stolen", "forwarded", "sent", "unknown"}
    assert words > BAD
    for _, sentence, word in CASES.values():
        assert re.fullmatch(r"[^\n]{10,160}", sentence)
        assert bool(re.match(r"REJECTED|DROPPED|\w+ dropped:|no listener", sentence)) == (word in BAD)


def test_benign_drops() -> None:
    for drop in (Drop("TCP_RESET", "tcp_v4_rcv"), Drop("", "skb_queue_purge")):
        assert is_benign(replace(drop, after_socket=True))
        assert not is_benign(drop), "benign only if a socket had taken it"
    for drop in (Drop("", "udp_destruct_common"), Drop("QUEUE_PURGE", "inet_sock_destruct"), Drop("", "tun_ptr_free")):
        assert is_benign(drop) and is_benign(replace(drop, after_socket=True)), "that function frees only packets of sockets"
    for drop in (Drop("QUEUE_PURGE", "neigh_destroy"), Drop("NEIGH_FAILED", "neigh_invalidate"), Drop("", "qdisc_reset")):
        assert not is_benign(drop), "no socket had taken it"
    for drop in (Drop("NO_SOCKET", "tcp_v4_rcv"), Drop("", "")):
        assert not is_benign(replace(drop, after_socket=True))
        assert not is_benign(drop)


@pytest.mark.parametrize(
    ("answering", "ending"),
    [
        ({}, ("no listener here: TCP 192.168.56.10:30285", "refused")),
        ({"state": "ESTABLISHED"}, ("DROPPED in tcp_v4_rcv: no reason given by this kernel", "dropped")),
    ],
)
def test_the_sender_of_the_reset_decides_without_a_reason(answering: dict[str, str], ending: tuple[str, str]) -> None:
    p = packet(came().hook("INPUT").add("DROP", object=IN_TCP))
    detail = DetailHop(0, HOST, detail=DecisionDetail("reset", {"reason": 0, **answering}))
    p = replace(p, hops=(*p.hops[:-1], detail, p.hops[-1]))
    assert classify(p) == ending
