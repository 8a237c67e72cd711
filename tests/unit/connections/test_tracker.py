# SPDX-License-Identifier: Apache-2.0
"""Packets of one connection form one timeline. The number of timelines and entries is bounded, and omissions are shown."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

from tests.support.syns import AFTER_DNAT, INSIDE, MS, REQUESTED, SEQ, at_listener, last_ack, packet, syn, synack, way
from tracer.connections import tracker
from tracer.connections.tracker import GRACE_NS, IDLE_NS, ConnectionTracker
from tracer.model.connection import ConnectionKey
from tracer.model.endpoints import Endpoints
from tracer.model.hop import Drop, DropHop, HookHop, RewriteHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Outcome, Packet
from tracer.model.timeline import Timeline, TimelineEntry

SECOND = 1_000_000_000
FLOW = Flow(REQUESTED, INSIDE.reversed, "ESTABLISHED", False, 0, HOST)


def segment(flags: str, at: int, back: bool = False, seq: int = 5000, identity: int = 50, **more: object) -> Packet:
    flow = replace(FLOW, is_reply=back)
    ends = INSIDE.reversed if back else REQUESTED
    return packet(
        ends, flags, [h for h in way(at) if not isinstance(h, RewriteHop)], identity, seq=seq, **{"flow": flow, **more}
    )


def timelines(*packets: Packet) -> list[Timeline]:
    connections = ConnectionTracker()
    for each in packets:
        connections.feed(each)
    return connections.flush()


def test_a_handshake_is_one_timeline() -> None:
    (one,) = timelines(syn(*at_listener(True)), synack(), last_ack())
    assert one.key == ConnectionKey("TCP", REQUESTED, 0, HOST)
    assert [(s.direction, s.text) for s in one.entries] == [("->", "SYN, 60 B"), ("<-", "SYN ACK, 60 B"), ("->", "ACK, 60 B")]
    assert [s.time for s in one.entries] == [0, 5 * MS, 8 * MS]
    assert (one.packets, one.state, one.why) == (3, "open", "the run ended")


def test_stages_of_a_packet() -> None:
    (one,) = timelines(syn(*at_listener(True)))
    assert [(s.netns, s.text) for s in one.entries[0].stages] == [
        ("node", "PREROUTING DNAT 192.168.56.10:30285 -> 10.244.0.11:8080"),
        ("node", "POSTROUTING MASQUERADE 192.168.56.1:40812 -> 10.244.0.1:23711"),
        ("pod-a", "in pod-a"),
        ("pod-a", "socket LISTEN, nginx (pid 4242)"),
        ("pod-a", "SYN taken, accept queue 0/128"),
    ]
    assert one.entries[0].end == "SYN answered by pid 4242 nginx in pod-a"


def test_untracked_packets_are_joined_by_their_endpoints() -> None:
    """The pod's own answer before the node has seen it, and a reset that conntrack calls invalid."""
    answer = packet(INSIDE.reversed, "ACK", [HookHop(9 * MS, Netns("pod-a"))], 8, seq=1)
    reset = packet(AFTER_DNAT, "RST", [HookHop(10 * MS, HOST, Hook.PREROUTING, in_iface="eth0")], 9, seq=SEQ + 1)
    (one,) = timelines(syn(), answer, reset)
    assert [(s.direction, s.remark) for s in one.entries[1:]] == [
        ("<-", "joined by its addresses"),
        ("->", "joined by its addresses"),
    ]
    assert one.entries[2].text == "RST, 60 B, came in by eth0"


def test_the_sender_of_a_reset() -> None:
    own = packet(INSIDE.reversed, "RST ACK", [HookHop(MS, Netns("pod-a"), Hook.OUTPUT, out_iface="eth0")], 9, ack=SEQ + 1)
    (one,) = timelines(syn(), own)
    assert one.entries[1].text == "RST ACK, 60 B, sent by pod-a" and one.state == "refused"


