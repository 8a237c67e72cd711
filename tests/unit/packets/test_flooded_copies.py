# SPDX-License-Identifier: Apache-2.0
"""A packet that a bridge floods: the copy that reaches its destination is the packet; the other copies are ignored."""

from __future__ import annotations

import io
from typing import Any

from tests.support.builders import NODE, OTHER_POD, POD, Trail, packet, swapped
from tests.support.syns import FakeInspector
from tracer.connections import entries
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.render.text import TextOutput

REQUEST = ("192.168.56.1", 40812, "192.168.56.10", 30285)
INSIDE = ("192.168.56.1", 40812, "10.244.0.11", 8080)
ANSWER = {"packet": 2 << 8, "start": 1_005_000_000, "tcp_flags": 18, "seq": 90, "ack": 8}
LAST = {"packet": 3 << 8, "start": 1_009_000_000, "tcp_flags": 16, "seq": 8, "ack": 91}
OTHERHOST, NO_SOCKET, RECEIVED, IN_TCP = 11, 2, 0x70, 0x20
FURTHER_POD = 400


def sent(**fields: Any) -> Trail:
    """A SYN on its way to pod-a, up to the bridge."""
    t = Trail(REQUEST, **{"in_name": "eth0", "orig": REQUEST, "reply": swapped(INSIDE), "ct_info": 2, **fields})
    t.hook("PREROUTING").nat("PREROUTING", 1, INSIDE).hook("FORWARD", out_name="cni0")
    return t.hook("POSTROUTING", in_name="", out_name="cni0").now(in_name="eth0", orig=None, reply=None)


def added(t: Trail, kind: str, **fields: object) -> Trail:
    """Adds an event. A copy's event takes the next number of the packet, and the packet's next event takes the same number."""
    t.add(kind, **fields)
    t.hop -= "CLONE" in str(fields.get("flags", ""))
    return t


def elsewhere(t: Trail, netns: int, flags: str = "CLONE", reason: int = OTHERHOST) -> Trail:
    return added(t, "DROP", netns=netns, object=RECEIVED, reason=reason, flags=flags)


def taken(t: Trail, flags: str = "CLONE") -> Trail:
    added(t, "SOCKET", netns=POD, object=48213, state=10, flags=flags)
    return added(t, "SYN", netns=POD, verdict=1, accept_max=50, flags=flags)


def flooded(reason: int = OTHERHOST) -> Trail:
    """The last pod's port gets the packet itself, all other ports get copies; pod-a gets a copy."""
    t = elsewhere(sent(), OTHER_POD, reason=reason)
    return elsewhere(taken(t), FURTHER_POD, "", reason)


def connected() -> list[Packet]:
    """The whole handshake; the SYN and the last ACK are flooded."""
    answer = Trail(swapped(INSIDE), **ANSWER, in_name="cni0", orig=REQUEST, reply=swapped(INSIDE), ct_info=3).hook("PREROUTING")
    ack = elsewhere(sent(**{**LAST, "ct_info": 0}), OTHER_POD)
    added(ack, "SOCKET", netns=POD, object=48213, state=10, flags="CLONE")
    elsewhere(added(ack, "ACCEPT", netns=POD, verdict=1, accept_max=50, flags="CLONE"), FURTHER_POD, "")
    return [packet(t) for t in (flooded(), answer, ack)]


def verdict(*packets: Packet) -> HandshakeVerdict:
    syns = HandshakeAnalyzer(FakeInspector())
    for each in packets:
        syns.feed(each)
    (only,) = syns.flush()
    return only


