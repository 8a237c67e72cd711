"""One state of one incident, built, traced and explained as a run of the tracer would: what was found."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

import incidents
from incidents.objects import Object
from scenes.rules import Backend
from tests.kernel.watching import Watch
from tracer.filters import Filter
from tracer.findings import Findings
from tracer.findings.context import Context
from tracer.findings.model import Finding
from tracer.kube import node
from tracer.kube.cni import Cache
from tracer.kube.explain import explain
from tracer.kube.known import Known
from tracer.kube.store import Store
from tracer.model import Packet
from tracer.syns.watch import Syns

MODULES = (
    "nf_tables nft_compat nft_chain_nat xt_set ip_set ip_set_hash_ip ip_set_hash_net ip_set_hash_ipport ip_vs ip_vs_rr dummy"
)


def load_modules() -> None:
    """Loads what the incidents' rules need: probes are attached to what is there when they are."""
    for module in MODULES.split():
        subprocess.run(["modprobe", "-q", module], check=False)


@dataclass
class Result:
    """expected: how many findings of the incident's name there should be. backend: whose the rules are. said: what the
    client asked, and what came of it.
    """

    incident: incidents.Incident
    state: str
    expected: int
    backend: Backend = "legacy"
    findings: list[Finding] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)

    @property
    def right(self) -> int:
        return sum(f.name == self.incident.finding and f.certain for f in self.findings)

    @property
    def false(self) -> int:
        """Those that should not be there, also if they are not certain."""
        others = sum(f.name != self.incident.finding or not f.certain for f in self.findings)
        return others + max(0, self.right - self.expected)

    @property
    def text(self) -> str:
        lines = [
            f"{self.incident.number} {self.state} ({self.backend}): {self.right} of {self.expected} found, {self.false} false"
        ]
        lines += [f"    {f.name}{'' if f.certain else ' (perhaps)'}: {f.cause}" for f in self.findings]
        if (self.right, self.false) != (self.expected, 0):
            lines += [f"    asked: {asked}: {answer}" for asked, answer in self.said]
            lines += [f"    {line}" for packet in self.packets for line in _way(packet)]
        return "\n".join(lines)


def _way(packet: Packet) -> list[str]:
    """A packet and its decisive hops, for whoever asks why nothing was found."""
    hops = [h for h in packet.hops if h.decisive or (h.walk and h.walk.undecided)]
    told = [(h.hook, h.table, h.verdict, h.walk and h.walk.undecided, h.owner and h.owner.text) for h in hops]
    return [f"{packet.tcp_flags} {packet.endpoints.dst}:{packet.endpoints.dport} {packet.verdict}", *map(str, told)]


def known(objects: list[Object]) -> Known:
    """What the tracer knows of these objects, on this node."""
    store = Store()
    store.load(objects)
    local = node.local_addresses()
    store.node = node.name_of_node(store, local)
    return Known(store, Cache(), local)


def run(watch: Watch, incident: incidents.Incident, state: str, backend: Backend = "legacy") -> Result:
    """Builds the state, makes its traffic under the tracer, and leaves it up."""
    result = Result(incident, state, incident.states[state], backend)
    of = known(incident.up(state, backend))
    with watch(Filter(ports=incident.ports), nft=backend == "nft") as seen:
        result.said = incident.traffic(state)
    findings, syns = Findings(Context(of)), Syns()
    for packet in seen.packets:
        explain(packet, of)
        findings.look(packet)
        syns.add(packet)
    for verdict in syns.rest():
        findings.look_syn(verdict)
    result.findings, result.packets = findings.all, seen.packets
    return result
