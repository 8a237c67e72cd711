"""A timeline as text: a tree whose branches end, in order of time, and only what has not been told."""

from __future__ import annotations

import io

from tests.syns import ASKED
from tracer.render import _timeline
from tracer.render._ink import Ink
from tracer.render._ipvs import endpoint
from tracer.timelines.model import Identity, Stage, Step, Timeline

MS = 1_000_000


def lines(timeline: Timeline) -> list[str]:
    return _timeline.block(timeline, Ink(io.StringIO()), lambda ns: "12:00:00.000", endpoint)


def a_timeline(**more: object) -> Timeline:
    stages = (Stage(2 * MS, "node", "PREROUTING DNAT a -> b"), Stage(1_200 * MS, "pod-a", "in pod-a"))
    steps = [
        Step(0, "packet", "SYN, 60 B", "->", "delivered", stages=stages),
        Step(4 * MS, "conntrack", "created"),
        Step(9 * MS, "packet", "SYN ACK, 60 B", "<-", "dropped", "joined by its addresses", bad=True),
    ]
    fields: dict[str, object] = {"identity": Identity("TCP", ASKED, 7, "node"), "steps": steps, "packets": 2, **more}
    return Timeline(began=0, origin=0, asked=ASKED, **fields)  # type: ignore[arg-type]


def test_a_tree() -> None:
    assert lines(a_timeline(state="closed")) == [
        "12:00:00.000  TCP 192.168.56.1:40812 -> 192.168.56.10:30285  tracked in node, zone 7  2 packets, closed",
        "    +0.00 ms  -> SYN, 60 B",
        "              |     +2.00 ms  PREROUTING DNAT a -> b",
        "              |      +1.20 s  in pod-a",
        "              `               => delivered",
        "    +4.00 ms  ## created",
        "    +9.00 ms  <- SYN ACK, 60 B  joined by its addresses",
        "              `               => dropped",
    ]


def test_what_was_told_before_is_said() -> None:
    head = lines(a_timeline(told=1, why="quiet"))[0]
    assert head.endswith("2 packets, open  (quiet)  goes on")


def test_what_was_not_kept_and_not_tracked_is_said() -> None:
    told = lines(a_timeline(left_out=12, identity=Identity("UDP", ASKED)))
    assert "  not tracked  " in told[0] and "UDP" in told[0]
    assert told[-1].strip() == "12 steps between the first and the last were not kept"


def test_names_cannot_speak_to_the_terminal() -> None:
    evil = Step(0, "packet", "\x1b[2J", "->", "\x1b]0;x\x07", "\x1b", (Stage(0, "x", "\x1b[1m"),))
    assert "\x1b" not in "".join(lines(a_timeline(steps=[evil])))
