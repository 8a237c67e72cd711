# SPDX-License-Identifier: Apache-2.0
"""Formats a connection's timeline as a tree: a line for each entry, and below a packet its stages.

14:52:08.826  TCP 192.168.56.1:39902 -> 192.168.56.10:30285  accepted, closed after 161.20 ms  10 packets  tracked in node
    +0.00 ms  -> SYN, 60 B
              |    +11.59 ms  PREROUTING DNAT 192.168.56.10:30285 -> 10.244.0.11:8080  Service default/http-proxy
              `               => SYN answered by pid 219 http-proxy in pod-a
   +43.20 ms  <- SYN ACK, 60 B
   ...
   +61.01 ms  -> PSH ACK, 91 B  => delivered to pid 219 http-proxy in pod-a, same way, +3.18 ms

The first line has the outcome. For a packet on the same path as an earlier one, only its new stages have lines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracer.model.timeline import PathStep, Timeline, TimelineEntry
from tracer.render._style import Styler, plain
from tracer.util.endpoint_format import format_endpoint

TIME = 12
MARGIN = TIME + 2
MARKS = {"conntrack": "##", "change": "%%", "verdict": "=="}
"""The marks of entries that are not packets, in the column of a packet's direction."""
REASONS = {
    "quiet": "idle for 5 s, printed so far",
    "aged out": "removed because the table is full, later packets start a new timeline",
    "the run ended": "the run ended",
}
SeenStages = dict[str, set[tuple[str, str]]]
"""The stages that packets went through so far, by direction: (namespace, text)."""


def block(timeline: Timeline, style: Styler, stamp: Callable[[int], str]) -> list[str]:
    """Returns the lines of a timeline, with the entries that were not printed before. stamp: formats when it began."""
    orig = timeline.asked
    ends = f"{format_endpoint(orig.src, orig.sport)} -> {format_endpoint(orig.dst, orig.dport)}"
    parts = [stamp(timeline.began), f"{timeline.key.protocol} {style('strong', ends)}"]
    if timeline.printed:
        parts.append(style("quiet", "continued"))
    outcome = plain(_outcome(timeline))
    parts.append(outcome and style("good" if timeline.good else "bad" if timeline.cause else "strong", outcome))
    parts.append(f"{timeline.packets} packet{'s' * (timeline.packets != 1)}")
    trouble = ((timeline.retransmitted, "sent again"), (timeline.lost, "lost here"))
    parts += [style("doubt" if timeline.good else "bad", f"{n} {what}") for n, what in trouble if n]
    parts.append(style("quiet", plain(_tracked(timeline))))
    if timeline.why:
        parts.append(style("quiet", f"({REASONS.get(timeline.why, timeline.why)})"))
    lines = [style.fold("  ".join(part for part in parts if part), MARGIN)]
    seen: SeenStages = {}
    for step in timeline.entries:
        lines += _step(step, timeline, style, seen)
    if timeline.left_out:
        lines.append(
            f"{'':{MARGIN}}{style('doubt', f'{timeline.left_out} steps between the first and the last were not kept')}"
        )
    return lines


def _outcome(timeline: Timeline) -> str:
    """The outcome so far: "accepted, closed after 161.20 ms"."""
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


def _step(entry: TimelineEntry, timeline: Timeline, style: Styler, seen: SeenStages) -> Iterator[str]:
    state = style("quiet", f"{_delta(entry.time - timeline.origin):>{TIME}}")
    mark = entry.direction or MARKS.get(entry.kind, "")
    shade = "bad" if entry.bad else "change" if entry.kind == "packet" else "quiet" if entry.kind == "conntrack" else "strong"
    text = "conntrack entry " * (entry.kind == "conntrack") + entry.text
    line = f"{state}  {mark:<2} {style(shade, plain(text))}"
    if entry.remark:
        line += "  " + style("doubt", plain(entry.remark))
    stages, is_partly_seen = _new_stages(entry, seen)
    end = style("bad" if entry.bad else "good", plain(f"=> {entry.end}")) if entry.end else ""
    if end and not stages:
        took = f", same way, {_delta(entry.stages[-1].time)}" if is_partly_seen else ""
        yield style.fold(f"{line}  {end}{style('quiet', took) if took else ''}", MARGIN + 3)
        return
    yield style.fold(line + ("  " + style("quiet", "same way, and") if is_partly_seen else ""), MARGIN + 3)
    rows = [f"{style('quiet', f'{_delta(s.time):>{TIME}}')}  {plain(s.text)}" for s in stages]
    rows += [f"{'':{TIME}}  {end}"] if end else []
    for at, row in enumerate(rows):
        branch = "`" if at == len(rows) - 1 else "|"
        yield style.fold(f"{'':{MARGIN}}{branch} {row}", MARGIN + TIME + 6)


def _new_stages(entry: TimelineEntry, seen: SeenStages) -> tuple[tuple[PathStep, ...], bool]:
    """Returns the stages of an entry that are new in its direction, and whether others of its stages are not new."""
    if not entry.stages:
        return (), False
    before = seen.setdefault(entry.direction, set())
    keys = [(s.netns, "socket" if s.text.startswith("socket") else s.text.partition("  ")[0]) for s in entry.stages]
    new = tuple(stage for stage, key in zip(entry.stages, keys, strict=True) if key not in before)
    # A packet that took a different path is shown with all its stages.
    elsewhere = entry.bad or any(" -> " in stage.text for stage in new)
    before.update(keys)
    return (entry.stages, False) if elsewhere or len(new) == len(keys) else (new, True)


def _delta(ns: int) -> str:
    return f"{ns / 1e6:+.2f} ms" if abs(ns) < 999_995_000 else f"{ns / 1e9:+.2f} s"
