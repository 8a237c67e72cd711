# SPDX-License-Identifier: Apache-2.0
"""The packet assembler: which events are one packet, when the packet is complete, and which statements about it are safe."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import hop_fields
from tests.support.builders import NODE, OTHER_POD, POD, SECOND, Ends, Trail, hops, packet, packets, shortened, swapped
from tracer.events import record
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import Handshake, RewriteHop, Socket
from tracer.model.loss import LEFT_OUT, NO_ROOM, Loss
from tracer.model.packet import Flow, Packet
from tracer.packets.assembler import IDLE_NS, PacketAssembler
from tracer.packets.loss_history import MAX_LOSSES, LossHistory

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
HALF: Ends = ("192.168.56.1", 40812, "10.244.0.11", 8080)
INSIDE: Ends = ("10.244.0.1", 23711, "10.244.0.11", 8080)
CLIENT6: Ends = ("fd00:56::1", 40812, "fd00:56::10", 30285)
INSIDE6: Ends = ("fd00:56::1", 40812, "fd00:10::11", 8080)


def node_port(identity: int = 1 << 8, start: int = SECOND) -> Trail:
    """A SYN to a NodePort: DNAT, FORWARD, MASQUERADE, and the pod's listener answers it."""
    t = Trail(CLIENT, identity, start, in_name="eth0", orig=CLIENT, reply=swapped(CLIENT), ct_info=2, ident=4711)
    t.table("PREROUTING", "mangle").now(reply=swapped(HALF)).table("PREROUTING", "nat").nat("PREROUTING", 1, HALF)
    t.hook("PREROUTING").now(out_name="cni0").table("FORWARD", "filter").hook("FORWARD").now(in_name="")
    t.table("POSTROUTING", "nat", reply=swapped(INSIDE)).now(reply=swapped(INSIDE))
    t.nat("POSTROUTING", 0, INSIDE, flags="MASQ").hook("POSTROUTING")
    t.now(netns=POD, in_name="eth0", out_name="", orig=None, reply=None).hook("INPUT")
    t.add("SOCKET", object=48213, state=10)
    return t.add("SYN", verdict=1, object=48213, accept_max=128, syn_len=1, flags="NO_HEADER")


def answer(identity: int = 2 << 8, start: int = SECOND + 100_000) -> Trail:
    """The SYN ACK to that SYN: both translations are undone."""
    t = Trail(swapped(INSIDE), identity, start, netns=POD, out_name="eth0", tcp_flags=18).hook("OUTPUT")
    t.now(netns=NODE, in_name="cni0", out_name="", orig=CLIENT, reply=swapped(INSIDE), ct_info=3)
    t.nat("PREROUTING", 3, swapped(HALF), flags="MASQ").hook("PREROUTING").now(out_name="eth0").hook("FORWARD")
    return t.nat("POSTROUTING", 2, swapped(CLIENT)).hook("POSTROUTING")


def rewrites(p: Packet) -> list[tuple[str, Endpoints, Endpoints, Evidence]]:
    return [(h.nat.kind, h.nat.before, h.nat.after, h.evidence) for h in p.hops if isinstance(h, RewriteHop)]


def test_a_syn_to_a_node_port() -> None:
    p = packet(node_port())
    assert (p.number, p.identity, p.time) == (1, 1 << 8, SECOND)
    assert (p.family, p.protocol, p.tcp_flags, p.length, p.seq) == ("IPv4", "TCP", "SYN", 60, 7)
    assert (p.netns, p.iface, p.endpoints) == ("node", "eth0", Endpoints(*CLIENT))
    assert p.ident == 4711
    assert p.flow == Flow(Endpoints(*CLIENT), Endpoints(*swapped(INSIDE)), "NEW", False, 0)
    assert [(h.kind, h.hook or h.netns, hop_fields.table(h)) for h in p.hops] == [
        ("table", "PREROUTING", "mangle"), ("table", "PREROUTING", "nat"), ("nat", "PREROUTING", ""),
        ("hook", "PREROUTING", ""), ("table", "FORWARD", "filter"), ("hook", "FORWARD", ""),
        ("table", "POSTROUTING", "nat"), ("nat", "POSTROUTING", ""), ("hook", "POSTROUTING", ""), ("hook", "INPUT", ""),
        ("socket", "pod-a", ""), ("handshake", "pod-a", ""),
    ]  # fmt: skip
    assert rewrites(p) == [
        ("DNAT", Endpoints(*CLIENT), Endpoints(*HALF), Evidence.OBSERVED),
        ("MASQUERADE", Endpoints(*HALF), Endpoints(*INSIDE), Evidence.OBSERVED),
    ]
    assert hop_fields.socket(p.hops[-2]) == Socket(48213, "LISTEN", 4242, "nginx")
    assert p.handshake == Handshake("SYN", True, 0, 128, 1)
    assert (p.verdict, p.outcome) == ("SYN answered by pid 4242 nginx in pod-a", "delivered")
    assert p.complete