def test_an_icmp_error_belongs_to_the_connection_it_quotes() -> None:
    ends, flow = Endpoints("10.9.0.1", 0, "192.168.56.1", 0), replace(FLOW, state="RELATED", is_reply=True)
    icmp = Packet(
        5,
        MS,
        HOST,
        "eth1",
        "IPv4",
        "ICMP",
        ends,
        "",
        88,
        0,
        flow,
        (HookHop(MS, HOST, in_iface="eth1"),),
        icmp=(3, 1),
    )
    unrelated = replace(icmp, flow=None, identity=6)
    first, second = timelines(syn(), icmp, unrelated)
    assert [s.direction for s in first.entries] == ["->", "!"] and first.entries[
        1
    ].text == "ICMP icmp-host-unreachable, 88 B, came in by eth1"
    assert second.key.protocol == "ICMP" and first.state == "refused"


def test_zones_and_namespaces_keep_connections_apart() -> None:
    def at(zone: int, netns: Netns, identity: int) -> Packet:
        flow = Flow(REQUESTED, REQUESTED.reversed, "NEW", False, zone, netns)
        return packet(REQUESTED, "SYN", [HookHop(identity, netns, Hook.FORWARD)], identity, seq=identity, flow=flow)

    found = timelines(at(0, HOST, 1), at(7, HOST, 2), at(0, Netns("other"), 3))
    assert {t.key for t in found} == {
        ConnectionKey("TCP", REQUESTED, z, Netns(n)) for z, n in ((0, "node"), (7, "node"), (0, "other"))
    }


def tracked(zone: int, netns: Netns, at: int, back: bool = False, ends: Endpoints = REQUESTED, protocol: str = "UDP") -> Packet:
    """A datagram of a connection that this zone of this namespace tracks."""
    flow = Flow(ends, ends.reversed, "NEW", back, zone, netns)
    made = packet(ends.reversed if back else ends, "", [HookHop(at, netns, Hook.FORWARD)], at, flow=flow)
    return replace(made, protocol=protocol)


def test_the_same_tuple_in_two_zones_is_two_connections() -> None:
    """Also without a SYN, and for datagrams: the zone decides, in both directions."""
    for protocol in ("TCP", "UDP"):
        zones = ((1, 0), (2, 7), (3, 0), (4, 7), (5, 7), (6, 0))
        first, second = timelines(*(tracked(zone, HOST, at, at > 2, protocol=protocol) for at, zone in zones))
        assert (first.key.zone, first.packets, second.key.zone, second.packets) == (7, 3, 0, 3)
        assert not any(s.remark for t in (first, second) for s in t.entries)


def test_the_same_tuple_in_two_namespaces_is_two_connections() -> None:
    """Each pod asks the resolver of its own loopback device."""
    local = Endpoints("127.0.0.1", 40000, "127.0.0.53", 53)
    for ends in (local, REQUESTED):
        found = [
            tracked(0, Netns(netns), at, at > 2, ends) for at, netns in ((1, "pod-a"), (2, "pod-b"), (3, "pod-a"), (4, "pod-b"))
        ]
        found = [replace(p, length=60 + p.identity) for p in found]
        first, second = timelines(*found)
        assert (first.key.netns, first.packets, second.key.netns, second.packets) == ("pod-a", 2, "pod-b", 2)


def test_untracked_packets_of_two_namespaces_are_two_connections() -> None:
    local = Endpoints("127.0.0.1", 40000, "127.0.0.1", 8080)
    found = [
        packet(e, "ACK", [HookHop(at, Netns(netns), Hook.INPUT)], at, seq=at)
        for at, (netns, e) in enumerate(
            [("pod-a", local), ("pod-b", local), ("pod-a", local.reversed), ("pod-b", local.reversed)]
        )
    ]
    first, second = timelines(*found)
    assert [s.netns for s in first.entries] == ["pod-a"] * 2 and [s.netns for s in second.entries] == ["pod-b"] * 2
    assert [s.direction for s in first.entries] == [s.direction for s in second.entries] == ["->", "<-"]


