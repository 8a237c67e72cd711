# SPDX-License-Identifier: Apache-2.0
"""The text output format, for people: one block per packet with a line for each hop that decided something, and the verdict.

    14:03:22.118  TCP 192.168.56.1:40812 -> 192.168.56.10:30285  SYN  60 B  node eth0  NEW
        +0.01 ms  PREROUTING  DNAT         192.168.56.10:30285 -> 10.244.0.11:8080
                    PREROUTING 1 > KUBE-SERVICES 4 > KUBE-NODEPORTS 2 > KUBE-SVC-X 2 > KUBE-SEP-Y 2
                      -p tcp -m comment --comment "default/http-proxy" -m tcp -j DNAT --to-destination 10.244.0.11:8080
        +0.03 ms  POSTROUTING MASQUERADE   192.168.56.1:40812 -> 10.244.0.1:23711
              =>  forwarded to cni0

The layout is the same on a terminal and in a file. Only a terminal gets colours and folded lines.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TextIO

from tracer import __version__
from tracer.model.check import CheckResult
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket
from tracer.model.loss import LEFT_OUT
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.time_form import TimeForm
from tracer.model.timeline import Timeline
from tracer.packets.outcome import BAD
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import SharedPacket
from tracer.packets.shared_path import EndpointsPattern, shared_hops
from tracer.render import _doctor, _timeline
from tracer.render._audit import check_lines
from tracer.render._clock import Clock
from tracer.render._finding import block
from tracer.render._format import cause_style, count, outcome_style, relative
from tracer.render._joined import joined_lines
from tracer.render._packet import MARGIN, TIME, PacketLines
from tracer.render._prediction import chosen_rule, common_hops, condition, elsewhere, group_alike
from tracer.render._shown_path import ShownPaths
from tracer.render._style import KEEP, Styler, plain
from tracer.render.base import LostEvents, Output
from tracer.render.parts.line_template import LineTemplate, new_mark
from tracer.util.endpoint_format import format_endpoint
from tracer.util.frozen import evolve
from tracer.util.lru_dict import LruDict

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath
    from tracer.model.prediction_check import PredictionCheck

KEPT_PATHS = 4096
"""Number of packet paths that are kept, to mark later packets with "same way as"."""

KEPT_FINDINGS = 4096
"""Number of findings that are kept, to write only the new parts of one that was shown before."""

SHOWN_PATHS = 8
"""Maximum number of predicted paths that are written."""

_MARKS = {"ok": ("good", "+"), "degraded": ("doubt", "!"), "missing": ("bad", "x")}


_VALUES = ("source", "answered", "length")
"""Names for the ports that a connection chose and for the length of a packet, in a template."""


class _ShownWay(NamedTuple):
    """How packets of one connection on a path are shown in short form.

    Attributes:
        path: Identity of what is shown in full, before.
        title: Their header without the time; None = each packet is shown by itself.
    """

    path: Hashable
    title: LineTemplate | None


class TextOutput(Output):
    """Writes packets, losses and the summary to `out`, the start of the run and notes to `err`."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        verbose: bool = False,
        times: TimeForm = TimeForm.LOCAL,
    ) -> None:
        super().__init__(out, err, verbose, times)
        self._style = Styler(self.out)
        self._clock = Clock(times)
        self._lines = PacketLines(self._style, verbose, self._clock)
        self._paths: LruDict[Hashable, int] = LruDict(KEPT_PATHS, "paths of shown packets")
        self._shown = ShownPaths()
        self._is_answered = PathMemo(lambda packet: packet.handshake is not None)
        self._found: LruDict[Hashable, Finding] = LruDict(KEPT_FINDINGS, "shown findings")
        self._refused_syns: dict[int, list[str]] = {}
        self._held: list[list[str]] = []
        self._is_in_batch = False

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        what = f"tracing {options_text}" if options_text else "tracing every packet"
        self.note(f"k8snet-trace {__version__} on Linux {release or os.uname().release}, {what}. Press Ctrl-C to stop.")
        if limits := [fact for fact in results if fact.state != "ok"]:
            style = Styler(self.err)
            for fact in limits:
                self.note(self._result_line(style, fact, 0))

    def packet(self, packet: Packet) -> None:
        self._write_packet(packet)

    def _write_packet(self, packet: Packet) -> None:
        before = self._same_path_before(packet)
        hop_lines = [] if before else self._lines.hops(packet)
        ends = [] if before else self._lines.ends(packet)
        lines = [self._lines.header(packet), *ends, *hop_lines, self._lines.end(packet, before), ""]
        if self._is_in_batch and packet.tcp_flags == "SYN" and packet.outcome in BAD and not packet.continues:
            self._refused_syns[packet.identity] = lines
        self._write(lines)

    def repeat(self, packet: SharedPacket) -> None:
        way = packet.way
        shown = way.kept.get(self)
        if not isinstance(shown, _ShownWay):
            shown = way.kept[self] = self._shown_way(packet.packet())
        before = self._paths.setdefault(shown.path, packet.time) if shown.title else packet.time
        if shown.title is None or before == packet.time:
            self._write_packet(packet.packet())
            return
        header = self._lines.dated(packet.time, shown.title.fill(*way.ports, packet.length))
        self._write([header, self._lines.end(way.sample, before), ""])

    def _shown_way(self, packet: Packet) -> _ShownWay:
        """How packets of the packet's connection on its path are shown."""
        hops, flow = shared_hops(packet), packet.flow
        if self.verbose or not hops or not flow or self._is_answered.of(packet):
            return _ShownWay(None, None)
        source, answered, length = marks = (new_mark(), new_mark(), new_mark())
        ends = EndpointsPattern.of(packet.endpoints, hops.ports).fill((source, answered))
        line = self._lines.title(evolve(packet, endpoints=ends, length=length if packet.length else 0))
        title = LineTemplate(line, dict(zip(marks, _VALUES, strict=True)), _VALUES)
        is_known = title.fill(*hops.ports, packet.length) == self._lines.title(packet)
        return _ShownWay(self._shown.identity(packet, flow), title if is_known else None)

    def _same_path_before(self, packet: Packet) -> int:
        """Returns the time of an earlier packet with the same connection, direction and path, ns since the epoch; 0 = none.

        A connection's later packets repeat its second one, because their translations come from conntrack. They are written
        in short form, except with --verbose, after a bad outcome, or if a listener decided.
        """
        if self.verbose or not packet.flow or not packet.complete or packet.outcome in BAD or self._is_answered.of(packet):
            return 0
        path = self._shown.identity(packet, packet.flow)
        before = self._paths.setdefault(path, packet.time)
        return before if before != packet.time else 0

    def set_node_clock(self, offset: int) -> None:
        self._clock.shift = offset

    def joined(self, joined: JoinedPacket) -> None:
        self.set_node_clock(joined.views[0].shift)
        self._write([*joined_lines(joined, self._lines, self._style), ""])

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        where = f" on CPU {loss.cpu}" if loss.cpu >= 0 else ""
        what = count(loss.count, "packet") if loss.probe == LEFT_OUT else f"{count(loss.count, 'event')} of {loss.probe}"
        line = f"lost: {what}{where}: {loss.why}"
        self._write([self._style.fold(self._style("doubt", line), 6), ""])

    def finding(self, finding: Finding) -> None:
        """Writes a finding: completely the first time; in the summary, only its new parts."""
        which = finding.name, finding.key
        self._write([*block(finding, self._style, self._found.get(which), self._clock.point), ""])
        self._found[which] = finding

    def begin_batch(self) -> None:
        super().begin_batch()
        self._is_in_batch = True

    def end_batch(self, now: int) -> None:
        self._is_in_batch = False
        self.release()
        super().end_batch(now)

    def release(self) -> None:
        """Writes what waits for the cause of a refused SYN, which comes in the batch of the SYN, or not at all."""
        self._refused_syns.clear()
        held, self._held = self._held, []
        for lines in held:
            self.put(*lines)

    def syn(self, verdict: HandshakeVerdict) -> None:
        """Writes the cause of a SYN: on its block, if this node refused it; otherwise one line with its endpoints.

        The line has the SYN's time in its text: it is settled after later packets were written, and times stay in order.
        """
        lines = self._refused_syns.pop(verdict.attempt.syn.identity, None) if verdict.attempt else None
        if lines:
            lines.insert(-1, self._style.fold(f"{'cause':>{TIME}}  {self._cause(verdict)}", MARGIN))
            if not self._refused_syns:
                self.release()
            return
        ink, asked = self._style, verdict.asked
        line = f"{'cause':>{TIME}}  SYN{KEEP}{format_endpoint(asked.src, asked.sport)}{KEEP}-> "
        line += format_endpoint(asked.dst, asked.dport)
        when = self._clock.point(verdict.time)
        line += f" of{KEEP}{when}" if when else ""
        self._write([ink.fold(f"{line}  {self._cause(verdict)}", MARGIN), ""])

    def _cause(self, verdict: HandshakeVerdict) -> str:
        """The cause, after how many tries and how long, and how it is known."""
        ink, cause, line = self._style, verdict.cause, ""
        if verdict.again:
            line += ink("doubt", f"sent again ({verdict.again + 1}. try)".replace(" ", KEEP)) + "  "
        line += ink(cause_style(verdict), plain(cause.text))
        if verdict.after:
            line += ink("quiet", f"  after {relative(verdict.after)[1:]}".replace(" ", KEEP))
        if cause.evidence is Evidence.DERIVED:
            line += "  " + ink("quiet", "(derived)")
        return line

    def timeline(self, timeline: Timeline) -> None:
        self._write([*_timeline.block(timeline, self._style, self._clock.stamp), ""])

    def summary(self, summary: RunSummary) -> None:
        ink = self._style
        if not self.has_nodes:
            self.node_summary(summary)
        lines = [ink("strong", f"{count(summary.packets, 'packet')} in {summary.seconds:.1f} s")]
        parts = [ink(outcome_style(name), f"{n} {name}") for name, n in sorted(summary.outcomes.items()) if n]
        if summary.incomplete:
            parts.append(ink("doubt", f"{summary.incomplete} incomplete"))
        lines += ["  " + ", ".join(parts)] if parts else []
        if summary.joined:
            lines.append(f"  {count(summary.joined, 'packet')} passed several nodes, each of which counts it")
        probes = ", ".join(
            f"{n} whole packets" if probe == LEFT_OUT else f"{n} of {probe}" for probe, n in self.lost_by_probe.most_common()
        )
        lost = ink("doubt", f"{summary.lost} lost" + f" ({probes})" * bool(probes)) if summary.lost else "none lost"
        if summary.causes:
            causes = (f"{n} {name}" for name, n in sorted(summary.causes.items(), key=lambda c: -c[1]))
            lines.append(f"  {count(sum(summary.causes.values()), 'SYN')}: {', '.join(causes)}")
        lines += [f"  {ink('doubt' if d.open else 'quiet', plain(d.text))}" for d in summary.differences]
        if summary.drops_without_finding:
            of = count(summary.drops_without_finding, "dropped packet")
            lines.append("  " + ink("doubt", f"{of} without a finding: each one's own line has the reason"))
        if summary.timelines:
            aged = summary.timelines.get("aged out", 0)
            lines.append(
                f"  {count(summary.timelines.get('timelines', 0), 'connection')}, {aged} removed because the table was full"
            )
        lines.append(f"  {count(summary.events, 'event')}, {lost}")
        for loss in summary.not_written:
            what = f"{count(loss.records, 'record')} not written to {loss.output}: {loss.why}"
            lines.append("  " + ink("doubt", plain(what)))
        if summary.unaddressed:
            of = count(summary.unaddressed, "packet")
            lines.append("  " + ink("doubt", f"{of} not shown: no event with the addresses was received"))
        if summary.unexplained:
            left = f"the run ended before it could explain {count(summary.unexplained, 'more packet')}"
            lines.append("  " + ink("doubt", left))
        self._write([ink.fold(line, 2) for line in lines])

    def node_summary(self, summary: RunSummary) -> None:
        """Writes the new parts of the findings."""
        for finding in summary.findings:
            self.finding(finding)

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        width = max((len(f.subject) for f in results), default=0)
        ends = {0: ("good", "Tracing works here."), 1: ("doubt", "Tracing works here, with limitations.")}
        fatal = ", ".join(fact.subject for fact in results if fact.status > 1)
        style, end = ends.get(status, ("bad", f"Tracing cannot work here: {fatal} (exit status {status})."))
        if self.verbose:
            self._write([*(self._result_line(self._style, fact, width) for fact in results), self._style(style, end)])
        else:
            self._doctor_summary(results, status, self._style(style, end))

    def _doctor_summary(self, results: Sequence[CheckResult], status: int, end: str) -> None:
        """Writes what a run shows, each result that is not "ok" with what to do, and the end."""
        ink, found = self._style, list(_doctor.troubles(results))
        topics = _doctor.shown_topics(results) if status <= 1 else []
        width = max((len(fact.subject) for fact, _ in found), default=0)
        label = "shown".ljust(width).replace(" ", KEEP)
        lines = [ink.fold(f"{ink('good', '+')}{KEEP}{label}{KEEP * 2}{', '.join(topics)}", width + 4)] if topics else []
        for fact, action in found:
            lines.append(self._result_line(ink, fact, max(width, 1)))
            lines += [ink.fold(f"{'':{width + 4}}{ink('strong', f'To do: {action}.')}", width + 4)] if action else []
        all_results = ink("quiet", f"{count(len(results), 'check')}; -v lists them.")
        lines.append(ink.fold(f"{end}  {all_results}", 2))
        self._write(lines)

    def audit(
        self,
        findings: Sequence[Finding],
        checks: Sequence[str],
        unread: Sequence[str],
        status: int,
        limits: Sequence[tuple[str, str]] = (),
    ) -> None:
        ink = self._style
        for finding in findings:
            self.finding(finding)
        for why in unread:
            self._write([ink.fold(ink("doubt", f"not read: {why}"), 2)])
        certain = sum(f.certain for f in findings)
        found = f"{certain} found" + f", {len(findings) - certain} perhaps" * (certain < len(findings))
        style = "bad" if certain else "doubt" if findings or unread else "good"
        result = f"{count(len(checks), 'check')}: {ink(style, found if findings else 'nothing found')}"
        self._write([result, *check_lines(findings, checks, limits, ink)])

    def explained(self, predicted_paths: Sequence[PredictedPath]) -> None:
        groups = group_alike(predicted_paths)
        for at, group in enumerate(groups[:SHOWN_PATHS]):
            common = common_hops(groups[0][0].packet, group[0].packet) if at else 0
            self._write([*self._path_lines(group, common), ""])
        if len(groups) > SHOWN_PATHS:
            self._write([self._style("quiet", f"and {count(len(groups) - SHOWN_PATHS, 'more path')}"), ""])

    def _path_lines(self, group: Sequence[PredictedPath], common: int) -> list[str]:
        """Formats one group of paths.

        The first path is shown from the hop on where it differs from the first group; the others are one line each.
        """
        predicted, ink = group[0], self._style
        head = [] if common else [self._lines.header(predicted.packet), *self._lines.ends(predicted.packet)]
        when = "or " * bool(common) + condition(group)
        if when:
            head.append(ink.fold(" " * MARGIN + ink("doubt" if predicted.conditions else "change", plain(when)), MARGIN + 4))
        head += [ink.fold(" " * MARGIN + ink("doubt", plain(note)), MARGIN + 4) for note in predicted.notes]
        rest = replace(predicted.packet, hops=predicted.packet.hops[common:])
        others = [ink.fold(" " * MARGIN + line, MARGIN + 4) for line in map(plain, map(elsewhere, group[1 : 1 + SHOWN_PATHS]))]
        more = [" " * MARGIN + ink("quiet", f"and {len(group) - 1 - SHOWN_PATHS} more")] if len(group) > 1 + SHOWN_PATHS else []
        return [*head, *self._lines.hops(rest), self._lines.end(predicted.packet), *others, *more]

    def compared(self, packet: Packet, compared: PredictionCheck) -> None:
        ink, hops = self._style, self._lines.header(packet)
        if not compared.difference:
            leads_to = chosen_rule(compared.predicted)
            to = f", to {plain(leads_to)}" if leads_to else ""
            agrees = f"{'=>':>{TIME}}  {ink('good', 'as explained')}{to}: {plain(packet.verdict)}"
            self._write([hops, ink.fold(agrees, MARGIN), ""])
            return
        differs = f"{'=>':>{TIME}}  {ink('bad', 'not as explained')}: {plain(compared.difference)}"
        self._write([hops, *self._lines.hops(packet), self._lines.end(packet), ink.fold(differs, MARGIN), ""])

    def _write(self, lines: list[str]) -> None:
        """Writes lines, behind a SYN that waits for its cause."""
        if self._refused_syns or self._held:
            self._held.append(lines)
        else:
            self.put(*lines)

    def _result_line(self, style: Styler, result: CheckResult, width: int) -> str:
        colour, mark = _MARKS[result.state]
        subject = (result.subject + ":" * (not width)).ljust(width).replace(" ", KEEP)
        return style.fold(f"{style(colour, mark)}{KEEP}{subject}{KEEP * (1 + bool(width))}{result.text}", width + 4)


FORMAT = TextOutput
