# SPDX-License-Identifier: Apache-2.0
"""Formats one packet as lines of text: its header, a line for each shown hop, and its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracer.model.bpf_program import ProgramAction
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import (
    DecisionDetail,
    DetailHop,
    DropHop,
    Handshake,
    HandshakeHop,
    HookHop,
    Hop,
    IpvsNatHop,
    IpvsRefusalHop,
    Nat,
    NatHookHop,
    NatHop,
    RedirectHop,
    RewriteHop,
    RouteHop,
    RuleHop,
    Socket,
    SocketHop,
    owner_of,
)
from tracer.model.netfilter import PASSES, REFUSALS, AnyVerdict
from tracer.model.packet import Outcome, Packet
from tracer.packets import flooded_copies, queue_details
from tracer.packets.outcome import BAD, is_benign
from tracer.render import _ipvs
from tracer.render._clock import Clock
from tracer.render._format import GOOD, outcome_style, relative
from tracer.render._style import KEEP, Styler, plain
from tracer.render.parts.rule_lines import rule_lines
from tracer.util.endpoint_format import format_endpoint

TIME, HOOK, SUBJECT = 12, 12, 13
"""Widths of the columns: a right-aligned time, followed by two blanks; a hook; what acted there. The rest follows."""
MARGIN = TIME + 2
DETAIL = MARGIN + HOOK + SUBJECT
RULE = MARGIN + 2
"""Indent of a rule and its path. They are long, so they begin further left."""
NAMED_NAMESPACES = 3
"""Maximum number of namespaces that are named in the line about flooded copies."""

_NAMES = {"icmpv6": "ICMPv6"}


class PacketLines:
    """Formats packets.

    Args:
        style: The styler of the stream.
        verbose: Show every hop, not only those that decided something.
        clock: The times of the output.
    """

    def __init__(self, style: Styler, verbose: bool, clock: Clock) -> None:
        self._ink, self.verbose, self._clock = style, verbose, clock

    def header(self, packet: Packet) -> str:
        return self.dated(packet.time, self.title(packet))

    def dated(self, time: int, title: str) -> str:
        """The header of a packet with this title. time: ns since the epoch, 0 = the packet is only predicted."""
        when = self._clock.stamp(time) if time else f"{'explained':<{TIME}}"
        return self._ink.fold((f"{when}  ".replace(" ", KEEP) if when else "") + title, MARGIN)

    def title(self, packet: Packet) -> str:
        """The header of a packet without its time, not folded."""
        ink, ends = self._ink, packet.endpoints
        protocol = protocol_name(packet)
        src = ink("strong", format_endpoint(ends.src, ends.sport))
        dst = ink("strong", format_endpoint(ends.dst, ends.dport))
        parts = [f"{protocol}{KEEP}{src}{KEEP}-> {dst}"]
        if packet.tcp_flags:
            parts.append(ink("change", packet.tcp_flags.replace(" ", KEEP)))
        if packet.length:
            parts.append(f"{packet.length}{KEEP}B")
        where = plain(f"{packet.netns} {packet.iface}".strip())
        if where:
            parts.append(ink("place", where.replace(" ", KEEP)))
        if packet.flow:
            parts.append(packet.flow.state + f"{KEEP}reply" * packet.flow.is_reply)
        if packet.continues:
            point = self._clock.point(packet.continues)
            text = f"continues the packet of {point}" if point else "continues an earlier packet"
            parts.append(ink("quiet", text.replace(" ", KEEP)))
        return "  ".join(parts)

    def hops(self, packet: Packet) -> Iterator[str]:
        """Yields a line for each shown hop, and one for each change of the namespace."""
        if not packet.hops:
            return
        ink, netns = self._ink, packet.netns
        others = [h for h in packet.hops if flooded_copies.is_refused_copy(h)]
        for hop in packet.hops if self.verbose else decisive(packet.hops):
            if not self.verbose and flooded_copies.is_refused_copy(hop):
                if hop is others[0]:
                    line = f"{'':<{HOOK}}{'copies':<{SUBJECT}}{_flooded_copies(others)}"
                    yield ink.fold(f"{self._relative_time(packet, hop)}  {line}", DETAIL)
                continue
            if hop.netns and hop.netns != netns:
                netns = hop.netns
                yield " " * MARGIN + ink("place", plain(f"in {netns}"))
            state = self._relative_time(packet, hop)
            subject, detail = self._action(hop, packet)
            subject = f"{subject:<{SUBJECT - 1}}"
            actor = ink("change", subject) if isinstance(hop, RewriteHop) else subject
            line = f"{state}  {hop.hook:<{HOOK}}{actor} {detail}{self._owner(hop)}{self._remarks(hop, not packet.time)}"
            yield ink.fold(line, DETAIL)
            if isinstance(hop, IpvsNatHop) and (remark := _ipvs.remark(hop.decision)):
                yield ink.fold(" " * RULE + ink("quiet", remark), RULE + 4)
            for rule in rule_lines(hop, self.verbose, ink, not packet.time):
                yield ink.fold(" " * RULE + rule, RULE + 4)

    def _relative_time(self, packet: Packet, hop: Hop) -> str:
        """The time since the packet's first hop; blanks for a packet that is only predicted."""
        return self._ink("quiet", f"{relative(hop.time - packet.hops[0].time) if packet.time else '':>{TIME}}")

    def ends(self, packet: Packet) -> list[str]:
        """The line with the owners of both ends; empty if they say no more than the addresses."""
        ends = packet.src_owner, packet.dst_owner
        if not any(end and end.kind in ("Service", "Pod", "external") for end in ends):
            return []
        src, dst = (plain(end.text) if end else "unknown" for end in ends)
        return [self._ink.fold(" " * MARGIN + self._ink("place", f"{src} -> {dst}"), MARGIN)]

    def _owner(self, hop: Hop) -> str:
        """The owner of the deciding rule or of the rewrite."""
        owner = owner_of(hop)
        return "  " + self._ink("place", plain(owner.text)) if owner else ""

    def _action(self, hop: Hop, packet: Packet) -> tuple[str, str]:
        """Returns (what acted, what it did)."""

        def ink(style: str, text: str) -> str:
            return self._ink(_fitting(style, packet.outcome), text)

        match hop:
            case IpvsRefusalHop():
                subject, detail = _ipvs.describe(hop)
                return subject, ink("bad", detail) if hop.verdict else detail
            case IpvsNatHop():
                return _ipvs.describe(hop)
            case NatHop():
                return hop.nat.kind.replace("reverse MASQUERADE", "reverse MASQ"), _rewrite(hop.nat) + _program(hop.program)
            case HandshakeHop():
                subject, good, detail = _handshake(hop.handshake)
                return subject, ink("good" if good else "doubt" if good is None else "bad", detail)
            case SocketHop():
                return "socket", _socket(hop.socket)
            case DetailHop() if queue_details.is_of_queue(hop.detail):
                answer = queue_details.verdict_of(hop.detail)
                style = _verdict_style(answer) if answer else "bad"
                return queue_details.format_queue(hop.detail), ink(style, plain(queue_details.format_detail(hop.detail)))
            case DetailHop():
                return hop.detail.what, _facts(hop.detail, packet.family)
            case DropHop():
                places = (hop.drop.reason, f"in{KEEP}{hop.drop.function}" if hop.drop.function else "")
                what = ink("bad", " ".join(p for p in places if p) or "no reason given")
                return "drop", what + _program(hop.drop.program)
            case RedirectHop():
                return hop.kind.value, plain(hop.redirect.text) + _derived(hop.redirect.program)
            case RouteHop():
                return hop.kind.value, ink("doubt", hop.route)
            case RuleHop():
                verdict = hop.verdict + f" with {hop.reject}" * bool(hop.reject)
                subject = plain(f"{hop.table} {hop.base_chain}".strip() or hop.kind.value)
                return subject, ink(_verdict_style(hop.verdict), verdict)
            case HookHop() | NatHookHop():
                subject = "nat" if isinstance(hop, NatHookHop) else hop.kind.value
                return subject, ink(_verdict_style(hop.verdict), hop.verdict)

    def _remarks(self, hop: Hop, explained: bool = False) -> str:
        remarks = []
        if self.verbose and (hop.in_iface or hop.out_iface) and not isinstance(hop, RewriteHop):
            remarks.append(plain(f"{hop.in_iface or 'here'} -> {hop.out_iface or 'here'}").replace(" ", KEEP))
        if self.verbose and hop.mark:
            remarks.append(f"mark{KEEP}{hop.mark:#x}")
        if hop.clone:
            remarks.append("(copy)")
        if hop.evidence is Evidence.DERIVED and not explained:
            remarks.append("(derived)")
        return "".join("  " + self._ink("quiet", r) for r in remarks)

    def end(self, packet: Packet, before: int = 0) -> str:
        end = self._ink(outcome_style(packet.outcome), plain(packet.verdict or packet.outcome or "no verdict"))
        if before:
            point = self._clock.point(before)
            end += "  " + self._ink("quiet", f"same way as {f'at {point}' if point else 'before'}".replace(" ", KEEP))
        if not packet.complete and "incomplete" not in packet.verdict:
            end += self._ink("doubt", "  incomplete: some of its events were lost")
        if packet.unexplained:
            derived = " (derived)" if packet.unexplained is Evidence.DERIVED else ""
            end += self._ink("doubt", f"  not explained by the run{derived}")
        return self._ink.fold(f"{'=>':>{TIME}}  {end}", MARGIN)


