"""For people: one block a packet, a line for each hop that decided something, and how it ended.

    14:03:22.118  TCP 192.168.56.1:40812 -> 192.168.56.10:30285  SYN  60 B  node eth0  NEW
        +0.01 ms  PREROUTING  DNAT         192.168.56.10:30285 -> 10.244.0.11:8080
                    PREROUTING 1 > KUBE-SERVICES 4 > KUBE-NODEPORTS 2 > KUBE-SVC-X 2 > KUBE-SEP-Y 2
                      -p tcp -m comment --comment "default/http-proxy" -m tcp -j DNAT --to-destination 10.244.0.11:8080
        +0.03 ms  POSTROUTING MASQUERADE   192.168.56.1:40812 -> 10.244.0.1:23711
              =>  forwarded to cni0

The layout is the same on a terminal and in a file; colour and folding are the terminal's only.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, TextIO

from tracer import __version__
from tracer.facts import Fact
from tracer.findings.model import Finding
from tracer.model import Endpoints, Evidence, Handshake, Hop, Nat, Packet, Socket, Totals
from tracer.render import _ipvs, _timeline
from tracer.render._explained import alike, common_hops, condition, elsewhere
from tracer.render._finding import block
from tracer.render._ink import KEEP, Ink, plain
from tracer.render._ipvs import endpoint
from tracer.render._rules import rule_lines
from tracer.render.base import Lost, Output
from tracer.syns.model import Verdict
from tracer.timelines.model import Timeline
from tracer.verdict import BAD, benign

if TYPE_CHECKING:
    from tracer.explain.compare import Compared
    from tracer.explain.journey import Story

TIME, HOOK, SUBJECT = 12, 12, 13
"""Columns: a time, right-aligned, and two blanks; a hook; what acted there; then the rest."""
MARGIN = TIME + 2
DETAIL = MARGIN + HOOK + SUBJECT
RULE = MARGIN + 2
"""A rule and the way to it are long: they begin further left."""

WAYS = 4096
"""So many ways of packets are remembered, to say of the next one that it went the same."""

OTHERS = 8
"""So many ways of an explained packet are written down."""

GOOD = frozenset({"forwarded", "delivered", "sent"})

_NAMES = {"icmpv6": "ICMPv6"}
_MARKS = {"ok": ("good", "+"), "degraded": ("doubt", "!"), "missing": ("bad", "x")}


class Text(Output):
    """Packets, losses and the summary on `out`; how the run begins and notes on `err`."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, verbose: bool = False) -> None:
        super().__init__(out, err, verbose)
        self._ink, self._talk = Ink(self.out), Ink(self.err)
        self._ways: OrderedDict[Hashable, int] = OrderedDict()

    def begin(self, facts: Sequence[Fact], options_text: str, release: str = "") -> None:
        what = f"tracing {options_text}" if options_text else "tracing every packet"
        self.note(f"k8snet-trace {__version__} on Linux {release or os.uname().release}, {what}. Ctrl-C ends it.")
        for fact in facts:
            if fact.state != "ok":
                self.note(self._fact(self._talk, fact, 0))

    def packet(self, packet: Packet) -> None:
        before = self._gone_before(packet)
        way = [] if before else self._way(packet)
        ends = [] if before else self._ends(packet)
        self._write([self._header(packet), *ends, *way, self._end(packet, before), ""])

    def _gone_before(self, packet: Packet) -> int:
        """When, in ns since the epoch, a packet of the same connection and direction went exactly this way; 0 if none did.

        A connection's later packets repeat its second one: their translations come from conntrack. Nothing is said twice
        unless every hook is asked for, something went wrong, or a listener decided.
        """
        if self.verbose or not packet.flow or not packet.complete or packet.handshake or packet.outcome in BAD:
            return 0
        hops = tuple(
            (h.what, h.netns, h.hook, h.table, h.chain, h.verdict, h.nat, h.ipvs, h.socket and h.socket.pid)
            for h in _decisive(packet.hops)
        )
        way = (packet.flow.orig, packet.flow.is_reply, packet.verdict, hops)
        before = self._ways.setdefault(way, packet.time)
        self._ways.move_to_end(way)
        if len(self._ways) > WAYS:
            self._ways.popitem(last=False)
        return before if before != packet.time else 0

    def lost(self, loss: Lost) -> None:
        super().lost(loss)
        where = f" on CPU {loss.cpu}" if loss.cpu >= 0 else ""
        line = f"lost: {_count(loss.count, 'event')} of {loss.probe}{where}: {loss.why}"
        self._write([self._ink.fold(self._ink("doubt", line), 6), ""])

    def finding(self, finding: Finding) -> None:
        self._write([*block(finding, self._ink), ""])

    def syn(self, verdict: Verdict) -> None:
        """One line: who asked whom, and what became of it."""
        ink, asked, cause = self._ink, verdict.asked, verdict.cause
        line = f"{_clock(verdict.time)}{KEEP}{KEEP}SYN{KEEP}{endpoint(asked.src, asked.sport)}{KEEP}-> "
        line += endpoint(asked.dst, asked.dport)
        if verdict.again:
            line += ink("doubt", f"  sent again ({verdict.again + 1}. try)".replace(" ", KEEP))
        line += "  " + ink("good" if cause.good else "bad", plain(cause.text))
        if verdict.after:
            line += ink("quiet", f"  after {_relative(verdict.after)[1:]}".replace(" ", KEEP))
        if cause.evidence is Evidence.DERIVED:
            line += "  " + ink("quiet", "(derived)")
        self._write([ink.fold(line, MARGIN), ""])

    def timeline(self, timeline: Timeline) -> None:
        self._write([*_timeline.block(timeline, self._ink, _clock, endpoint), ""])

    def summary(self, totals: Totals) -> None:
        ink = self._ink
        for finding in totals.findings:
            self.finding(finding)
        lines = [ink("strong", f"{_count(totals.packets, 'packet')} in {totals.seconds:.1f} s")]
        parts = [ink(_shade(name), f"{n} {name}") for name, n in sorted(totals.outcomes.items()) if n]
        if totals.incomplete:
            parts.append(ink("doubt", f"{totals.incomplete} incomplete"))
        lines += ["  " + ", ".join(parts)] if parts else []
        probes = ", ".join(f"{n} of {probe}" for probe, n in self.lost_by_probe.most_common())
        lost = ink("doubt", f"{totals.lost} lost" + f" ({probes})" * bool(probes)) if totals.lost else "none lost"
        if totals.causes:
            told = (f"{n} {name}" for name, n in sorted(totals.causes.items(), key=lambda c: -c[1]))
            lines.append(f"  {_count(sum(totals.causes.values()), 'SYN')}: {', '.join(told)}")
        lines += [f"  {ink('doubt' if d.open else 'quiet', plain(d.text))}" for d in totals.differences]
        if totals.timelines:
            aged = totals.timelines.get("aged out", 0)
            lines.append(f"  {_count(totals.timelines.get('timelines', 0), 'connection')}, {aged} aged out for want of room")
        lines.append(f"  {_count(totals.events, 'event')}, {lost}")
        self._write([ink.fold(line, 2) for line in lines])

    def doctor(self, facts: Sequence[Fact], status: int) -> None:
        width = max((len(f.subject) for f in facts), default=0)
        ends = {0: ("good", "Tracing works here."), 1: ("doubt", "Tracing works here, but not all of it.")}
        fatal = ", ".join(fact.subject for fact in facts if fact.status > 1)
        style, end = ends.get(status, ("bad", f"Tracing cannot work here: {fatal} (exit status {status})."))
        self._write([*(self._fact(self._ink, fact, width) for fact in facts), self._ink(style, end)])

    def audit(self, findings: Sequence[Finding], checks: Sequence[str], unread: Sequence[str], status: int) -> None:
        ink = self._ink
        for finding in findings:
            self.finding(finding)
        for why in unread:
            self._write([ink.fold(ink("doubt", f"not looked at: {why}"), 2)])
        certain = sum(f.certain for f in findings)
        found = f"{certain} found" + f", {len(findings) - certain} perhaps" * (certain < len(findings))
        shade = "bad" if certain else "doubt" if findings or unread else "good"
        self._write([f"{_count(len(checks), 'check')}: {ink(shade, found if findings else 'nothing found')}"])

    def explained(self, stories: Sequence[Story]) -> None:
        ways = alike(stories)
        for at, group in enumerate(ways[:OTHERS]):
            common = common_hops(ways[0][0].packet, group[0].packet) if at else 0
            self._write([*self._told(group, common), ""])
        if len(ways) > OTHERS:
            self._write([self._ink("quiet", f"and {_count(len(ways) - OTHERS, 'way')} more"), ""])

    def _told(self, group: Sequence[Story], common: int) -> list[str]:
        """One way, from the hop on in which it parts from the first one; those that only lead elsewhere are a line each."""
        story, ink = group[0], self._ink
        head = [] if common else [self._header(story.packet), *self._ends(story.packet)]
        words = "or " * bool(common) + condition(group)
        if words:
            head.append(ink.fold(" " * MARGIN + ink("doubt" if story.doubts else "change", plain(words)), MARGIN + 4))
        rest = replace(story.packet, hops=story.packet.hops[common:])
        others = [ink.fold(" " * MARGIN + line, MARGIN + 4) for line in map(plain, map(elsewhere, group[1 : 1 + OTHERS]))]
        more = [" " * MARGIN + ink("quiet", f"and {len(group) - 1 - OTHERS} more")] if len(group) > 1 + OTHERS else []
        return [*head, *self._way(rest), self._end(story.packet), *others, *more]

    def compared(self, packet: Packet, compared: Compared) -> None:
        ink, hops = self._ink, self._header(packet)
        if not compared.difference:
            self._write([hops, f"{'=>':>{TIME}}  {ink('good', 'as explained')}: {plain(packet.verdict)}", ""])
            return
        differs = f"{'=>':>{TIME}}  {ink('bad', 'not as explained')}: {plain(compared.difference)}"
        self._write([hops, *self._way(packet), self._end(packet), ink.fold(differs, MARGIN), ""])

    def note(self, text: str) -> None:
        super().note(self._talk.fold(text, 2))

    def _write(self, lines: list[str]) -> None:
        self.out.write("\n".join(lines) + "\n")
        self.out.flush()

    def _fact(self, ink: Ink, fact: Fact, width: int) -> str:
        style, mark = _MARKS[fact.state]
        subject = (fact.subject + ":" * (not width)).ljust(width).replace(" ", KEEP)
        return ink.fold(f"{ink(style, mark)}{KEEP}{subject}{KEEP * (1 + bool(width))}{fact.text}", width + 4)

    def _header(self, packet: Packet) -> str:
        ink, ends = self._ink, packet.endpoints
        protocol = _NAMES.get(packet.protocol.lower(), packet.protocol.upper())
        src = ink("strong", endpoint(ends.src, ends.sport))
        dst = ink("strong", endpoint(ends.dst, ends.dport))
        clock = _clock(packet.time) if packet.time else f"{'explained':<{TIME}}".replace(" ", KEEP)
        parts = [f"{clock}{KEEP}{KEEP}{protocol}{KEEP}{src}{KEEP}-> {dst}"]
        if packet.tcp_flags:
            parts.append(ink("change", packet.tcp_flags.replace(" ", KEEP)))
        if packet.length:
            parts.append(f"{packet.length}{KEEP}B")
        place = plain(f"{packet.netns} {packet.iface}".strip())
        if place:
            parts.append(ink("place", place.replace(" ", KEEP)))
        if packet.flow:
            parts.append(packet.flow.state + f"{KEEP}reply" * packet.flow.is_reply)
        return ink.fold("  ".join(parts), MARGIN)

    def _way(self, packet: Packet) -> Iterator[str]:
        """A line for each hop that is shown, and one where the packet came into another namespace."""
        if not packet.hops:
            return
        ink, began, netns = self._ink, packet.hops[0].time, packet.netns
        for hop in packet.hops if self.verbose else _decisive(packet.hops):
            if hop.netns and hop.netns != netns:
                netns = hop.netns
                yield " " * MARGIN + ink("place", plain(f"in {netns}"))
            moment = ink("quiet", f"{_relative(hop.time - began) if packet.time else '':>{TIME}}")
            subject, detail = self._act(hop)
            subject = f"{subject:<{SUBJECT - 1}}"
            actor = ink("change", subject) if hop.nat else subject
            line = f"{moment}  {hop.hook:<{HOOK}}{actor} {detail}{self._owner(hop)}{self._remarks(hop, not packet.time)}"
            yield ink.fold(line, DETAIL)
            if hop.ipvs and (remark := _ipvs.remark(hop.ipvs)):
                yield ink.fold(" " * RULE + ink("quiet", remark), RULE + 4)
            for rule in rule_lines(hop, self.verbose, ink, not packet.time):
                yield ink.fold(" " * RULE + rule, RULE + 4)

    def _ends(self, packet: Packet) -> list[str]:
        """Who its ends are, when that says more than their addresses do."""
        ends = packet.src_owner, packet.dst_owner
        if not any(end and end.kind in ("Service", "Pod", "external") for end in ends):
            return []
        src, dst = (plain(end.text) if end else "unknown" for end in ends)
        return [self._ink.fold(" " * MARGIN + self._ink("place", f"{src} -> {dst}"), MARGIN)]

    def _owner(self, hop: Hop) -> str:
        """Whose the rule is that decided, or the rewrite."""
        return "  " + self._ink("place", plain(hop.owner.text)) if hop.owner else ""

    def _act(self, hop: Hop) -> tuple[str, str]:
        """Who acted, and what it did."""
        if hop.ipvs:
            subject, detail = _ipvs.act(hop, hop.ipvs)
            return subject, self._ink("bad", detail) if hop.verdict else detail
        if hop.nat:
            return hop.nat.kind.replace("reverse MASQUERADE", "reverse MASQ"), _rewrite(hop.nat)
        if hop.handshake:
            subject, good, detail = _handshake(hop.handshake)
            return subject, self._ink("good" if good else "doubt" if good is None else "bad", detail)
        if hop.socket:
            return "socket", _socket(hop.socket)
        if hop.clue:
            facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in hop.clue.facts.items())
            return hop.clue.what, facts
        if hop.drop:
            places = (hop.drop.reason, f"in{KEEP}{hop.drop.function}" if hop.drop.function else "")
            return "drop", self._ink("bad", " ".join(p for p in places if p) or "no reason given")
        verdict = hop.verdict + f" with {hop.reject}" * bool(hop.reject)
        shade = {"ACCEPT": "quiet", "DROP": "bad", "REJECT": "bad", "": "quiet"}.get(hop.verdict, "doubt")
        subject = f"{hop.table} {hop.chain}".strip() or {"nat-hook": "nat"}.get(hop.what, hop.what)
        return plain(subject), self._ink(shade, verdict)

    def _remarks(self, hop: Hop, explained: bool = False) -> str:
        remarks = []
        if self.verbose and (hop.in_iface or hop.out_iface) and not hop.nat:
            remarks.append(plain(f"{hop.in_iface or 'here'} -> {hop.out_iface or 'here'}").replace(" ", KEEP))
        if self.verbose and hop.mark:
            remarks.append(f"mark{KEEP}{hop.mark:#x}")
        if hop.clone:
            remarks.append("(copy)")
        if hop.evidence is Evidence.DERIVED and not explained:
            remarks.append("(derived)")
        return "".join("  " + self._ink("quiet", r) for r in remarks)

    def _end(self, packet: Packet, before: int = 0) -> str:
        end = self._ink(_shade(packet.outcome), plain(packet.verdict or packet.outcome or "no verdict"))
        if before:
            end += "  " + self._ink("quiet", f"same way as at {_clock(before)}".replace(" ", KEEP))
        if not packet.complete and "incomplete" not in packet.verdict:
            end += self._ink("doubt", "  incomplete: part of its way was lost")
        return self._ink.fold(f"{'=>':>{TIME}}  {end}", MARGIN)


