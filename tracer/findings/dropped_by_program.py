# SPDX-License-Identifier: Apache-2.0
"""An eBPF program of tc, XDP or a cgroup drops packets, or one of sk_lookup refuses them: which one, where, and who loaded it.

The kernel does not say which program it was. Where several may have been, the finding is not certain.
"""

from __future__ import annotations

import shlex

from tracer.findings.context import FindingContext
from tracer.findings.proofs import check_of_candidates, last_ends, packet_proof, policy_proofs
from tracer.kube.policies.policy_candidates import PolicyCandidates, candidates, own_maps
from tracer.model.bpf_program import CGROUP_POINTS, AttachedProgram, AttachPoint, ProgramAction, ProgramKind, policy_loader
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DropHop
from tracer.model.namespace_name import is_host
from tracer.model.packet import Outcome, Packet
from tracer.util.endpoint_format import format_endpoint

MONITORS = {
    "Cilium": "In the pod of Cilium's agent `cilium-dbg monitor --type drop`, or `hubble observe --verdict DROPPED`, shows the"
    " reason.",
}
"""How a loader of POLICY_LOADERS shows why it dropped a packet."""


ENDINGS = (Outcome.DROPPED, Outcome.REFUSED)
"""Outcomes of a packet that a program drops; one of sk_lookup refuses it, and the kernel answers as where nothing listens."""


def find(packet: Packet, context: FindingContext) -> Finding | None:
    hop = next((h for h in reversed(packet.hops) if isinstance(h, DropHop) and not h.clone), None)
    if packet.outcome not in ENDINGS or hop is None or not hop.drop.program or not hop.drop.program.candidates:
        return None
    found, ends = hop.drop.program, packet.endpoints
    target = format_endpoint(ends.dst, ends.dport)
    where = "" if is_host(hop.netns) else f" in {hop.netns}"
    loader = _policy_loader(found)
    policies = candidates(last_ends(packet), packet.protocol.lower(), context.cluster) if loader else None
    return Finding(
        name="",
        key=(hop.netns, found.point.value, found.iface, tuple(each.number for each in found.candidates), ends.dport),
        cause=f"{_subject(found)} packets from {ends.src} to {target} at {found.place}{where}.{_policy(found, policies)}",
        proofs=(
            packet_proof(packet),
            *(FindingEvidence("program", _described(each), "tc, XDP and bpf(2)") for each in found.candidates),
            *policy_proofs(policies),
        ),
        check=" ".join(filter(None, (_check(found, where), MONITORS.get(loader, ""), check_of_candidates(policies)))),
        cure=_cure(found, ends.src, target),
        certain=found.program is not None,
    )


def _policy_loader(found: ProgramAction) -> str:
    """As policy_loader; no policy is carried out by choosing a socket."""
    return "" if found.point is AttachPoint.SK_LOOKUP else policy_loader(found)


def _policy(found: ProgramAction, policies: PolicyCandidates | None) -> str:
    """That the policy is unknown, as a sentence behind another one; "" = the loader is not known to carry out policies."""
    return f" {policies.sentence(own_maps(found.candidates[0]))}" if policies else ""


def _subject(found: ProgramAction) -> str:
    verb = "refuses" if found.point is AttachPoint.SK_LOOKUP else "drops"
    if program := found.program:
        clauses = "".join(f", {each}" for each in (program.origin, found.caveat) if each)
        return f"{_upper(program.text)}{clauses}{',' if clauses else ''} {verb}"
    if len(found.candidates) == 1:
        return f"Perhaps {found.candidates[0].text} {verb} ({found.doubt})"
    return f"Perhaps one of {len(found.candidates)} programs {verb} ({found.doubt})"


def _upper(text: str) -> str:
    """The text as the beginning of a sentence; "eBPF" stays."""
    return text if text.startswith("eBPF") else text[0].upper() + text[1:]


def _described(program: AttachedProgram) -> str:
    where = f"attached as {program.kind}" + (f" at {program.cgroup}" if program.cgroup else "")
    known = (program.text, where, program.origin, program.tag and f"tag {program.tag}", program.pin)
    return ", ".join(filter(None, known))


def _check(found: ProgramAction, where: str) -> str:
    """The commands that show what is attached."""
    device = shlex.quote(found.iface or "INTERFACE")
    place = f"{where.strip()}: ".capitalize() if where else ""
    if found.point is AttachPoint.SK_LOOKUP:
        links = f"{place}`bpftool link show` shows the links of type netns with the ids of their programs"
        return f"{links}; `ss -lntu` shows whether a socket listens at all."
    if found.point in CGROUP_POINTS:
        return "`bpftool cgroup tree` shows the programs of all cgroups with their ids."
    if found.point is AttachPoint.NETKIT:
        policies = f"{place}`ip -d link show dev {device}` shows the pair's policies"
        return f"{policies}; `bpftool net show`, in the namespace of its primary end, shows its programs."
    if found.point is AttachPoint.XDP:
        return f"{place}`ip -d link show dev {device}` shows the XDP program with its id."
    direction = "ingress" if found.point is AttachPoint.TC_INGRESS else "egress"
    shown = [f"`tc filter show dev {device} {direction}` shows the filters of tc"]
    if any(each.kind == ProgramKind.TCX for each in found.candidates):
        shown = [*(shown if len(found.candidates) > 1 else []), f"`bpftool net show dev {device}` shows programs of tcx"]
    return f"{place}{'; '.join(shown)}."


def _cure(found: ProgramAction, source: str, target: str) -> str:
    if found.program and (loader := _policy_loader(found)):
        return (
            f"If {loader} carries out a NetworkPolicy there, one that allows {source} to reach {target}; {loader}'s own log or"
            " monitor says why it drops."
        )
    verb = "refuse" if found.point is AttachPoint.SK_LOOKUP else "drop"
    return f"If it should not {verb} them, change or remove the program at its source: its loader attaches it again."
