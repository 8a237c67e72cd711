# SPDX-License-Identifier: Apache-2.0
"""Data planes beside netfilter on the path of a predicted packet: Open vSwitch, and eBPF programs that carry out policies.

They decide before the first hook or after the last one, and what they decide cannot be read: neither flows nor maps are. So a
path through them has no known outcome, whatever the rules say.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tracer.findings.proofs import last_ends
from tracer.kernel import attached_programs
from tracer.kernel.attached_programs import ProgramCatalog
from tracer.kube.catalog import ClusterView
from tracer.kube.policies.policy_candidates import OPEN_VSWITCH, candidates, own_maps
from tracer.model.bpf_program import POLICY_LOADERS, AttachedProgram, AttachPoint
from tracer.model.packet import Outcome, Packet
from tracer.model.prediction import PredictedPath
from tracer.node.routes import NetworkDevice
from tracer.util.frozen import evolve

OVS_KIND = "openvswitch"
"""Kind of the interfaces that lead into a datapath of Open vSwitch: "antrea-gw0", "ovn-k8s-mp0"."""
PASSED = frozenset({Outcome.FORWARDED, Outcome.SENT, Outcome.DELIVERED})

Programs = Mapping[tuple[str, AttachPoint], Sequence[AttachedProgram]]


@dataclass(frozen=True)
class OtherDatapath:
    """Something beside netfilter that decides about a packet.

    Attributes:
        text: What it is, and where: "Open vSwitch behind antrea-gw0".
        why: Why its decision is not known, as the beginning of a sentence.
    """

    text: str
    why: str


@dataclass(frozen=True)
class OtherDatapaths:
    """What decides beside netfilter at the interfaces of a node.

    Attributes:
        devices: The node's interfaces.
        programs: eBPF programs, by interface and place.
        unread: Why programs are not known; "" = they were read.
    """

    devices: Sequence[NetworkDevice] = ()
    programs: Programs = field(default_factory=dict)
    unread: str = ""

    @classmethod
    def of_machine(cls, devices: Sequence[NetworkDevice]) -> OtherDatapaths:
        """Reads the programs of this process's network namespace."""
        found: dict[tuple[str, AttachPoint], Sequence[AttachedProgram]] = {}
        try:
            for (ifindex, point), attached in attached_programs.read(ProgramCatalog()).items():
                with suppress(OSError):  # the interface has gone
                    found[socket.if_indextoname(ifindex), point] = attached.programs
        except OSError as e:
            return cls(devices, {}, e.strerror or str(e))
        return cls(devices, found)

    def on_path(self, packet: Packet) -> tuple[OtherDatapath, ...]:
        """What decides at the interfaces of a predicted packet, in the order of its path."""
        faces = dict.fromkeys(name for hop in packet.hops for name in (hop.in_iface, hop.out_iface) if name)
        return tuple(dict.fromkeys(each for name in faces for each in self._at(name)))

    def _at(self, name: str) -> Iterator[OtherDatapath]:
        if any(device.name == name and device.kind == OVS_KIND for device in self.devices):
            yield OtherDatapath(f"Open vSwitch behind {name}", OPEN_VSWITCH)
        for point in AttachPoint:
            for program in self.programs.get((name, point), ()):
                if program.loader in POLICY_LOADERS:
                    yield OtherDatapath(f"{program.text} at {point} of {name} ({program.origin})", own_maps(program))


def with_other_datapaths(predicted: PredictedPath, found: OtherDatapaths, cluster: ClusterView) -> PredictedPath:
    """Adds what decides beside netfilter. A path that netfilter lets pass then has no known outcome.

    Args:
        predicted: The path, with its owners.
        found: What decides at the node's interfaces.
        cluster: The objects, for the policies that may decide there.
    """
    packet = predicted.packet
    if packet.outcome not in PASSED:
        return predicted
    others = found.on_path(packet)
    unread = f"whether an eBPF program decides, too, is not known: programs could not be read ({found.unread})"
    notes = [*predicted.notes, *([unread] if found.unread else [])]
    if others:
        policies = candidates(last_ends(packet), packet.protocol.lower(), cluster)
        notes += [policies.sentence(why) for why in dict.fromkeys(each.why for each in others)]
        notes += policies.single_clauses
        places = " and ".join(each.text for each in others)
        verdict = f"not known: {places} decide{'s' * (len(others) == 1)}, too; by netfilter alone: {packet.verdict}"
        packet = evolve(packet, verdict=verdict, outcome=Outcome.UNKNOWN)
    twins = tuple(with_other_datapaths(twin, found, cluster) for twin in predicted.twins)
    return replace(predicted, packet=packet, notes=tuple(notes), twins=twins)