def test_the_answer_to_a_syn() -> None:
    p = packet(answer())
    assert rewrites(p) == [
        ("reverse MASQUERADE", Endpoints(*swapped(INSIDE)), Endpoints(*swapped(HALF)), Evidence.OBSERVED),
        ("reverse DNAT", Endpoints(*swapped(HALF)), Endpoints(*swapped(CLIENT)), Evidence.OBSERVED),
    ]
    assert (p.netns, p.endpoints, p.tcp_flags) == ("pod-a", Endpoints(*swapped(INSIDE)), "SYN ACK")
    assert p.flow == Flow(Endpoints(*CLIENT), Endpoints(*swapped(INSIDE)), "ESTABLISHED", True, 0)
    assert (p.verdict, p.outcome) == ("forwarded to eth0", "forwarded")


def test_interleaved_packets_are_kept_apart() -> None:
    first, second = node_port(), node_port(3 << 8, SECOND + 500)
    together, alone = packets(first, second), [packet(first), packet(second)]
    assert [p.number for p in together] == [1, 2]
    assert [p.hops for p in together] == [p.hops for p in alone]
    assert all(p.complete for p in together)


def test_packets_are_emitted_oldest_first() -> None:
    assert [p.identity for p in packets(answer(), node_port())] == [1 << 8, 2 << 8]


def test_batches_may_cut_anywhere() -> None:
    whole = node_port()
    assembler = PacketAssembler(hops(), wall_offset=5)
    for row in whole.rows:
        assembler.feed(row)
    (p,) = assembler.flush()
    assert p.hops == packet(whole).hops
    assert p.time == SECOND + 5
    assert (assembler.events, assembler.flush()) == (12, [])


def test_a_packet_is_closed_after_the_idle_timeout() -> None:
    t = Trail(CLIENT).hook("INPUT").hook("INPUT")
    last = SECOND + 1000
    assembler = PacketAssembler(hops())
    assembler.feed(t.batch)
    assert assembler.closed(last + IDLE_NS) == []
    assert [p.identity for p in assembler.closed(last + IDLE_NS + 1)] == [t.packet]
    assert assembler.closed(last + 9 * IDLE_NS) == []


def test_events_after_the_idle_timeout_become_a_second_packet() -> None:
    t = Trail(CLIENT).hook("OUTPUT").hook("POSTROUTING")
    assembler = PacketAssembler(hops(), idle_ns=10)
    assembler.feed(t.rows[0])
    (first,) = assembler.closed(2 * SECOND)
    assembler.feed(t.rows[1])
    (rest,) = assembler.closed(3 * SECOND)
    assert (first.identity, first.number, first.complete, first.continues) == (t.packet, 1, True, 0)
    assert (rest.identity, rest.number, rest.complete, rest.continues) == (t.packet, 2, True, first.time)


@pytest.mark.parametrize("cut", range(1, 11))
def test_the_rest_of_a_packet_has_the_fields_of_the_whole_packet(cut: int) -> None:
    rows = shortened(node_port().batch)
    assembler = PacketAssembler(hops(), idle_ns=10)
    assembler.feed(rows[:cut])
    (first,) = assembler.closed(2 * SECOND)
    assembler.feed(rows[cut:])
    (rest,) = assembler.closed(3 * SECOND)
    together = PacketAssembler(hops(), idle_ns=10)
    together.feed(rows)
    (one,) = together.closed(3 * SECOND)
    assert [r[:3] for r in rewrites(first) + rewrites(rest)] == [r[:3] for r in rewrites(one)]
    assert len(first.hops) + len(rest.hops) == len(one.hops) and rest.complete
    fields = [(p.family, p.protocol, p.endpoints, p.tcp_flags, p.length, p.seq, p.verdict, p.outcome) for p in (rest, one)]
    assert fields[0] == fields[1]


def test_a_rest_is_incomplete_when_an_event_before_it_was_lost() -> None:
    t = Trail(CLIENT).hook("PREROUTING").hook("FORWARD").hook("POSTROUTING").hook("POSTROUTING")
    for kept, complete in (((0,), (1, 2, 3)), True), (((0, 2), (3,)), False), (((0,), (2, 3)), False):
        assembler = PacketAssembler(hops(), idle_ns=10)
        emitted = []
        for now, rows in enumerate(kept, 2):
            assembler.feed(np.concatenate([t.rows[n] for n in rows]))
            emitted += assembler.closed(now * SECOND)
        assert (emitted[1].complete, emitted[1].continues) == (complete, emitted[0].time)