def protocol_name(packet: Packet) -> str:
    """The name of its protocol as text shows it."""
    return _NAMES.get(packet.protocol.lower(), packet.protocol.upper())


def decisive(hops: Iterable[Hop]) -> Iterator[Hop]:
    """Yields the hops that decided something, without those that only carry out a rule's verdict and without benign drops."""
    decision: Hop | None = None
    for hop in hops:
        if not hop.is_decisive or (isinstance(hop, DropHop) and is_benign(hop.drop)):
            continue
        carried_out = isinstance(hop, HookHop) or (isinstance(hop, DropHop) and hop.drop.function == "nf_hook_slow")
        if (
            decision
            and carried_out
            and (hop.hook or decision.hook, hop.netns, hop.clone) == (decision.hook, decision.netns, decision.clone)
        ):
            continue
        if isinstance(hop, RuleHop) or (isinstance(hop, IpvsRefusalHop) and hop.verdict):
            decision = hop
        yield hop


def _flooded_copies(others: list[Hop]) -> str:
    """The namespaces that dropped flooded copies for other hosts. Only the first ones are named."""
    places = list(dict.fromkeys(h.netns for h in others))
    if len(places) == 1:
        return f"dropped in {places[0]}, which it is not for (OTHERHOST)"
    named = plain(", ".join(places[:NAMED_NAMESPACES]))
    more = f" and {len(places) - NAMED_NAMESPACES} more" if len(places) > NAMED_NAMESPACES else ""
    return f"dropped in {len(places)} namespaces that it is not for: {named}{more} (OTHERHOST)"