def test_a_connection_that_two_namespaces_track_is_one() -> None:
    """A pod with connection tracking of its own: the answer is tracked by the node first."""
    hops = [HookHop(1, Netns("pod-a"), Hook.OUTPUT), HookHop(2, HOST, Hook.FORWARD)]
    asked = packet(INSIDE, "", hops, 1, flow=Flow(INSIDE, INSIDE.reversed, "NEW", False, 0, Netns("pod-a")))
    answer = tracked(0, HOST, 3, True, INSIDE, "TCP")
    (one,) = timelines(asked, answer)
    assert [s.direction for s in one.entries] == ["->", "<-"] and one.key.netns == "pod-a"


def test_an_event_of_conntrack_belongs_to_its_zone_and_namespace() -> None:
    connections = ConnectionTracker()
    for each in (tracked(0, HOST, 1), tracked(7, HOST, 2), tracked(0, Netns("pod-a"), 3)):
        connections.feed(replace(each, length=60 + each.identity))
    for zone, netns in ((7, "node"), (0, "pod-a"), (0, "node")):
        assert connections.add_entry(
            ConnectionKey("UDP", REQUESTED, zone, Netns(netns)), TimelineEntry(9, "conntrack", f"{zone} {netns}")
        )
    assert not connections.add_entry(ConnectionKey("UDP", REQUESTED, 8, HOST), TimelineEntry(9, "conntrack", "no such zone"))
    assert not connections.add_entry(
        ConnectionKey("UDP", REQUESTED, 0, Netns("pod-b")), TimelineEntry(9, "conntrack", "not seen")
    )
    assert [t.entries[-1].text for t in connections.flush()] == ["7 node", "0 pod-a", "0 node"]


def test_a_verdict_belongs_to_its_own_syn() -> None:
    """The same ports were used again before the verdict on the first SYN was final."""
    connections = ConnectionTracker()
    connections.feed(syn())
    connections.feed(syn(seq=9, at=SECOND, identity=9))
    assert not connections.add_verdict(syn(), TimelineEntry(2 * SECOND, "verdict", "no answer", bad=True), "no answer")
    assert connections.add_verdict(syn(seq=9), TimelineEntry(2 * SECOND, "verdict", "accepted"), "accepted")
    assert [t.cause for t in connections.flush()] == ["", "accepted"]


def test_a_syn_with_another_number_begins_anew() -> None:
    first, second = timelines(syn(), synack(), syn(seq=9, at=SECOND, identity=9))
    assert (first.packets, second.packets) == (2, 1)


def test_a_syn_sent_again_shows_which_hop_dropped_the_first() -> None:
    dropped = syn(DropHop(9, HOST, Hook.FORWARD, drop=Drop("NETFILTER_DROP", "nf_hook_slow")))
    (one,) = timelines(dropped, syn(at=SECOND, identity=2))
    assert one.entries[1].remark == "sent again (2. try), the first ended: DROPPED in nf_hook_slow: NETFILTER_DROP"
    assert one.entries[0].bad and not one.entries[1].bad


def test_pure_acknowledgements_are_not_sent_again() -> None:
    (one,) = timelines(
        syn(), segment("ACK", MS), segment("ACK", 2 * MS), segment("PSH ACK", 3 * MS), segment("PSH ACK", 4 * MS)
    )
    assert [bool(s.remark) for s in one.entries] == [False, False, False, False, True]