def test_packets_closed_long_ago_are_forgotten() -> None:
    t, late = Trail(CLIENT).hook("OUTPUT").hook("POSTROUTING"), Trail(CLIENT, 2 << 8, 30 * SECOND).hook("OUTPUT")
    assembler = PacketAssembler(hops(), idle_ns=10)
    for now, rows in (2, t.rows[0]), (31, late.batch), (32, t.rows[1]):
        assembler.feed(rows)
        emitted = assembler.closed(now * SECOND)
    assert (emitted[0].identity, emitted[0].complete, emitted[0].continues) == (t.packet, False, 0)


@pytest.mark.parametrize("missing", [0, 1, 5, 10])
def test_a_gap_in_the_event_numbers_is_a_lost_event(missing: int) -> None:
    t = node_port()
    del t.rows[missing]
    assert not packet(t).complete


def test_a_gap_before_the_last_event() -> None:
    assert not packet(Trail(CLIENT).hook("INPUT").lose().add("SOCKET", object=48213, state=10)).complete
    assert packet(Trail(CLIENT).hook("INPUT").lose()).complete, "an event lost at the end leaves no gap"


def test_the_event_numbers_of_a_copy_fill_no_gap() -> None:
    """A copy continues with the number of its original, and the original continues with the same numbers."""
    t = Trail(CLIENT).hook("PREROUTING").hook("INPUT", flags="CLONE")
    assert packet(t).complete
    assert not packet(t.add("SOCKET", object=48213, state=10)).complete


MS = 1_000_000
SKIPPED = "another probe was running"


def complete(loss: Loss, *trails: Trail) -> list[bool]:
    assembler = PacketAssembler(hops())
    for trail in trails:
        assembler.feed(trail.batch)
    assembler.add_losses([loss], 10 * SECOND)
    return [p.complete for p in assembler.flush()]


def test_a_skipped_program_makes_the_packets_open_at_that_time_incomplete() -> None:
    """A skipped program leaves no gap. All these packets are open when the loss is reported."""
    at = [Trail(CLIENT, n << 8, SECOND + n * 100 * MS).hook("INPUT") for n in range(1, 6)]
    loss = Loss("hook", -1, 1, SKIPPED, SECOND + 290 * MS, SECOND + 390 * MS)
    assert complete(loss, *at) == [True, True, False, False, True]
    assert complete(Loss("hook", -1, 1, SKIPPED), *at) == [False] * 5, "the time of the loss is not known"
    assert complete(Loss("clone", -1, 1, SKIPPED), *at) == [True] * 5, "only a copy may be missing"
    assert complete(Loss(LEFT_OUT, 0, 1, "the ring buffer was nearly full"), *at) == [True] * 5, "the others stay whole"


def test_an_event_without_room_leaves_a_gap_unless_it_was_the_last() -> None:
    def loss(probe: str) -> Loss:
        return Loss(probe, 0, 1, NO_ROOM, SECOND - MS, SECOND + 5 * MS)

    early, late = Trail(CLIENT, 1 << 8).hook("INPUT"), Trail(CLIENT, 2 << 8, SECOND + 900 * MS).hook("INPUT")
    assert complete(loss("hook"), early, late) == [False, True], "the second packet would have a gap in its numbers"
    taken = Trail(CLIENT).hook("INPUT").add("SOCKET", object=48213, state=1)
    freed = Trail(CLIENT).hook("INPUT").add("DROP", reason=2, object=0x1010)
    assert complete(loss("hook"), taken) == complete(loss("drop"), freed) == [True], "no event of that kind can follow"
    assert complete(loss("drop"), taken) == [False]
    continued = Trail(CLIENT).hook("PREROUTING").now(time=SECOND + 500 * MS).hook("INPUT")
    assert complete(loss("hook"), continued) == [True]


def test_too_many_losses_merge_the_oldest_into_one() -> None:
    history = LossHistory()
    for n in range(3 * MAX_LOSSES):
        history.add([Loss("hook", -1, 1, SKIPPED, n * SECOND, n * SECOND + MS)], 0)
    assert len(history) == MAX_LOSSES
    (first,) = record.events(Trail(CLIENT, start=2 * MAX_LOSSES * SECOND - 500 * MS).hook("INPUT").batch)
    (last,) = record.events(Trail(CLIENT, start=3 * MAX_LOSSES * SECOND - 500 * MS).hook("INPUT").batch)
    assert history.concerns([first]) and not history.concerns([last])
    history.forget(3 * MAX_LOSSES * SECOND)
    assert not history


def test_the_connection_is_unknown_when_the_whole_event_was_lost() -> None:
    """A short event shows that there is a connection, but not its addresses."""
    t = node_port().now(header=INSIDE)
    rows = shortened(t.batch)
    same = (rows["flags"] & record.Flag.FLAG_SAME != 0) & (rows["kind"] == record.Kind.EVENT_HOOK)
    assembler = PacketAssembler(hops())
    assembler.feed(np.concatenate([rows[same][:1], t.rows[-2]]))
    (p,) = assembler.flush()
    assert p.endpoints.dst == INSIDE[2] and p.flow is None and not p.complete