def _decisive(hops: list[Hop]) -> Iterator[Hop]:
    """The hops that decided something. What merely carries out a rule's verdict is left out, and so is tidying up."""
    said: Hop | None = None
    for hop in hops:
        if not hop.decisive or (hop.drop and benign(hop.drop)):
            continue
        carried_out = hop.what == "hook" or (hop.drop and hop.drop.function == "nf_hook_slow")
        if said and carried_out and (hop.hook or said.hook, hop.netns, hop.clone) == (said.hook, said.netns, said.clone):
            continue
        if hop.what in ("table", "chain") or (hop.ipvs and hop.verdict):
            said = hop
        yield hop


def _rewrite(nat: Nat) -> str:
    """The ends that changed, before and after."""

    def change(end: str) -> str:
        old, new = (_end_of(e, end) for e in (nat.before, nat.after))
        return f"{old}{KEEP}-> {new}" if old != new else ""

    src, dst = change("src"), change("dst")
    return f"from {src}, to {dst}" if src and dst else src or dst or "nothing changed"


def _end_of(ends: Endpoints, end: str) -> str:
    return endpoint(ends.src, ends.sport) if end == "src" else endpoint(ends.dst, ends.dport)


def _handshake(shake: Handshake) -> tuple[str, bool | None, str]:
    """Who, whether it was accepted, and the words for it."""
    words = {"SYN": ("answered", "refused"), "ACK": ("connected", "refused")}.get(shake.stage, ("taken", "refused"))
    done = "not known whether " + words[0] if shake.accepted is None else words[not shake.accepted]
    queues = f"accept queue {shake.accept_queue}/{shake.accept_limit}{' (full)' * shake.accept_queue_full}"
    queues = queues.replace(" ", KEEP)
    if shake.syn_queue:
        queues += f", SYN{KEEP}queue{KEEP}{shake.syn_queue}"
    known = shake.accept_queue or shake.accept_limit or shake.syn_queue
    return {"ACK": "last ACK"}.get(shake.stage, shake.stage), shake.accepted, f"{done}, {queues}" if known else done


def _socket(socket: Socket) -> str:
    who = f"process not found (inode {socket.inode})" if socket.inode else "no process has it yet"
    if socket.pid:
        who = f"{plain(socket.command)} (pid {socket.pid})"
    return ", ".join(p for p in (socket.state, who) if p)


def _shade(outcome: str) -> str:
    return "good" if outcome in GOOD else "bad" if outcome in BAD else "doubt"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def _relative(ns: int) -> str:
    return f"+{ns / 1e6:.2f} ms" if ns < 999_995_000 else f"+{ns / 1e9:.2f} s"


def _clock(ns: int) -> str:
    """Local wall time, to the millisecond."""
    return f"{_second(ns // 1_000_000_000)}.{ns // 1_000_000 % 1000:03d}"


@lru_cache(16)
def _second(epoch: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(epoch))


FORMAT = Text
