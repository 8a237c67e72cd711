# SPDX-License-Identifier: Apache-2.0
"""The one-line output format: one packet a line, for many packets and for grep.

    14:03:22.118  10.0.2.9:40812 -> 10.0.2.15:30285  TCP SYN  node: eth0 > cni0, pod-a: eth0  DNAT 10.244.0.11:8080
      KUBE-SEP-Y 2  Service default/http-proxy, NodePort 30285  SYN answered by pid 812 (nginx)

That is one line. Its eight fields are separated by two blanks; a field without a value is "-", and no field has two blanks:
time, source -> destination, protocol and TCP flags, interfaces by namespace, new ends after NAT, the rule that decided, its
owner, the packet's outcome. "(derived)" and "(copy)" behind a value mean what they mean in `text`. A finding and the cause of a
failed SYN are lines of their own, without a time in the first field; the summary is that of `text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from tracer.model.check import CheckResult
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.hop import (
    Hop,
    SocketHop,
    is_from_conntrack,
    nat_of,
    owner_of,
    trace_of,
)
from tracer.model.joined_packet import Certainty, JoinedPacket
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.time_form import TimeForm
from tracer.packets.flooded_copies import is_refused_copy
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import SharedPacket
from tracer.packets.shared_path import EndpointsPattern, PathHops, Ports, shared_hops
from tracer.render._clock import Clock
from tracer.render._format import cause_style, outcome_style
from tracer.render._joined import delay, doubts
from tracer.render._packet import protocol_name
from tracer.render._style import plain
from tracer.render.parts.deciding_hop import deciding_hop
from tracer.render.parts.line_template import LineTemplate, new_mark
from tracer.render.text import TextOutput
from tracer.util.endpoint_format import format_endpoint
from tracer.util.escape import escaped_line
from tracer.util.frozen import evolve

FIELDS = "time, source -> destination, protocol, interfaces, NAT, rule, its owner, outcome"
ABSENT = "-"
_PORTS = ("source", "answered")
"""Names for the ports that a connection chose, in a template."""


class OneLineOutput(TextOutput):
    """Writes one line for each packet; notes and the start of the run go to `err`."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        verbose: bool = False,
        times: TimeForm = TimeForm.LOCAL,
    ) -> None:
        super().__init__(out, err, verbose, times)
        self._templates = PathMemo(self._template)
        self._is_ending = False

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        super().begin(results, options_text, release)
        self.note(f"One packet a line, fields separated by two blanks: {FIELDS}.")

    def packet(self, packet: Packet) -> None:
        hops = shared_hops(packet)
        template = self._templates.of(packet) if hops and not packet.unexplained else None
        rest = template.fill(*hops.ports) if template and hops else escaped_line(self._after_time(packet))
        self._put_at(packet.time, rest)

    def repeat(self, packet: SharedPacket) -> None:
        template = self._templates.of(packet)
        rest = template.fill(*packet.way.ports) if template else escaped_line(self._after_time(packet.packet()))
        self._put_at(packet.time, rest)

    def _put_at(self, time: int, rest: str) -> None:
        """Writes the line of a packet. time: ns since the epoch; rest: the line without its first field."""
        self.put_escaped(f"{(time and self._clock.stamp(time)) or ABSENT}  {rest}")

    def finding(self, finding: Finding) -> None:
        """Writes one line; in the summary, all of the finding."""
        if self._is_ending:
            super().finding(finding)
            return
        when = self._clock.point(finding.last) if finding.packets else ""
        what = f"finding {finding.name}{f' of {when}' if when else ''}{_remarks(('not certain', not finding.certain))}"
        self.put(f"{ABSENT}  {self._style('bad', what)}  {_field(finding.cause)}")

    def syn(self, verdict: HandshakeVerdict) -> None:
        """Writes one line for a SYN that failed; that of another is the line of its packet. Its first field has no time:
        times stay in order, and it is settled after later packets were written."""
        if verdict.cause.good:
            return
        asked = verdict.asked
        ends = f"{format_endpoint(asked.src, asked.sport)} -> {format_endpoint(asked.dst, asked.dport)}"
        text = self._style(cause_style(verdict), _field(verdict.cause.text))
        is_derived = verdict.cause.evidence is Evidence.DERIVED
        when = self._clock.point(verdict.time)
        what = f"cause of the SYN of {when}" if when else "cause of a SYN"
        self.put(f"{ABSENT}  {ends}  {what}  {text}{_remarks(('derived', is_derived))}")

    def node_summary(self, summary: RunSummary) -> None:
        self._is_ending = True
        super().node_summary(summary)

    def joined(self, joined: JoinedPacket) -> None:
        """Writes one line: what all nodes show in each field, and the outcome on the last one."""
        self.set_node_clock(joined.views[0].shift)
        first, last = joined.views[0].packet, joined.views[-1].packet
        when = (first.time and self._clock.stamp(first.time)) or ABSENT
        fields = [list(self._fields(view.packet)) for view in joined.views]
        places = "; ".join(f"{_field(view.node)} {each[2]}" for view, each in zip(joined.views, fields, strict=True))
        rewrites = [each[3] for each in fields if each[3] != ABSENT]
        rule, owner = next(((each[4], each[5]) for each in reversed(fields) if each[4] != ABSENT), (ABSENT, ABSENT))
        arrived = delay(joined, len(fields) - 1)
        remarks = _remarks(
            (f"{_field(joined.views[-1].node)} {arrived}", bool(arrived)),
            ("derived", any(link.certainty is Certainty.DERIVED for link in joined.links)),
            *((doubt, True) for doubt in doubts(joined)),
        )
        outcome = self._style(outcome_style(last.outcome), _outcome(last, self._clock)) + remarks
        self.put("  ".join((when, *fields[0][:2], places, ", ".join(rewrites) or ABSENT, rule, owner, outcome)))

    def _after_time(self, packet: Packet) -> str:
        """The line without its first field."""
        return "  ".join(self._fields(packet))

    def _fields(self, packet: Packet) -> tuple[str, ...]:
        """The fields of the line behind the time."""
        ink, ends = self._style, packet.endpoints
        src, dst = format_endpoint(ends.src, ends.sport), format_endpoint(ends.dst, ends.dport)
        hop = deciding_hop(packet)
        return (
            f"{ink('strong', src)} -> {ink('strong', dst)}",
            " ".join(word for word in (protocol_name(packet), packet.tcp_flags) if word),
            ink("place", ", ".join(_interfaces(packet)) or ABSENT),
            ink("change", ", ".join(_rewrites(packet.hops)) or ABSENT),
            _rule(hop) if hop else ABSENT,
            ink("place", _field(owner.text) if hop and (owner := owner_of(hop)) else ABSENT),
            ink(outcome_style(packet.outcome), _outcome(packet, self._clock)),
        )

    def _template(self, packet: Packet) -> LineTemplate | None:
        """The line of the packet's path; None = something else in it depends on a value."""
        hops = shared_hops(packet)
        assert hops
        marks = (new_mark(), new_mark())
        line = escaped_line(self._after_time(_with_ports(packet, hops, marks)))
        template = LineTemplate(line, dict(zip(marks, _PORTS, strict=True)), _PORTS)
        return template if template.fill(*hops.ports) == escaped_line(self._after_time(packet)) else None