def test_a_closed_connection_is_emitted_after_a_grace_time() -> None:
    connections = ConnectionTracker()
    for each in (syn(), segment("FIN ACK", SECOND), segment("FIN ACK", SECOND + MS, True)):
        connections.feed(each)
    assert connections.expire(SECOND + MS + GRACE_NS // 2) == []
    connections.feed(segment("ACK", SECOND + 2 * MS))
    (one,) = connections.expire(2 * SECOND)
    assert (one.state, one.why, one.packets, len(connections)) == ("closed", "", 4, 0)
    assert not len(connections._index) and not connections._entry_count


def test_an_idle_connection_is_emitted_and_goes_on() -> None:
    connections = ConnectionTracker()
    connections.feed(syn())
    assert connections.expire(IDLE_NS // 2) == []
    (one,) = connections.expire(2 * IDLE_NS)
    assert (one.why, len(one.entries)) == ("quiet", 1)
    connections.mark_written(one)
    assert connections.expire(3 * IDLE_NS) == [], "nothing new"
    connections.feed(synack(at=3 * IDLE_NS))
    (again,) = connections.expire(5 * IDLE_NS)
    assert again is one and [s.text for s in one.entries] == ["SYN ACK, 60 B"] and one.printed == 1


def test_changes_stand_between_packets() -> None:
    connections = ConnectionTracker()
    connections.feed(syn())
    connections.add_change(TimelineEntry(3 * MS, "change", "kube-proxy replaced nat"))
    connections.feed(synack())
    connections.add_change(TimelineEntry(6 * MS, "change", "after the last packet"))
    (one,) = connections.flush()
    assert [(s.kind, s.time) for s in one.entries] == [("packet", 0), ("change", 3 * MS), ("packet", 5 * MS)]


def test_conntracks_events_and_verdicts_find_their_timeline() -> None:
    connections = ConnectionTracker()
    connections.feed(syn())
    assert connections.add_entry(
        ConnectionKey("TCP", REQUESTED, 0, HOST), TimelineEntry(MS, "conntrack", "created, SYN_SENT, 120 s")
    )
    assert connections.add_verdict(syn(), TimelineEntry(MS, "verdict", "no answer", bad=True), "no answer")
    assert not connections.add_verdict(syn(seq=9), TimelineEntry(MS, "verdict", "no answer"), "no answer"), "another SYN"
    assert not connections.add_entry(ConnectionKey("UDP", REQUESTED, 0, HOST), TimelineEntry(MS, "conntrack", "created"))
    (one,) = connections.flush()
    assert [s.kind for s in one.entries] == ["packet", "conntrack", "verdict"] and (one.cause, one.good) == ("no answer", False)


def test_a_long_connection_keeps_its_first_and_last_entries() -> None:
    many = [segment("PSH ACK", n * MS, seq=n, identity=n) for n in range(1, 200)]
    (one,) = timelines(syn(), *many)
    kept = tracker.FIRST_ENTRIES + tracker.LAST_ENTRIES
    assert (len(one.entries), one.left_out, one.packets) == (kept, 200 - kept, 200)
    assert one.entries[0].text == "SYN, 60 B" and one.entries[-1].time == 199 * MS


def a_syn(n: int) -> Packet:
    """The SYN of the n-th connection."""
    ends = Endpoints(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 40000, "192.168.56.10", 30285)
    flow = Flow(ends, ends.reversed, "NEW", False, 0, HOST)
    hops = (HookHop(n * 1000, HOST, Hook.FORWARD, verdict=Verdict.ACCEPT, in_iface="eth0", out_iface="cni0"),)
    end = "forwarded to cni0", Outcome.FORWARDED
    return Packet(n, n * 1000, HOST, "eth0", "IPv4", "TCP", ends, "SYN", 60, n, flow, hops, *end)


def test_the_longest_idle_connections_age_out_and_are_emitted() -> None:
    connections = ConnectionTracker(max_timelines=10)
    for n in range(25):
        connections.feed(a_syn(n))
    aged = connections.expire(0)
    assert [t.why for t in aged] == ["aged out"] * 15 and len(connections) == 10
    assert aged[0].key.orig == a_syn(0).endpoints
    assert connections.counts == {"timelines": 25, "aged out": 15}


def test_entries_are_bounded_too() -> None:
    connections = ConnectionTracker(max_entries=30)
    for n in range(20):
        connections.feed(a_syn(n))
        connections.add_entry(ConnectionKey("TCP", a_syn(n).endpoints, 0, HOST), TimelineEntry(n, "conntrack", "created"))
    assert connections._entry_count <= 31 and connections.counts["aged out"] >= 4


def test_memory_of_a_connection() -> None:
    connections, count = ConnectionTracker(), 2000
    tracemalloc.start()
    for n in range(count):
        connections.feed(a_syn(n))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / count < 5000, f"{size / count:.0f} bytes a connection"


def test_a_hundred_thousand_open_connections_do_not_stop_it() -> None:
    """All are kept; the next ones push the oldest out, and `expire` costs no more than before."""
    connections, count = ConnectionTracker(), 100_000
    for n in range(count + 100):
        connections.feed(a_syn(n))
        if n < count and n % 10_000 == 0:
            connections.expire(n * 1000)
    assert len(connections) == count == tracker.MAX_TIMELINES and connections.counts["aged out"] == 100
    assert len(connections._index) == count
    assert len(connections.expire(count * 1000)) == 100


def test_large_segments_that_do_not_get_through() -> None:
    tries = [replace(segment("ACK", n * SECOND, seq=9, identity=n + 60), length=1500) for n in range(1, 4)]
    (one,) = timelines(syn(*at_listener(True)), synack(), *tries)
    assert ["MTU black hole" in s.remark for s in one.entries] == [False, False, False, False, True]


def test_idle_connections_are_not_checked_again() -> None:
    connections = ConnectionTracker()
    for n in range(3000):
        connections.feed(a_syn(n))
    late = 10 * IDLE_NS
    assert [len(connections.expire(late)) for _ in range(4)] == [1000, 1000, 1000, 0]
    assert len(connections) == 3000 and not connections._pending


def test_emitted_entries_are_not_kept() -> None:
    """A connection with many idle periods shows each entry once, however many there are."""
    connections, found = ConnectionTracker(), []
    for n in range(1, 5):
        for m in range(30):
            connections.feed(segment("PSH ACK", n * 3 * IDLE_NS + m, seq=100 * n + m, identity=100 * n + m))
        (one,) = connections.expire(n * 3 * IDLE_NS + 2 * IDLE_NS)
        found += [s.time for s in one.entries]
        connections.mark_written(one)
    assert len(found) == len(set(found)) == 120 and not connections._entry_count and not one.left_out


def test_a_packet_out_of_a_tunnel_goes_on() -> None:
    """It is seen again in a new namespace, in another buffer; a retransmission starts where the first packet started."""
    here = [HookHop(0, HOST, Hook.FORWARD, verdict=Verdict.ACCEPT, in_iface="cni0", out_iface="vxlan0")]
    there = [HookHop(3 * MS, Netns("node-2"), in_iface="vxlan0")]
    ends = INSIDE
    first, continued = packet(ends, "SYN", here, 1, seq=7), packet(ends, "SYN", there, 2, seq=7)
    again = packet(ends, "SYN", [replace(here[0], time=SECOND)], 3, seq=7)
    (one,) = timelines(first, continued, again)
    assert one.packets == 2
    entry, later = one.entries
    assert [s.text for s in entry.stages] == ["in node-2, by vxlan0, recognised by its header"]
    assert [s.time for s in entry.stages] == [3 * MS]
    assert entry.end == continued.verdict
    assert later.remark.startswith(f"sent again (2. try), the first ended: {continued.verdict}")


def test_the_rest_of_a_packet_that_waited_goes_on() -> None:
    """It was idle for long and was closed; its rest is no retransmission."""
    first = packet(REQUESTED, "SYN", way(), 1, seq=SEQ)
    late = packet(REQUESTED, "SYN", [DropHop(SECOND, HOST, drop=Drop("NEIGH_FAILED", "arp_error_report"))], 1, seq=SEQ)
    late = replace(late, continues=1)
    (one,) = timelines(first, late)
    (entry,) = one.entries
    assert entry.bad and entry.end == late.verdict and [s.text for s in entry.stages][-1].startswith("drop NEIGH_FAILED")


def test_the_rest_of_an_emitted_packet_has_a_remark() -> None:
    connections = ConnectionTracker()
    connections.feed(packet(REQUESTED, "SYN", way(), 1, seq=SEQ))
    (one,) = connections.expire(2 * IDLE_NS)
    connections.mark_written(one)
    late = packet(REQUESTED, "SYN", [DropHop(3 * IDLE_NS, HOST, drop=Drop("QDISC_DROP", "f"))], 1, seq=SEQ)
    late = replace(late, continues=1)
    connections.feed(late)
    (entry,) = connections.flush()[0].entries
    assert entry.remark == "the rest of a packet that was shown before, joined by its addresses" and one.retransmitted == 0
