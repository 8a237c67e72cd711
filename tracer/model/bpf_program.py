# SPDX-License-Identifier: Apache-2.0
"""eBPF programs at interfaces and cgroups, and what is known of them where one dropped, redirected or rewrote a packet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

POLICY_LOADERS = frozenset({"Cilium", "Calico", "AWS network policy agent", "Antrea"})
"""Loaders that carry out NetworkPolicies by their programs."""


class AttachPoint(StrEnum):
    """A place of an interface or a cgroup where programs decide about packets, as it is shown."""

    TC_INGRESS = "tc ingress"
    TC_EGRESS = "tc egress"
    XDP = "XDP"
    NETKIT = "netkit"
    CGROUP_INGRESS = "cgroup ingress"
    CGROUP_EGRESS = "cgroup egress"
    CONNECT4 = "connect4"
    CONNECT6 = "connect6"
    SENDMSG4 = "sendmsg4"
    SENDMSG6 = "sendmsg6"
    SK_LOOKUP = "sk_lookup"


CGROUP_POINTS = frozenset({
    AttachPoint.CGROUP_INGRESS, AttachPoint.CGROUP_EGRESS, AttachPoint.CONNECT4, AttachPoint.CONNECT6, AttachPoint.SENDMSG4,
    AttachPoint.SENDMSG6,
})  # fmt: skip
"""Places of cgroups: the socket's own cgroup and those above it."""


class ProgramKind(StrEnum):
    """How a program, or another filter, is attached. NETKIT_PRIMARY, NETKIT_PEER: to that end of a pair, for what it sends."""

    TC = "tc"
    TC_CLASSIFIER = "tc classifier"
    TC_FILTER = "tc filter"
    TCX = "tcx"
    XDP_GENERIC = "XDP generic"
    XDP_NATIVE = "XDP native"
    XDP_HARDWARE = "XDP hardware"
    NETKIT_PRIMARY = "netkit primary"
    NETKIT_PEER = "netkit peer"
    NETKIT_POLICY = "netkit policy"
    CGROUP = "cgroup"
    CONNECT = "cgroup, at connect"
    SK_LOOKUP = "sk_lookup"


@dataclass(frozen=True)
class AttachedProgram:
    """A program at an interface or a cgroup. Filters of tc and a pair's policy are here, too: they may drop the same packets.

    Attributes:
        kind: ProgramKind: TC = direct action; TC_CLASSIFIER = it selects packets and an action of tc drops them; TC_FILTER = no
            eBPF program; NETKIT_POLICY = no program: what a pair does with a packet about which no program decides.
        number: The kernel's id of the program; 0 = no eBPF program, or its id cannot be read.
        name: Name of the program; of another filter, its kind and preference: "flower pref 10".
        tag: The kernel's hash of the instructions, hexadecimal; "" = not known.
        loader: The software that loaded it: "Cilium"; "" = not known.
        loader_evidence: How `loader` is known: "name", "pin", "process"; "" = not known.
        pin: A path under which it, or its link, is pinned; "" = none found.
        holder: A process that holds it, "cilium-agent (pid 812)"; "" = none found, or not searched for.
        cgroup: Path of the cgroup where it is attached, "/" = the root of the hierarchy; "" = it is at an interface, or the
            path is not known.
    """

    kind: str
    number: int = 0
    name: str = ""
    tag: str = ""
    loader: str = ""
    loader_evidence: str = ""
    pin: str = ""
    holder: str = ""
    cgroup: str = ""

    @property
    def text(self) -> str:
        """Its name for a reader: "eBPF program cil_from_contai (id 42)"."""
        if self.kind == ProgramKind.TC_FILTER:
            return f"tc filter {self.name}"
        if self.kind == ProgramKind.NETKIT_POLICY:
            return "netkit's default policy"
        noun = "eBPF classifier" if self.kind == ProgramKind.TC_CLASSIFIER else "eBPF program"
        number = f" (id {self.number})" if self.number else ""
        return f"{noun} {self.name or 'without a name'}{number}"

    @property
    def origin(self) -> str:
        """Its loader as a clause: "loaded by Cilium"; a name alone is no evidence of it. "" = it is no eBPF program."""
        if self.kind in (ProgramKind.TC_FILTER, ProgramKind.NETKIT_POLICY):
            return ""
        if not self.loader:
            return f"held by {self.holder}" if self.holder else f"pinned at {self.pin}" if self.pin else "loader unknown"
        return f"named as by {self.loader}" if self.loader_evidence == "name" else f"loaded by {self.loader}"


@dataclass(frozen=True)
class ProgramPeriod:
    """A time during which the same programs were attached at one place.

    Attributes:
        since: When they had been read first, ns, CLOCK_MONOTONIC.
        until: When they were last known to be the same; 0 = when the question was asked.
        programs: The programs, in the order in which they run as far as the kernel gives it; () = none.
    """

    since: int
    until: int
    programs: tuple[AttachedProgram, ...]


@dataclass(frozen=True)
class ProgramAction:
    """What is known of the program that dropped, redirected or rewrote a packet.

    Attributes:
        point: Where.
        iface: The interface; of netkit, the end that would have received the packet; "" = the place is a cgroup, or it is not
            known.
        candidates: The programs that may have done it.
        doubt: Why none of them is named; "" = there is one, and it did.
        caveat: What else may have freed the packet, as a clause; "" = nothing.
        is_observed: The kernel gave the id of the program.
    """

    point: AttachPoint
    iface: str
    candidates: tuple[AttachedProgram, ...]
    doubt: str = ""
    caveat: str = ""
    is_observed: bool = False

    @property
    def program(self) -> AttachedProgram | None:
        """The program that did it; None = it is not certain."""
        return None if self.doubt or len(self.candidates) != 1 else self.candidates[0]

    @property
    def place(self) -> str:
        """The place for a reader: "tc ingress of eth0", "cgroup egress of /system.slice"."""
        if self.point in CGROUP_POINTS:
            cgroups = {each.cgroup for each in self.candidates}
            return f"{self.point} of {cgroups.pop()}" if len(cgroups) == 1 and "" not in cgroups else self.point.value
        if self.point is AttachPoint.SK_LOOKUP:
            return self.point.value
        return f"{self.point} of {self.iface or 'an unknown interface'}"

    @property
    def text(self) -> str:
        """Which program, as a clause behind "dropped", "redirected" or "rewritten"."""
        if program := self.program:
            return ", ".join(filter(None, (f"by {program.text} at {self.place}", program.origin, self.caveat)))
        has_cgroups = len({each.cgroup for each in self.candidates}) > 1
        names = [_candidate(each, has_cgroups) for each in self.candidates]
        if not names:
            return f"at {self.place}, program unknown: {self.doubt}"
        which = f"candidate {names[0]}" if len(names) == 1 else f"{len(names)} candidates: {', '.join(names)}"
        return f"at {self.place}, {which}: {self.doubt}" if len(names) == 1 else f"at {self.place}, {which}; {self.doubt}"


def policy_loader(found: ProgramAction) -> str:
    """The loader of all programs that may have dropped the packet, if it carries out NetworkPolicies; "" = none, or several."""
    loaders = {each.loader for each in found.candidates}
    return next(iter(loaders)) if len(loaders) == 1 and loaders <= POLICY_LOADERS else ""


def _candidate(program: AttachedProgram, has_cgroup: bool) -> str:
    """A program in a list. has_cgroup: with its cgroup."""
    cgroup = f"of {program.cgroup}" if has_cgroup and program.cgroup else ""
    return " ".join(filter(None, (program.text, cgroup, f"({program.origin})" if program.origin else "")))
