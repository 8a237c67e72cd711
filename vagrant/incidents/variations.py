"""The five incidents again and again, each time another way: other names, ports and addresses, several at once, IPv6, other
back ends, and other traffic beside it. The same seed gives the same variations.

Each is built from Services of its own, with the rules that kube-proxy would write for them (incidents/proxy_rules.py).
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import incidents
from incidents import kube_proxy as process
from incidents import links, missing_masquerade, objects, proxy_rules
from incidents.objects import Object
from incidents.proxy_rules import HostPort, Service
from scenes import rules, scene, servers
from scenes import traffic as ask
from scenes.topology import CLIENT, NODE4, NODE6, PODS, STATE_DIR

BACKENDS = ("legacy", "nft", "native")
"""native: nftables, as kube-proxy's mode of that name writes it."""
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

Said = list[tuple[str, str]]


@dataclass(frozen=True)
class Variation:
    """One variation. family: 4 or 6. services: those that the incident happens to; beside: a healthy one. busy: others use the
    healthy one meanwhile. first: of incident 5, whose jump stands first. expected: how many findings.
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
        # One stale rule, and one stuck listener, is one cause for however many Services.
        return 1 if self.incident in (2, 3) else len(self.services)

    @property
    def ports(self) -> tuple[int, ...]:
        every = (*self.services, self.beside)
        return tuple(dict.fromkeys(p for s in every for p in ((s.port,) if self.incident == 3 else (s.node_port,)) if p))

    @property
    def text(self) -> str:
        names = ", ".join(f"{s.label} {s.node_port or s.port}" for s in self.services)
        words = [self.backend, f"IPv{self.family}", names, "busy" * self.busy, "healthy" * self.healthy]
        return f"{self.incident} variation {self.number} ({', '.join(filter(None, words))})"


def variations(incident: int, seed: int = 1, count: int = 10) -> Iterator[Variation]:
    """The first ones of an incident. All but each fifth are broken, and the others are healthy twins."""
    dice = Random(f"{seed} {incident}")
    for number in range(1, count + 1):
        backend = BACKENDS[number % 3] if incident != 3 else BACKENDS[number % 2]
        family = 6 if number % 4 == 0 and incident != 3 else 4
        twice = number % 3 == 0 and incident in (1, 4, 5)
        taken: set[int] = set()
        local = incident == 4
        some = tuple(_service(dice, family, taken, incident, local) for _ in range(1 + twice))
        beside = _service(dice, family, taken, 0, False)
        healthy = number % 5 == 0
        hosts = _host_ports(dice, some, family) if incident == 5 else ()
        if healthy:
            # Nobody's port is taken, all pods accept, no rule is stale, every pod is known to be here, ports differ.
            hosts = tuple(HostPort(h.port + 1, h.address, h.to, h.container) for h in hosts)
            some = tuple(Service(s.name, s.address, s.port, s.node_port, s.ends, s.port_name, False) for s in some)
        yield Variation(incident, number, backend, family, some, beside, number % 2 == 0, healthy, "portmap", hosts)


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
        ends = [(missing_masquerade.POD, 8080)]
    if incident == 5:
        ends = ends[:1]
    named = dice.choice(["", "http", "tcp-1"])
    return Service(name, address, dice.choice([80, 443, 8080, 9000 + port % 100]), port, tuple(ends), named, local)


def _host_ports(dice: Random, services: tuple[Service, ...], family: int) -> tuple[HostPort, ...]:
    pod = PODS[1].addr6 if family == 6 else PODS[1].addr4
    return tuple(HostPort(s.node_port, pod, servers.HTTP_PORT, f"{dice.getrandbits(256):064x}") for s in services)


def up(v: Variation) -> list[Object]:
    """Builds it in the place of what was there; returns the API's objects."""
    incidents.down()
    scene.up(serve=servers.POD_SERVERS if v.incident != 2 or v.healthy else _stuck(v))
    rules.flush()
    post: list[str] = []
    if v.incident == 3:
        links.ip(*missing_masquerade.LINKS)
        net, mine, others = "192.168.64.0/20", "192.168.64.0/24", "192.168.66.0/24"
        post = [f"! -s {net} -d {others} -j RETURN"] if not v.healthy else []
        post += [f"-s {net} -d {net} -j RETURN", f"-s {net} ! -d 224.0.0.0/4 -j MASQUERADE", f"! -s {net} -d {mine} -j RETURN",
                 f"! -s {net} -d {net} -j MASQUERADE"]  # fmt: skip
        servers.start([servers.Server("node-2", "far", http=8080, udp=None)])
    every = (*v.services, v.beside)
    if v.backend == "native":
        text = proxy_rules.nftables(every, _node(v), v.host_ports)
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, capture_output=True)
    else:
        text = proxy_rules.iptables(every, v.host_ports, post, v.first if v.host_ports else "kube", "none" if post else "")
        rules.restore_text(text, v.family, "legacy" if v.backend == "legacy" else "nft")
    if v.incident == 1:
        ports = [s.node_port for s in v.services] if not v.healthy else [v.beside.node_port - 1]
        servers.start([servers.Server(None, f"host-{port}", http=port, udp=None) for port in ports])
    if v.incident == 4:
        process.start(config=f'kind: KubeProxyConfiguration\nhostnameOverride: "{"node-1" if v.healthy else "bare-name"}"\n')
    found = _objects(v, every)
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    (STATE_DIR / "objects.json").write_text(json.dumps({"kind": "List", "items": found}))
    return found