def _with_ports(packet: Packet, hops: PathHops, ports: Ports) -> Packet:
    """The packet, if its connection had chosen these ports."""
    return evolve(
        packet,
        endpoints=EndpointsPattern.of(packet.endpoints, hops.ports).fill(ports),
        hops=PathHops(hops.path, hops.times, ports, hops.sockets, hops.details),
    )


def _field(text: str) -> str:
    """A text as one field: without two blanks in a row."""
    return " ".join(plain(text).split()) or ABSENT


def _remarks(*remarks: tuple[str, bool]) -> str:
    """The remarks that hold, each in brackets behind a blank."""
    return "".join(f" ({text})" for text, holds in remarks if holds)


def _rule(hop: Hop) -> str:
    """The chain and number of the rule that decided."""
    trace = trace_of(hop)
    if trace is None:
        return ABSENT
    if trace.decision is None:
        return "rule not known"
    at, is_derived = trace.decision.location, trace.decision.evidence is Evidence.DERIVED
    remarks = _remarks(("from conntrack", is_from_conntrack(hop)), ("copy", hop.clone), ("derived", is_derived))
    return f"{_field(at.chain)} {at.number or 'policy'}{remarks}"


def _interfaces(packet: Packet) -> Iterator[str]:
    """The interfaces that the packet came through, by namespace, in order."""
    places: list[tuple[tuple[str, bool], list[str]]] = []
    first = (packet.netns, False, packet.iface, "")
    hops = [hop for hop in packet.hops if hop.netns and not is_refused_copy(hop)]
    for netns, is_copy, *interfaces in (first, *((hop.netns, hop.clone, hop.in_iface, hop.out_iface) for hop in hops)):
        if not places or places[-1][0] != (netns, is_copy):
            places.append(((netns, is_copy), []))
        names = places[-1][1]
        names += [name for name in dict.fromkeys(interfaces) if name and name not in names]
    for (where, is_copy), names in places:
        if where or names:
            parts = (where and _field(where), " > ".join(map(_field, names)))
            yield ": ".join(filter(None, parts)) + _remarks(("copy", is_copy))


def _rewrites(hops: Sequence[Hop]) -> Iterator[str]:
    """Each kind of rewrite, and the ends that it made."""
    made: dict[str, None] = {}
    for hop in hops:
        if nat := nat_of(hop):
            remarks = _remarks(("copy", hop.clone), ("derived", hop.evidence is Evidence.DERIVED))
            made[f"{nat.kind} {_changed(nat.before, nat.after)}{remarks}"] = None
    return iter(made)


def _changed(before: Endpoints, after: Endpoints) -> str:
    src, dst = (after.src, after.sport), (after.dst, after.dport)
    both = ((src, (before.src, before.sport)), (dst, (before.dst, before.dport)))
    new = [format_endpoint(*end) for end, old in both if end != old]
    return " -> ".join(new) or "nothing changed"


def _outcome(packet: Packet, clock: Clock) -> str:
    continued = clock.point(packet.continues)
    is_incomplete = not packet.complete and "incomplete" not in packet.verdict
    sockets = [hop for hop in packet.hops if isinstance(hop, SocketHop) and hop.socket.pid]
    return _field(packet.verdict or packet.outcome or "no verdict") + _remarks(
        ("process derived", any(hop.evidence is Evidence.DERIVED for hop in sockets)),
        ("incomplete: some of its events were lost", is_incomplete),
        (f"continues the packet of {continued}" if continued else "continues an earlier packet", bool(packet.continues)),
        ("not explained by the run", bool(packet.unexplained)),
        ("derived", packet.unexplained is Evidence.DERIVED),
    )


FORMAT = OneLineOutput
