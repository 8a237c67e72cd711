"""A connection's timeline as a tree: a line for each step, and below a packet what happened to it on its way.

14:52:08.826  TCP 192.168.56.1:39902 -> 192.168.56.10:30285  accepted in node, 7 packets, closed
    +0.00 ms  -> SYN, 60 B
              |    +11.59 ms  PREROUTING DNAT 192.168.56.10:30285 -> 10.244.0.11:8080  Service default/http-proxy
              `    +26.85 ms  in pod-a, by eth0
   +43.20 ms  <- SYN ACK, 60 B
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracer.render._ink import Ink, plain
from tracer.timelines.model import Step, Timeline

TIME = 12
MARGIN = TIME + 2
MARKS = {"conntrack": "##", "change": "%%", "verdict": "=="}
"""What stands where a packet has its direction."""


def block(timeline: Timeline, ink: Ink, clock: Callable[[int], str], endpoint: Callable[[str, int], str]) -> list[str]:
    """Its lines: those steps that have not been told before."""
    orig = timeline.asked
    ends = f"{endpoint(orig.src, orig.sport)} -> {endpoint(orig.dst, orig.dport)}"
    parts = [f"{clock(timeline.began)}  {timeline.identity.protocol} {ink('strong', ends)}"]
    parts.append(ink("place", plain(_tracked(timeline))))
    parts.append(f"{timeline.packets} packet{'s' * (timeline.packets != 1)}, {timeline.state}")
    if timeline.why:
        parts.append(ink("quiet", f"({timeline.why})"))
    if timeline.told:
        parts.append(ink("quiet", "goes on"))
    lines = [ink.fold("  ".join(p for p in parts if p), MARGIN)]
    for step in timeline.steps:
        lines += _step(step, timeline, ink)
    if timeline.left_out:
        lines.append(f"{'':{MARGIN}}{ink('doubt', f'{timeline.left_out} steps between the first and the last were not kept')}")
    return lines


def _tracked(timeline: Timeline) -> str:
    identity = timeline.identity
    if not identity.netns:
        return "not tracked"
    zone = f", zone {identity.zone}" if identity.zone else ""
    return f"tracked in {identity.netns}{zone}"


def _step(step: Step, timeline: Timeline, ink: Ink) -> Iterator[str]:
    moment = ink("quiet", f"{_delta(step.time - timeline.origin):>{TIME}}")
    mark = step.way or MARKS.get(step.kind, "")
    shade = "bad" if step.bad else "change" if step.kind == "packet" else "quiet" if step.kind == "conntrack" else "strong"
    line = f"{moment}  {mark:<2} {ink(shade, plain(step.text))}"
    if step.remark:
        line += "  " + ink("doubt", plain(step.remark))
    yield ink.fold(line, MARGIN + 3)
    rows = [(s.time, s.text, "quiet") for s in step.stages]
    if step.end:
        rows.append((-1, f"=> {step.end}", "bad" if step.bad else "good"))
    for at, (time, text, shade) in enumerate(rows):
        branch = "`" if at == len(rows) - 1 else "|"
        when = f"{_delta(time):>{TIME}}" if time >= 0 else " " * TIME
        painted = ink(shade, plain(text)) if time < 0 else plain(text)
        yield ink.fold(f"{'':{MARGIN}}{branch} {ink('quiet', when)}  {painted}", MARGIN + TIME + 6)


def _delta(ns: int) -> str:
    return f"{ns / 1e6:+.2f} ms" if abs(ns) < 999_995_000 else f"{ns / 1e9:+.2f} s"