def _fitting(style: str, outcome: Outcome) -> str:
    """The style of a hop in a packet with this outcome: what ended well has no red, as of a copy; what did not, no green."""
    if style == "bad" and outcome in GOOD:
        return "doubt"
    return "quiet" if style == "good" and outcome in BAD else style


def _program(found: ProgramAction | None) -> str:
    """Which eBPF program dropped or rewrote the packet, behind what it did; the kernel does not say it."""
    return f", {plain(found.text)}{_derived(found)}" if found else ""


def _derived(found: ProgramAction | None) -> str:
    return f"{KEEP}(derived)" * (found is not None and found.program is not None and not found.is_observed)


def _verdict_style(verdict: AnyVerdict) -> str:
    return "quiet" if verdict in PASSES else "bad" if verdict in REFUSALS else "doubt"


def _facts(detail: DecisionDetail, family: str) -> str:
    # Captures of an earlier version have the address of a next hop in both families if its family was unknown.
    both = {"ipv4", "ipv6"} <= detail.facts.keys()
    shown = {n: v for n, v in detail.facts.items() if not (both and n == ("ipv6" if family == "IPv4" else "ipv4"))}
    return ", ".join(f"{name.replace('_', ' ')} {plain(str(value))}" for name, value in shown.items())


def _rewrite(nat: Nat) -> str:
    """The endpoints that a rewrite changed, before and after."""

    def change(end: str) -> str:
        old, new = (_end_of(e, end) for e in (nat.before, nat.after))
        return f"{old}{KEEP}-> {new}" if old != new else ""

    src, dst = change("src"), change("dst")
    return f"from {src}, to {dst}" if src and dst else src or dst or "nothing changed"


def _end_of(ends: Endpoints, end: str) -> str:
    return format_endpoint(ends.src, ends.sport) if end == "src" else format_endpoint(ends.dst, ends.dport)


def _handshake(shake: Handshake) -> tuple[str, bool | None, str]:
    """Returns (stage, whether the listener accepted it or None, detail)."""
    verbs = {"SYN": ("answered", "refused"), "ACK": ("connected", "refused")}.get(shake.stage, ("taken", "refused"))
    done = "not known whether " + verbs[0] if shake.accepted is None else verbs[not shake.accepted]
    queues = f"accept queue {shake.accept_queue}/{shake.accept_limit}{' (full)' * shake.accept_queue_full}"
    queues = queues.replace(" ", KEEP)
    if shake.syn_queue:
        queues += f", SYN{KEEP}queue{KEEP}{shake.syn_queue}"
    known = shake.accept_queue or shake.accept_limit or shake.syn_queue
    return {"ACK": "last ACK"}.get(shake.stage, shake.stage), shake.accepted, f"{done}, {queues}" if known else done


def _socket(socket: Socket) -> str:
    who = f"process {socket.command or 'not found'} (inode {socket.inode})" if socket.inode else "no process holds it"
    if socket.pid:
        who = f"{plain(socket.command)} (pid {socket.pid})"
    return ", ".join(p for p in (socket.state, who) if p)