def printed(made: Packet, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    TextOutput(out, io.StringIO(), verbose).packet(made)
    return out.getvalue().splitlines()


def test_the_copy_that_a_socket_took_is_the_packet() -> None:
    syn = packet(flooded())
    assert (syn.verdict, syn.outcome) == ("SYN answered by pid 4242 nginx in pod-a", "delivered")
    assert syn.handshake and syn.handshake.accepted and syn.drop is None
    assert [h.netns for h in syn.hops if h.clone] == ["pod-b", f"netns {FURTHER_POD}"]


def test_the_syn_is_accepted_where_the_socket_is() -> None:
    result = verdict(*connected())
    assert result.cause.text == "accepted by nginx (pid 4242) in pod-a"
    assert result.cause.good and result.attempt and result.attempt.place == "pod-a"


def test_a_pod_without_a_listener_refuses() -> None:
    t = added(elsewhere(sent(), OTHER_POD), "DROP", netns=POD, object=IN_TCP, reason=NO_SOCKET, flags="CLONE")
    refused = packet(elsewhere(t, FURTHER_POD, ""))
    assert (refused.verdict, refused.outcome) == ("no listener in pod-a: TCP 10.244.0.11:8080", "refused")
    assert "no listener" in verdict(refused).cause.text and "in pod-a" in verdict(refused).cause.text


def test_a_kernel_without_drop_reasons_is_judged_by_the_function() -> None:
    assert packet(flooded(reason=0)).verdict == "SYN answered by pid 4242 nginx in pod-a"


def test_without_a_tracked_copy_the_packet_is_not_called_dropped() -> None:
    """The kernel side forgets a copy that is not seen in time; the client's last ACK shows which socket took the SYN."""
    lost = packet(elsewhere(sent(), FURTHER_POD, ""))
    assert lost.outcome == "unknown"
    assert lost.verdict == (
        f"dropped in netns {FURTHER_POD}: link address of another host (OTHERHOST); no copy was seen at its destination"
    )
    result = verdict(lost, *connected()[1:])
    assert result.cause.text == "accepted by nginx (pid 4242) in pod-a" and result.cause.good
    assert verdict(lost).cause.name == "not known"


def test_a_packet_that_no_local_socket_takes_was_forwarded() -> None:
    lost = packet(elsewhere(elsewhere(sent(), OTHER_POD), FURTHER_POD, ""))
    assert lost.verdict == "forwarded to cni0", "another machine may have taken it"


def test_of_two_copies_that_were_taken_none_is_chosen() -> None:
    t = added(taken(sent()), "SOCKET", netns=OTHER_POD, object=48300, state=10, flags="CLONE")
    both = packet(elsewhere(t, FURTHER_POD, ""))
    assert sum(h.clone for h in both.hops) == 3, "each of them stays a copy"


def test_copies_for_other_hosts_are_printed_as_one_line() -> None:
    t = sent()
    for netns in range(500, 511):
        elsewhere(t, netns)
    made = packet(elsewhere(taken(t), FURTHER_POD, ""))
    lines = printed(made)
    (line,) = [line for line in lines if "OTHERHOST" in line]
    expected = "dropped in 12 namespaces that it is not for: netns 500, netns 501, netns 502 and 9 more (OTHERHOST)"
    assert line.endswith(f"copies       {expected}")
    assert sum("netns 5" in line for line in lines) == 1, lines
    assert sum("OTHERHOST" in line for line in printed(made, verbose=True)) == 12, "all of them with -v"
    assert any(line.strip() == "in pod-a" for line in lines)


def test_a_timeline_shows_the_copies_once() -> None:
    stages = [s.text for s in entries.make_entry(packet(flooded()), "->").stages]
    listener = ["in pod-a, by eth0", "socket LISTEN, nginx (pid 4242)", "SYN taken, accept queue 0/50"]
    assert stages[-4:] == ["2 copies dropped in other namespaces (OTHERHOST)", *listener]


def test_a_packet_that_is_not_flooded_does_not_change() -> None:
    assert NODE == 100
    plain = packet(taken(sent(), flags=""))
    assert not any(h.clone for h in plain.hops) and plain.verdict == "SYN answered by pid 4242 nginx in pod-a"
