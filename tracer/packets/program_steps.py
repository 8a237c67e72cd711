# SPDX-License-Identifier: Apache-2.0
"""Which eBPF program redirected or rewrote a packet: from the place where it ran, and the programs attached there then.

For generic XDP the kernel gives the program. Elsewhere it does not: where exactly one was attached, that one is named
(derived). Otherwise all that may have done it are candidates. docs/programs.md has the kernel's code behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracer.events.record import Event, Kind, ProgramPlace, RedirectWay
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramAction, ProgramKind, ProgramPeriod
from tracer.model.hop import RedirectHelper
from tracer.packets.program_drops import CHANGED, NONE, SEVERAL, attached_around, attached_at
from tracer.util.octets import c_text

NO_PLACE = "where it ran is not known"
REWRITTEN = "rewritten"
"""Kind of a rewrite that is no translation by conntrack."""
_POINTS: dict[int, tuple[AttachPoint, ...]] = {
    ProgramPlace.PLACE_UNKNOWN: (AttachPoint.TC_INGRESS, AttachPoint.TC_EGRESS, AttachPoint.NETKIT),
    ProgramPlace.PLACE_TC_INGRESS: (AttachPoint.TC_INGRESS,),
    ProgramPlace.PLACE_TC_EGRESS: (AttachPoint.TC_EGRESS,),
    ProgramPlace.PLACE_XDP: (AttachPoint.XDP,),
}
"""Where programs that redirect a packet may be attached, by ProgramPlace."""
_REWRITES: dict[int, tuple[AttachPoint, ...]] = {
    ProgramPlace.PLACE_TC_INGRESS: (AttachPoint.TC_INGRESS, AttachPoint.XDP),
    ProgramPlace.PLACE_TC_EGRESS: (AttachPoint.TC_EGRESS,),
}
"""Where programs that rewrite a packet between the two places at which it was seen may be attached, by ProgramPlace."""
_OUTSIDE = frozenset({ProgramKind.XDP_NATIVE, ProgramKind.XDP_HARDWARE, ProgramKind.NETKIT_POLICY})
"""Kinds that run before a packet is seen first, or do nothing of this."""
_HELPERS = (
    (RedirectWay.REDIRECT_COPY, RedirectHelper.COPY),
    (RedirectWay.REDIRECT_PEER, RedirectHelper.PEER),
    (RedirectWay.REDIRECT_NEIGHBOUR, RedirectHelper.NEIGHBOUR),
)

Question = tuple[int, int, AttachPoint]
"""Namespace, number of an interface and place of it that `AttachedPrograms.periods` is asked for."""


def questions(e: Event) -> list[Question]:
    """What is asked about the programs of a REDIRECT or REWRITE event."""
    ifindex = e.out_ifindex if e.state == ProgramPlace.PLACE_TC_EGRESS else e.in_ifindex
    points = (_REWRITES if e.kind == Kind.EVENT_REWRITE else _POINTS).get(e.state, ())
    # A packet of a VLAN has come to another interface meanwhile, and may have met the programs of both.
    interfaces = (ifindex, e.accept_len) if e.kind == Kind.EVENT_REWRITE else (ifindex,)
    return [(e.netns, each, point) for each in interfaces if each for point in points]


def helper(e: Event) -> RedirectHelper:
    """How the packet of a REDIRECT event was redirected."""
    if e.state == ProgramPlace.PLACE_XDP:
        return RedirectHelper.XDP
    return next((found for way, found in _HELPERS if e.manip & way), RedirectHelper.PLAIN)


def acting_program(
    e: Event, asked: Sequence[Question], answers: Sequence[Sequence[ProgramPeriod] | None]
) -> ProgramAction | None:
    """Which program redirected or rewrote a packet; None = nothing is known of it.

    Args:
        e: The event.
        asked: What `questions` gives.
        answers: The programs at each of these places.
    """
    names = {e.accept_len: c_text(e.chain), e.in_ifindex: c_text(e.in_name), e.out_ifindex: c_text(e.out_name)}
    found: dict[AttachedProgram, Question] = {}
    is_known, is_placed = bool(asked), e.state != ProgramPlace.PLACE_UNKNOWN
    for question, periods in zip(asked, answers, strict=True):
        now = attached_at(periods or (), e.time)
        is_known = is_known and now is not None
        for each in attached_around(periods or (), e.time) if now is None else now:
            if each.kind not in _OUTSIDE or e.object:
                is_placed = is_placed and each not in found
                found.setdefault(each, question)
    if e.kind == Kind.EVENT_REDIRECT and e.object:
        observed = next((each for each in found if each.number == e.object), None)
        program = observed or AttachedProgram(ProgramKind.XDP_GENERIC, e.object)
        return ProgramAction(AttachPoint.XDP, names[e.in_ifindex], (program,), is_observed=True)
    doubts = (
        "" if is_known else CHANGED,
        SEVERAL if is_known and len(found) > 1 else "" if found or not is_known else NONE,
        "" if is_placed else NO_PLACE,
    )
    if not asked or (e.kind == Kind.EVENT_REWRITE and not found):
        return None
    _, ifindex, point = next(iter(found.values())) if len(set(found.values())) == 1 else asked[0]
    return ProgramAction(point, names[ifindex], tuple(found), "; ".join(filter(None, doubts)))
