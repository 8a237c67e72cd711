# SPDX-License-Identifier: Apache-2.0
"""A connection's timeline as a tree: a line for each step, and below a packet what happened to it on its way.

14:52:08.826  TCP 192.168.56.1:39902 -> 192.168.56.10:30285  accepted, closed after 161.20 ms  10 packets  tracked in node
    +0.00 ms  -> SYN, 60 B
              |    +11.59 ms  PREROUTING DNAT 192.168.56.10:30285 -> 10.244.0.11:8080  Service default/http-proxy
              `               => SYN answered by pid 219 http-proxy in pod-a
   +43.20 ms  <- SYN ACK, 60 B
   ...
   +61.01 ms  -> PSH ACK, 91 B  => delivered to pid 219 http-proxy in pod-a, same way, +3.18 ms

The first line says what came of it. A packet that goes the way of an earlier one has a line of its own only for what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracer.model.timeline import Stage, Timeline, TimelineEntry
from tracer.render._style import Styler, plain
from tracer.util.endpoint_format import format_endpoint

TIME = 12
MARGIN = TIME + 2
MARKS = {"conntrack": "##", "change": "%%", "verdict": "=="}
"""What stands where a packet has its direction."""
WHY = {
    "quiet": "nothing for 5 s, told so far",
    "aged out": "aged out for want of room, what follows begins anew",
    "the run ended": "the run ended",
}
Ways = dict[str, set[tuple[str, str]]]
"""Stages that packets of a direction were seen to go through."""


def block(timeline: Timeline, style: Styler, clock: Callable[[int], str]) -> list[str]:
    """Its lines: those steps that have not been told before."""
    orig = timeline.asked
    ends = f"{format_endpoint(orig.src, orig.sport)} -> {format_endpoint(orig.dst, orig.dport)}"
    parts = [f"{clock(timeline.began)}  {timeline.key.protocol} {style('strong', ends)}"]
    if timeline.printed:
        parts.append(style("quiet", "goes on"))
    outcome = plain(_outcome(timeline))
    parts.append(outcome and style("good" if timeline.good else "bad" if timeline.cause else "strong", outcome))
    parts.append(f"{timeline.packets} packet{'s' * (timeline.packets != 1)}")
    parts += [
        style("bad", f"{n} {what}") for n, what in ((timeline.retransmitted, "sent again"), (timeline.lost, "lost here")) if n
    ]
    parts.append(style("quiet", plain(_tracked(timeline))))
    if timeline.why:
        parts.append(style("quiet", f"({WHY.get(timeline.why, timeline.why)})"))
    lines = [style.fold("  ".join(part for part in parts if part), MARGIN)]
    ways: Ways = {}
    for step in timeline.entries:
        lines += _step(step, timeline, style, ways)
    if timeline.left_out:
        lines.append(
            f"{'':{MARGIN}}{style('doubt', f'{timeline.left_out} steps between the first and the last were not kept')}"
        )
    return lines


def _outcome(timeline: Timeline) -> str:
    """What came of it so far: "accepted, closed after 161.20 ms"."""
    protocol = timeline.key.protocol
    if protocol != "TCP":
        return "answered" if timeline.state == "answered" else "no answer seen" * (not protocol.startswith("ICMP"))
    cause = timeline.cause or ("SYN not settled" if timeline.whole else "SYN not seen")
    if timeline.state == "open" and timeline.cause and (not timeline.good or timeline.cause.startswith("half-open")):
        return timeline.cause
    after = f" after {_delta(timeline.last - timeline.origin)[1:]}" if timeline.state != "open" else ""
    return f"{cause}, {timeline.state}{after}"


def _tracked(timeline: Timeline) -> str:
    identity = timeline.key
    if not identity.netns:
        return "not tracked"
    zone = f", zone {identity.zone}" if identity.zone else ""
    return f"tracked in {identity.netns}{zone}"


def _step(entry: TimelineEntry, timeline: Timeline, style: Styler, ways: Ways) -> Iterator[str]:
    state = style("quiet", f"{_delta(entry.time - timeline.origin):>{TIME}}")
    mark = entry.direction or MARKS.get(entry.kind, "")
    shade = "bad" if entry.bad else "change" if entry.kind == "packet" else "quiet" if entry.kind == "conntrack" else "strong"
    text = "conntrack entry " * (entry.kind == "conntrack") + entry.text
    line = f"{state}  {mark:<2} {style(shade, plain(text))}"
    if entry.remark:
        line += "  " + style("doubt", plain(entry.remark))
    stages, known = _new(entry, ways)
    end = style("bad" if entry.bad else "good", plain(f"=> {entry.end}")) if entry.end else ""
    if end and not stages:
        took = f", same way, {_delta(entry.stages[-1].time)}" if known else ""
        yield style.fold(f"{line}  {end}{style('quiet', took) if took else ''}", MARGIN + 3)
        return
    yield style.fold(line + ("  " + style("quiet", "same way, and") if known else ""), MARGIN + 3)
    rows = [f"{style('quiet', f'{_delta(s.time):>{TIME}}')}  {plain(s.text)}" for s in stages]
    rows += [f"{'':{TIME}}  {end}"] if end else []
    for at, row in enumerate(rows):
        branch = "`" if at == len(rows) - 1 else "|"
        yield style.fold(f"{'':{MARGIN}}{branch} {row}", MARGIN + TIME + 6)


def _new(entry: TimelineEntry, ways: Ways) -> tuple[tuple[Stage, ...], bool]:
    """Those of its stages that no packet of its direction went through before; and whether it did go through any of those."""
    if not entry.stages:
        return (), False
    before = ways.setdefault(entry.direction, set())
    keys = [(s.netns, "socket" if s.text.startswith("socket") else s.text.partition("  ")[0]) for s in entry.stages]
    new = tuple(stage for stage, key in zip(entry.stages, keys, strict=True) if key not in before)
    # One that went elsewhere is told as a whole.
    elsewhere = entry.bad or any(" -> " in stage.text for stage in new)
    before.update(keys)
    return (entry.stages, False) if elsewhere or len(new) == len(keys) else (new, True)


def _delta(ns: int) -> str:
    return f"{ns / 1e6:+.2f} ms" if abs(ns) < 999_995_000 else f"{ns / 1e9:+.2f} s"