def test_a_packet_without_addresses_is_counted_and_not_emitted() -> None:
    t = Trail(CLIENT).lose().add("SYN", verdict=0, accept_len=3, accept_max=2, flags="NO_HEADER")
    assembler = PacketAssembler(hops())
    assembler.feed(t.batch)
    assert (assembler.flush(), assembler.unaddressed) == ([], 1)
    whole = node_port()
    assembler.feed(shortened(whole.batch)[3:4])
    assert (assembler.flush(), assembler.unaddressed) == ([], 2), "a short event, and its whole event was lost"


def test_the_connection_is_that_of_the_first_namespace() -> None:
    """The conntrack of a pod does not know the node's NAT."""
    t = Trail(CLIENT, orig=CLIENT, reply=swapped(INSIDE), ct_info=2).hook("PREROUTING")
    t.now(netns=POD, header=INSIDE, orig=INSIDE, reply=swapped(INSIDE), zone=9).hook("INPUT")
    assert packet(t).flow == Flow(Endpoints(*CLIENT), Endpoints(*swapped(INSIDE)), "NEW", False, 0)
    assert packet(Trail(CLIENT).hook("INPUT")).flow is None


@pytest.mark.parametrize(
    ("ct_info", "state", "is_reply"),
    [(0, "ESTABLISHED", False), (1, "RELATED", False), (2, "NEW", False), (3, "ESTABLISHED", True), (4, "RELATED", True)],
)
def test_connection_states(ct_info: int, state: str, is_reply: bool) -> None:
    flow = packet(Trail(CLIENT, orig=CLIENT, reply=swapped(CLIENT), ct_info=ct_info, zone=5).hook("INPUT")).flow
    assert flow == Flow(Endpoints(*CLIENT), Endpoints(*swapped(CLIENT)), state, is_reply, 5)


def test_invalid_is_reported_only_where_conntrack_is_in_use() -> None:
    dropped = Trail(CLIENT, 5 << 8, 2 * SECOND).table("FORWARD", "filter", verdict="DROP")
    tracked = Trail(CLIENT, orig=CLIENT, reply=swapped(CLIENT)).hook("INPUT")
    elsewhere = Trail(CLIENT, netns=OTHER_POD, orig=CLIENT, reply=swapped(CLIENT)).hook("INPUT")
    assert packet(dropped).verdict == "DROPPED in filter/FORWARD"
    assert packets(tracked, dropped)[1].verdict == "DROPPED in filter/FORWARD, conntrack state INVALID"
    assert packets(elsewhere, dropped)[1].verdict == "DROPPED in filter/FORWARD"
    assembler = PacketAssembler(hops(), tracking={NODE})
    assembler.feed(dropped.batch)
    assert assembler.flush()[0].verdict == "DROPPED in filter/FORWARD, conntrack state INVALID"


def test_a_packet_untracked_by_a_rule() -> None:
    t = Trail(CLIENT, ct_info=7).table("INPUT", "filter", verdict="DROP")
    assert packet(t).verdict == "DROPPED in filter/INPUT, conntrack state UNTRACKED"


def test_ipv6() -> None:
    t = Trail(CLIENT6, in_name="eth0", orig=CLIENT6, reply=swapped(INSIDE6), ct_info=2).nat("PREROUTING", 1, INSIDE6)
    p = packet(t.hook("PREROUTING").hook("FORWARD", out_name="cni0").hook("POSTROUTING", out_name="cni0"))
    assert (p.family, p.endpoints, p.iface) == ("IPv6", Endpoints(*CLIENT6), "eth0")
    assert rewrites(p) == [("DNAT", Endpoints(*CLIENT6), Endpoints(*INSIDE6), Evidence.OBSERVED)]
    assert p.verdict == "forwarded to cni0"


def test_ipv4_at_an_ipv6_socket_is_reported_once() -> None:
    """tcp_v6_syn_recv_sock calls tcp_v4_syn_recv_sock, and both report."""
    t = Trail(CLIENT, tcp_flags=16).add("SOCKET", object=48213, state=10)
    for _ in range(2):
        t.add("ACCEPT", verdict=0, accept_len=129, accept_max=128, flags="NO_HEADER")
    p = packet(t)
    assert [h.kind for h in p.hops] == ["socket", "handshake"]
    assert p.complete


def test_events_are_sorted_by_time() -> None:
    t = node_port()
    assembler = PacketAssembler(hops())
    assembler.feed(np.concatenate(t.rows[::-1]))
    assert assembler.flush()[0].hops == packet(t).hops
