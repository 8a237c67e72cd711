# SPDX-License-Identifier: Apache-2.0
"""Which eBPF program dropped a packet: from the kernel's reason, the function that freed it, and the programs attached then.

The kernel does not say which program it was. Where exactly one was attached, that one is named (derived). Otherwise all that
may have dropped it are candidates, and none is chosen. docs/programs.md has the kernel's code behind each row.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tracer.events import record
from tracer.events.detail_row import DecisionDetailRow
from tracer.model.bpf_program import (
    CGROUP_POINTS,
    AttachedProgram,
    AttachPoint,
    ProgramAction,
    ProgramKind,
    ProgramPeriod,
)

NO_REASON = ("", "NOT_SPECIFIED")
"""What a kernel without drop reasons gives, and what a caller of plain kfree_skb gives."""
NO_MEMORY = "unless memory was short"
REDIRECTED = "or a redirection of it failed"
WITHOUT_REASON = "this kernel gives no reason"
SECURITY = "unless memory was short or a security module refused it"
LEFT_TO_POLICY = "it left the packet to the pair's policy, which drops"
OWN_FILTER = "or the socket's own filter did"
NO_NETNS_INODE = 0
"""Namespace of a question about a cgroup, which belongs to none."""
NO_INTERFACE = 0
"""Interface of a question about a network namespace."""


class AttachedPrograms(Protocol):
    """The programs at interfaces and cgroups: of this machine, recorded, or from a capture."""

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        """The programs of a place, oldest first; None = not asked.

        Args:
            netns: Inode of the interface's namespace; NO_NETNS_INODE = the place is a cgroup.
            ifindex: Number of the interface, or the id of the socket's cgroup; NO_INTERFACE = the place is the namespace.
            point: Which place of it.
            time: Time of the drop, ns, CLOCK_MONOTONIC.
        """
        ...


class NoPrograms:
    """No program is known."""

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        return None


@dataclass(frozen=True)
class DropPlace:
    """A row of the table: packets that are freed in this way were dropped by a program.

    Attributes:
        point: Where programs decide.
        reasons: Drop reasons of the kernel.
        functions: Functions that free the packet; () = any.
        doubt: Why the only program there is not named; "" = it is.
        caveat: What else may have freed the packet, but seldom does; it is said behind the name.
        is_guess: Most drops there have another cause: without a program there, nothing is said.
        filter_doubt: `doubt` where the packet's socket has a filter of its own; "" = it has no part in these drops.
    """

    point: AttachPoint
    reasons: tuple[str, ...]
    functions: tuple[str, ...] = ()
    doubt: str = ""
    caveat: str = ""
    is_guess: bool = False
    filter_doubt: str = ""

    def fits(self, reason: str, function: str) -> bool:
        """Whether a drop is one of this row."""
        # The compiler adds a suffix to the name of a function that it has changed: ".constprop.0".
        return reason in self.reasons and (not self.functions or function.partition(".")[0] in self.functions)


PLACES = (
    # sch_handle_ingress, sch_handle_egress: TC_ACT_SHOT of a filter or a program. Kernel commits a568aff26ac0 ("net: dev: use
    # kfree_skb_reason() for sch_handle_ingress()") and 98b4d7a4e737 ("... for sch_handle_egress()"), 5.18.
    DropPlace(AttachPoint.TC_INGRESS, ("TC_INGRESS",)),
    DropPlace(AttachPoint.TC_EGRESS, ("TC_EGRESS",)),
    # netif_receive_generic_xdp frees a packet for XDP_DROP, XDP_ABORTED or an invalid result, without a reason, and where
    # memory for a copy is short. It may be inlined into do_xdp_generic, which has a reason of its own where a redirection
    # fails: commit 7e726ed81e1d ("net: dev: use kfree_skb_reason() for do_xdp_generic()", 5.18).
    DropPlace(AttachPoint.XDP, NO_REASON, ("netif_receive_generic_xdp",), caveat=NO_MEMORY),
    DropPlace(AttachPoint.XDP, ("NOT_SPECIFIED",), ("do_xdp_generic",), caveat=NO_MEMORY),
    DropPlace(AttachPoint.XDP, ("",), ("do_xdp_generic",), REDIRECTED),
    DropPlace(AttachPoint.XDP, ("XDP",), (), REDIRECTED),
    # veth_xdp_rcv_skb frees a packet for XDP_DROP, XDP_ABORTED or an invalid result, and where memory for a copy is short.
    DropPlace(AttachPoint.XDP, NO_REASON, ("veth_xdp_rcv_skb", "veth_xdp_rcv", "veth_poll"), caveat=NO_MEMORY, is_guess=True),
    # netkit_xmit frees a packet for NETKIT_DROP of a program or of the pair's policy, and where memory for a copy is short; the
    # packet's device is then the receiving end. While an end is down, no programs are listed (netkit_programs.receiving_end).
    DropPlace(AttachPoint.NETKIT, NO_REASON, ("netkit_xmit",), caveat=NO_MEMORY, is_guess=True),
    # Kernels before 5.18: only the function is known.
    DropPlace(AttachPoint.TC_INGRESS, ("",), ("sch_handle_ingress", "__netif_receive_skb_core"), WITHOUT_REASON, is_guess=True),
    DropPlace(AttachPoint.TC_EGRESS, ("",), ("sch_handle_egress", "__dev_queue_xmit"), WITHOUT_REASON, is_guess=True),
    # ip_finish_output and ip6_finish_output: kernel commit 5e187189ec32 ("net: ip: add skb drop reasons for ip egress path"),
    # 5.18.
    DropPlace(AttachPoint.CGROUP_EGRESS, ("BPF_CGROUP_EGRESS",)),
    # sk_filter_trim_cap refuses a packet for a program of the socket's cgroup, for a security module, for the socket's own
    # filter, and where the packet took the last memory.
    DropPlace(AttachPoint.CGROUP_INGRESS, ("SOCKET_FILTER",), caveat=SECURITY, is_guess=True, filter_doubt=OWN_FILTER),
)
"""In order: the first row that fits counts."""

REPLACED = {
    (False, False): DropPlace(AttachPoint.CONNECT4, ()),
    (False, True): DropPlace(AttachPoint.CONNECT6, ()),
    (True, False): DropPlace(AttachPoint.SENDMSG4, ()),
    (True, True): DropPlace(AttachPoint.SENDMSG6, ()),
}
"""Where a program may have replaced the address that a socket asked for, by whether that was at sendmsg(), and whether it is an
IPv6 program: no drop, but the same account."""

LOOKUP = DropPlace(AttachPoint.SK_LOOKUP, ("NO_SOCKET",))
"""Where a program refuses a packet, or chooses its socket. The kernel's reason is that of a packet without a socket; a probe
shows that a program refused it."""
UNREAD = "what is attached could not be read"

SEVERAL = "which of them is not known"
CHANGED = "what was attached at that moment is not known"
NONE = "none was attached there"


def place_of(reason: str, function: str, manip: int = 0) -> DropPlace | None:
    """The row of a drop; None = no program dropped the packet, as far as the kernel says. manip: of the DROP event."""
    if manip & record.DROP_LOOKUP and reason in LOOKUP.reasons:
        return LOOKUP
    return next((row for row in PLACES if row.fits(reason, function)), None)


def replacing_place(detail: DecisionDetailRow) -> DropPlace:
    """Where programs replaced the address that a socket asked for. detail: of kind DETAIL_CONNECT."""
    return REPLACED[bool(detail.status), detail.state == socket.AF_INET6]


def place_key(place: DropPlace, netns: int, ifindex: int, table: bytes) -> tuple[int, int] | None:
    """Namespace and number that `AttachedPrograms.periods` is asked for; None = not known. table: of the DROP event."""
    if place.point in CGROUP_POINTS:
        cgroup = record.socket_cgroup(table)
        return (NO_NETNS_INODE, cgroup) if cgroup else None
    if place is LOOKUP:
        return netns, NO_INTERFACE
    return (netns, ifindex) if ifindex else None


def lookup_decision(time: int, periods: Sequence[ProgramPeriod] | None) -> ProgramAction:
    """Which program of sk_lookup decided. time, periods: as for program_drop."""
    found = program_drop(LOOKUP, "", time, periods) if periods else None
    return found or ProgramAction(LOOKUP.point, "", (), UNREAD)


def attached_at(periods: Sequence[ProgramPeriod], time: int) -> tuple[AttachedProgram, ...] | None:
    """The programs that were attached at a time, ns, CLOCK_MONOTONIC; None = it is not known."""
    now = [p for p in periods if p.since <= time and (not p.until or time <= p.until)]
    return now[-1].programs if now else None


def attached_around(periods: Sequence[ProgramPeriod], time: int) -> tuple[AttachedProgram, ...]:
    """The programs of the last period before a time and of the first one after it."""
    around = [p for p in periods if p.until and p.until < time][-1:] + [p for p in periods if p.since > time][:1]
    return tuple(dict.fromkeys(each for period in around for each in period.programs))


def program_drop(
    place: DropPlace, iface: str, time: int, periods: Sequence[ProgramPeriod], is_filtered: bool = False
) -> ProgramAction | None:
    """Which program dropped a packet; None = nothing is known of it.

    Args:
        place: The row of the drop.
        iface: The interface.
        time: When, ns, CLOCK_MONOTONIC.
        periods: The programs attached there, oldest first.
        is_filtered: The packet's socket has a filter of its own.
    """
    caveat = place.caveat
    doubt = place.filter_doubt if is_filtered and place.filter_doubt else place.doubt
    now = attached_at(periods, time)
    if now is not None:
        candidates = now
        if len(candidates) == 2 and candidates[1].kind == ProgramKind.NETKIT_POLICY:
            candidates, caveat = candidates[:1], f"{caveat} or {LEFT_TO_POLICY}"
        reasons = (SEVERAL if len(candidates) > 1 else "", doubt) if candidates else (NONE,)
    else:
        candidates = attached_around(periods, time)
        reasons = (CHANGED, doubt)
    if place.is_guess and not candidates:
        return None
    return ProgramAction(place.point, iface, candidates, "; ".join(filter(None, reasons)), caveat)