def _stuck(v: Variation) -> list[servers.Server]:
    return [servers.Server(p.name, p.name, accept=p is not PODS[0], backlog=1 + v.number % 3) for p in PODS]


def _node(v: Variation) -> str:
    return NODE6 if v.family == 6 else NODE4


def _objects(v: Variation, every: tuple[Service, ...]) -> list[Object]:
    cidr = "192.168.64.0/24" if v.incident == 3 else "fd00:10:244::/64" if v.family == 6 else "10.244.0.0/24"
    found = [objects.node("node-1", _node(v), cidr)]
    if v.incident == 3:
        found.append(objects.node("node-2", "192.168.57.20", "192.168.66.0/24"))
    for s in every:
        policy = {"externalTrafficPolicy": "Local"} if v.incident == 4 and s is not v.beside else {}
        found.append(objects.service(s.name, s.address, s.port, s.node_port, s.port_name, **policy))
        on = "node-2" if v.incident == 3 and s is not v.beside else "node-1"
        ends = [(f"pod-{n}", address, on) for n, (address, _) in enumerate(s.ends)]
        if ends:
            found.append(objects.endpoints(s.name, ends, s.ends[0][1], s.port_name))
    # A pod with a hostPort is there as such.
    for pod in PODS if not v.host_ports else (PODS[0], PODS[2]):
        found.append(objects.pod(f"default/{pod.name}", pod.addr6 if v.family == 6 else pod.addr4, "node-1", servers.HTTP_PORT))
    for h in v.host_ports:
        found.append(objects.pod(f"default/host-{h.port}", h.address, "node-1", h.to, h.port))
    return found


def traffic(v: Variation) -> Said:
    """Requests to each Service that the incident happens to, beside others' if the node is busy."""
    said: Said = []
    with _others(v) if v.busy else _nobody():
        for s in v.services:
            if v.incident == 2 and not v.healthy:
                said += _until_one_is_lost(v, s)
                continue
            for _ in range(2):
                ns, address, port = (None, s.address, s.port) if v.incident == 3 else (CLIENT, _node(v), s.node_port)
                reply = ask.http_get(address, port, ns=ns, timeout=1.0)
                said.append((f"{ns or 'node-1'} $ curl {address} {port}", reply.body or reply.outcome))
    return said


def _until_one_is_lost(v: Variation, s: Service) -> Said:
    pod = PODS[0].addr6 if v.family == 6 else PODS[0].addr4
    # Where others are about they may have filled its queue before.
    with suppress(OSError), ask.connections(pod, servers.HTTP_PORT, 2 + v.number % 3, timeout=1.0):
        pass
    said: Said = []
    while len(said) < 40 and "timeout" not in {what for _, what in said}:
        reply = ask.http_get(_node(v), s.node_port, timeout=0.7)
        said.append((f"curl {_node(v)} {s.node_port}", reply.body or reply.outcome))
    return said


@contextmanager
def _others(v: Variation) -> Iterator[None]:
    """Others ask the healthy Service within the block, one request after another."""
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            ask.http_get(_node(v), v.beside.node_port, timeout=0.5)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5)


@contextmanager
def _nobody() -> Iterator[None]:
    yield
