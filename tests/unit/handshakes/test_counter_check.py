# SPDX-License-Identifier: Apache-2.0
"""Which changes of the kernel's counters a packet explains, and which remain open."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.syns import FakeInspector, at_listener, decision_detail, last_ack, syn
from tracer.handshakes.counter_check import CounterCheck, explained_by
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.hop import Drop, DropHop
from tracer.model.namespace_name import Netns
from tracer.model.packet import Packet

POD = Netns("pod-a")


def counted(packet: Packet) -> dict[str, int]:
    assert {netns for netns, _ in explained_by(packet)} <= {"pod-a"}
    return dict(Counter(counter for _, counter in explained_by(packet)))


@pytest.mark.parametrize(
    ("packet", "counters"),
    [
        (syn(*at_listener(True)), {}),
        (syn(*at_listener(False, accept_queue=129)), {"ListenOverflows": 1, "ListenDrops": 1}),
        (syn(*at_listener(False, syn_queue=128, syncookies=0)), {"TCPReqQFullDrop": 1, "ListenDrops": 1}),
        (syn(*at_listener(False, syn_queue=100, syncookies=0)), {"ListenDrops": 1}),
        (syn(*at_listener(True, cookie=True, syn_queue=128)), {"TCPReqQFullDoCookies": 1, "SyncookiesSent": 1}),
        (
            syn(*at_listener(False, syn_queue=129, accept_queue=129)),
            {"TCPReqQFullDoCookies": 1, "ListenOverflows": 1, "ListenDrops": 1},
        ),
        (syn(*at_listener(False, syn_queue=128, accept_queue=129)), {"ListenOverflows": 1, "ListenDrops": 1}),
        (syn(*at_listener(True, syn_queue=128, syncookies=0)), {}),
        (last_ack(True), {}),
        (last_ack(False, queue=129), {"ListenOverflows": 1, "ListenDrops": 1}),
        (syn(decision_detail("time-wait", 9, answer="ack", tsval=1, ts_recent=9000)), {"PAWSEstab": 1, "PAWSTimewait": 1}),
        (syn(decision_detail("time-wait", 9, answer="ack", tsval=9000, ts_recent=1)), {}),
        (syn(decision_detail("time-wait", 9, answer="taken over", tsval=1, ts_recent=9000)), {}),
        (syn(decision_detail("table-full", 9)), {"conntrack_drop": 1}),
        (syn(decision_detail("confirm", 9)), {"conntrack_drop": 1, "conntrack_insert_failed": 1}),
        (syn(DropHop(9, Netns("pod-a"), drop=Drop("IP_RPFILTER", "ip_rcv_finish_core"))), {"IPReversePathFilter": 1}),
        (syn(DropHop(9, Netns("pod-a"), drop=Drop("TCP_RFC7323_PAWS", "tcp_validate_incoming"))), {}),
    ],
)
def test_explained(packet: Packet, counters: dict[str, int]) -> None:
    assert counted(packet) == counters


def test_copies_explain_nothing() -> None:
    assert counted(syn(DropHop(9, Netns("pod-a"), drop=Drop("IP_RPFILTER", "f"), clone=True))) == {}


def test_only_namespaces_that_can_be_compared_are_counted() -> None:
    """Namespaces come and go; one without a reading at the start needs no count."""
    check = CounterCheck(FakeInspector())
    for n in range(1000):
        check.feed(syn(DropHop(9, Netns(f"netns {n}"), drop=Drop("IP_RPFILTER", "ip_rcv_finish_core")), identity=n))
    check.feed(syn(DropHop(9, Netns("pod-a"), drop=Drop("IP_RPFILTER", "ip_rcv_finish_core"))))
    assert check._explained == {("pod-a", "IPReversePathFilter"): 1}


def test_differences() -> None:
    spaces = FakeInspector()
    spaces.fake.counted = {"ListenDrops": 10, "ListenOverflows": 4, "PAWSEstab": 0}
    check = CounterCheck(spaces)
    check.feed(syn(*at_listener(False, accept_queue=129)))
    spaces.fake.counted = {"ListenDrops": 12, "ListenOverflows": 5, "PAWSEstab": 0}
    differences = {(d.netns, d.counter): d for d in check.differences()}
    assert differences[POD, "ListenOverflows"] == CounterMismatch(Netns("pod-a"), "ListenOverflows", 1, 1)
    assert differences[POD, "ListenOverflows"].open == 0
    drops = differences[POD, "ListenDrops"]
    assert (drops.counted, drops.explained, drops.open) == (2, 1, 1)
    assert drops.text == (
        "ListenDrops in pod-a: 2 counted, 1 explained; 1 were packets that this run did not see or did not ask for"
    )
    assert ("pod-a", "PAWSEstab") not in differences, "it did not change and was not expected to"


def test_more_explained_than_counted_is_open_too() -> None:
    spaces = FakeInspector()
    check = CounterCheck(spaces)
    check.feed(syn(*at_listener(False, syn_queue=100, syncookies=0)))
    (one,) = [d for d in check.differences() if d.netns == "pod-a"]
    assert one.text == "ListenDrops in pod-a: 0 counted, 1 explained; 1 more than the kernel counted" and one.open == 1


def test_a_counter_that_the_kernel_lacks_is_not_compared() -> None:
    spaces = FakeInspector()
    spaces.fake.counted = {"PAWSEstab": 3}
    check = CounterCheck(spaces)
    check.feed(syn(decision_detail("time-wait", 9, answer="ack", tsval=1, ts_recent=9000)))
    spaces.fake.counted = {"PAWSEstab": 4}
    assert [(d.counter, d.open) for d in check.differences() if d.netns == "pod-a"] == [("PAWSEstab", 0)]
    spaces.fake.counted = {}
    assert check.differences() == [], "a namespace that is gone"
