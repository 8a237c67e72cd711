# SPDX-License-Identifier: Apache-2.0
"""Variations of the five incidents: other names, ports and addresses, several faults at once, IPv6, other back ends, and other
traffic at the same time. The same seed gives the same variations.

Each variation has its own Services. incidents/varied.py builds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from incidents import missing_masquerade
from incidents.proxy.model import HostPort, Service
from scenes import servers
from scenes.topology import PODS

BACKENDS = ("legacy", "nft", "native", "ipvs")
"""legacy, nft: kube-proxy in iptables mode, in that back end. native, ipvs: in its nftables mode, in its ipvs mode."""
FINDINGS = {1: "nodeport_host_process", 2: "syn_dropped", 3: "missing_masquerade", 4: "no_local_endpoints",
            5: "hostport_takes_service"}  # fmt: skip
_WORDS = [
    "cart",
    "web",
    "shop",
    "mysql",
    "queue",
    "auth",
    "pay",
    "mail",
    "feed",
    "api",
    "blog",
    "wiki",
    "files",
    "chat",
    "map",
    "game",
]


@dataclass(frozen=True)
class Variation:
    """One variation. family: 4 or 6. services: the affected Services; beside: a healthy one. busy: other clients use the
    healthy one at the same time. first: for incident 5, the program that has the first jump. expected: number of findings.
    """

    incident: int
    number: int
    backend: str
    family: int
    services: tuple[Service, ...]
    beside: Service
    busy: bool
    healthy: bool = False
    first: str = "portmap"
    host_ports: tuple[HostPort, ...] = field(default=())

    @property
    def finding(self) -> str:
        return FINDINGS[self.incident]

    @property
    def expected(self) -> int:
        if self.healthy:
            return 0
        # One stale rule, and one stuck listener, is one cause for any number of Services.
        return 1 if self.incident in (2, 3) else len(self.services)

    @property
    def ports(self) -> tuple[int, ...]:
        ports = (s.port if self.cluster_ip else s.node_port for s in self.services)
        return tuple(dict.fromkeys((*ports, self.beside.node_port)))

    @property
    def cluster_ip(self) -> bool:
        """Whether clients use the Services' cluster IPs, not their NodePorts."""
        return self.incident == 3 or (self.incident == 5 and (self.backend == "ipvs" or self.first == "anywhere"))

    @property
    def text(self) -> str:
        names = ", ".join(f"{s.label} {s.node_port or s.port}" for s in self.services)
        words = [self.backend, f"IPv{self.family}", names, "busy" * self.busy, "healthy" * self.healthy]
        return f"{self.incident} variation {self.number} ({', '.join(filter(None, words))})"


def variations(incident: int, seed: int = 1, count: int = 10) -> Iterator[Variation]:
    """The first `count` variations of an incident. Every fifth is a healthy twin; the others have the fault."""
    dice = Random(f"{seed} {incident}")
    for number in range(1, count + 1):
        # canal writes iptables rules; here, ipvs exists for IPv4 only.
        backend = BACKENDS[number % 4] if incident != 3 else ("legacy", "nft", "ipvs")[number % 3]
        family = 6 if number % (4 if incident == 3 else 3) == 2 and backend != "ipvs" else 4
        twice = number % 3 == 0
        taken: set[int] = set()
        local = incident == 4
        some = tuple(_service(dice, family, taken, incident, local) for _ in range(1 + twice))
        beside = _service(dice, family, taken, 0, False)
        healthy = number % 5 == 0
        first = "anywhere" if backend == "legacy" else "portmap"
        hosts = _host_ports(dice, some, family, first == "anywhere" or backend == "ipvs") if incident == 5 else ()
        if healthy:
            # No port is taken, all pods accept, no rule is stale, every pod is known as local, ports differ.
            hosts = tuple(HostPort(h.port + 1, h.address, h.to, h.container) for h in hosts)
            some = tuple(Service(s.name, s.address, s.port, s.node_port, s.ends, s.port_name, False) for s in some)
        yield Variation(incident, number, backend, family, some, beside, number % 2 == 0, healthy, first, hosts)


def _service(dice: Random, family: int, taken: set[int], incident: int, local: bool) -> Service:
    port = dice.choice([p for p in range(30000, 32768) if p not in taken and p - 1 not in taken])
    taken.add(port)
    name = f"{dice.choice(_WORDS)}-{port % 97}/{dice.choice(_WORDS)}-{port}"
    last = dice.randrange(256, 65000)
    address = f"fd00:172:30::{last:x}" if family == 6 else f"172.30.{last >> 8}.{last & 255}"
    pods = [p.addr6 if family == 6 else p.addr4 for p in PODS]
    ends = [(a, servers.HTTP_PORT) for a in pods]
    if incident == 1 and dice.random() < 0.5:
        ends = []
    if incident == 3:
        ends = [(missing_masquerade.PODS[family], 8080)]
    if incident == 5:
        ends = ends[:1]
    named = dice.choice(["", "http", "tcp-1"])
    own = port - 20000 if incident == 5 else dice.choice([80, 443, 8080, 9000 + port % 100])
    return Service(name, address, own, port, tuple(ends), named, local)


def _host_ports(dice: Random, services: tuple[Service, ...], family: int, cluster: bool) -> tuple[HostPort, ...]:
    """One for each Service, on the port of its cluster IP or its NodePort, each with another pod."""
    ports = [s.port if cluster else s.node_port for s in services]
    pods = [p.addr6 if family == 6 else p.addr4 for p in PODS[1:]]
    return tuple(
        HostPort(port, pod, servers.HTTP_PORT, f"{dice.getrandbits(256):064x}")
        for port, pod in zip(ports, pods, strict=False)
    )  # fmt: skip
