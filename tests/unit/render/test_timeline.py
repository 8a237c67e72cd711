# SPDX-License-Identifier: Apache-2.0
"""A timeline as text: a tree in order of time, with only the entries that were not printed before."""

from __future__ import annotations

import io

from tests.support.syns import REQUESTED
from tracer.model.connection import ConnectionKey
from tracer.model.namespace_name import HOST, Netns
from tracer.model.timeline import PathStep, Timeline, TimelineEntry
from tracer.render import _timeline
from tracer.render._style import Styler

MS = 1_000_000


def lines(timeline: Timeline) -> list[str]:
    return _timeline.block(timeline, Styler(io.StringIO()), lambda ns: "12:00:00.000")


def a_timeline(**more: object) -> Timeline:
    stages = (PathStep(2 * MS, HOST, "PREROUTING DNAT a -> b"), PathStep(1_200 * MS, Netns("pod-a"), "in pod-a"))
    steps = [
        TimelineEntry(0, "packet", "SYN, 60 B", "->", "delivered", stages=stages),
        TimelineEntry(4 * MS, "conntrack", "created"),
        TimelineEntry(9 * MS, "packet", "SYN ACK, 60 B", "<-", "dropped", "joined by its addresses", bad=True),
    ]
    fields: dict[str, object] = {"key": ConnectionKey("TCP", REQUESTED, 7, HOST), "entries": steps, "packets": 2, **more}
    return Timeline(began=0, origin=0, asked=REQUESTED, **fields)  # type: ignore[arg-type]


def test_a_tree() -> None:
    assert lines(a_timeline(state="closed", cause="accepted", good=True, last=9 * MS, lost=1)) == [
        "12:00:00.000  TCP 192.168.56.1:40812 -> 192.168.56.10:30285  accepted, closed after 9.00 ms  2 packets  1 lost here"
        "  tracked in node, zone 7",
        "    +0.00 ms  -> SYN, 60 B",
        "              |     +2.00 ms  PREROUTING DNAT a -> b",
        "              |      +1.20 s  in pod-a",
        "              `               => delivered",
        "    +4.00 ms  ## conntrack entry created",
        "    +9.00 ms  <- SYN ACK, 60 B  joined by its addresses  => dropped",
    ]


def test_a_timeline_that_was_printed_before_is_marked_as_continued() -> None:
    head = lines(a_timeline(printed=1, why="quiet"))[0]
    assert head.endswith("  continued  SYN not seen, open  2 packets  tracked in node, zone 7  (idle for 5 s, printed so far)")


def test_entries_left_out_and_missing_tracking_are_reported() -> None:
    printed = lines(a_timeline(left_out=12, key=ConnectionKey("UDP", REQUESTED)))
    assert printed[0].endswith("30285  no answer seen  2 packets  not tracked") and "UDP" in printed[0]
    assert printed[-1].strip() == "12 steps between the first and the last were not kept"


def test_names_cannot_control_the_terminal() -> None:
    evil = TimelineEntry(0, "packet", "\x1b[2J", "->", "\x1b]0;x\x07", "\x1b", (PathStep(0, Netns("x"), "\x1b[1m"),))
    assert "\x1b" not in "".join(lines(a_timeline(entries=[evil])))


def a_packet(at: int, *stages: PathStep, end: str = "delivered", bad: bool = False) -> TimelineEntry:
    return TimelineEntry(at, "packet", "ACK, 52 B", "->", end, stages=stages, bad=bad)


def test_a_repeated_path_is_one_line() -> None:
    """Each path is printed once; later packets on the same path show only new stages."""
    nat, far = PathStep(MS, HOST, "PREROUTING DNAT a -> b  Service shop/cart"), PathStep(2 * MS, Netns("pod-a"), "in pod-a")
    known = PathStep(MS, HOST, "PREROUTING DNAT a -> b")
    shake = PathStep(3 * MS, Netns("pod-a"), "ACK taken, accept queue 0/128")
    elsewhere = PathStep(MS, HOST, "PREROUTING DNAT a -> c")
    steps = [
        a_packet(0, nat, far, PathStep(2 * MS, Netns("pod-a"), "socket LISTEN, nginx (pid 42)")),
        a_packet(10 * MS, known, far, PathStep(2 * MS, Netns("pod-a"), "socket ESTABLISHED, nginx (pid 42)")),
        a_packet(20 * MS, known, far, shake),
        a_packet(30 * MS, elsewhere, far),
        a_packet(40 * MS, known, end="dropped", bad=True),
    ]
    _, *printed = lines(a_timeline(entries=steps))
    assert printed[5] == "   +10.00 ms  -> ACK, 52 B  => delivered, same way, +2.00 ms"
    assert printed[6:9] == [
        "   +20.00 ms  -> ACK, 52 B  same way, and",
        "              |     +3.00 ms  ACK taken, accept queue 0/128",
        "              `               => delivered",
    ]
    assert printed[9:13] == [
        "   +30.00 ms  -> ACK, 52 B",
        "              |     +1.00 ms  PREROUTING DNAT a -> c",
        "              |     +2.00 ms  in pod-a",
        "              `               => delivered",
    ]
    assert printed[13:] == [
        "   +40.00 ms  -> ACK, 52 B",
        "              |     +1.00 ms  PREROUTING DNAT a -> b",
        "              `               => dropped",
    ]


def test_the_result_is_in_the_first_line() -> None:
    refused = a_timeline(state="refused", cause="no endpoints", last=5 * MS, retransmitted=2)
    assert "  no endpoints, refused after 5.00 ms  2 packets  2 sent again  tracked" in lines(refused)[0]
    assert "  SYN not settled, open  " in lines(a_timeline(whole=True))[0]
    assert "  answered  2 packets" in lines(a_timeline(key=ConnectionKey("UDP", REQUESTED), state="answered"))[0]
