# SPDX-License-Identifier: Apache-2.0
"""Random nodes to compare the audit with: Services, policies, affinity, hostPorts, leftovers of another mode, any order.

    client 192.168.56.1 -- eth0 192.168.56.10 | cni0 10.244.0.1 -- pods 10.244.0.11 ... 14
                                              | tun0 10.244.0.254 -- node-2 with pod 10.244.3.5

node-2 sends only packets for 10.244.0.0/24 back through the tunnel, as a network between nodes does.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from incidents import ipvs as virtual
from incidents import objects
from incidents.objects import Object
from incidents.proxy import iptables, nftables, portmap
from incidents.proxy import ipvs as in_ipvs
from incidents.proxy.model import HostPort, Service
from incidents.proxy.table import KUBE, table

NODE, CLIENT, FAR = "192.168.56.10", "192.168.56.1", "10.244.3.5"
PODS = {"pod-a": "10.244.0.11", "pod-b": "10.244.0.12", "pod-c": "10.244.0.13", "pod-d": "10.244.0.14", "far": FAR}
"""pod-c sends requests; pod-d has the hostPorts; the others are endpoints."""
ADDRESSES = {address: name for name, address in PODS.items()}
PORT, HOSTED = 8080, 9000
"""Ports: of the endpoints, and of a pod with a hostPort."""
NETWORK, MINE, OTHERS = "10.244.0.0/16", "10.244.0.0/24", "10.244.3.0/24"
NODE_PORTS = (30100, 30200, 30300, 30400)
Step = tuple[str, str]
"""(program, text). The program is "legacy" or "nft" (of iptables), "native", "ipset" or "ipvs"."""


@dataclass
class Plan:
    """One node.

    Attributes:
        seed: Its number, from which all the rest is computed.
        mode: kube-proxy's mode.
        back: Back end of its iptables rules, "legacy" or "nft".
        services: All Services.
        host_ports: All hostPorts.
        listens: Ports on which a process of the node listens.
        steps: The texts to write, in order.
        words: What is special about the node.
    """

    seed: int
    mode: str
    back: str
    services: tuple[Service, ...]
    host_ports: tuple[HostPort, ...] = ()
    listens: tuple[int, ...] = ()
    steps: list[Step] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return f"node {self.seed}: {self.mode} ({self.back}), {', '.join(self.words) or 'plain'}"

    def objects(self) -> list[Object]:
        """The objects of the API."""
        found = [objects.node("node-1", NODE, MINE), objects.node("node-2", "192.168.57.20", OTHERS)]
        for s in self.services:
            policy = {"externalTrafficPolicy": "Local"} if s.local else {}
            found.append(objects.service(s.name, s.address, s.port, s.node_port, s.port_name, **policy))
            ends = [(ADDRESSES[a], a, "node-2" if a == FAR else "node-1") for a, _ in s.ends]
            if ends:
                found.append(objects.endpoints(s.name, ends, PORT, s.port_name))
        for name, address in PODS.items():
            found.append(objects.pod(f"default/{name}", address, "node-2" if name == "far" else "node-1", PORT))
        return found


def plan(seed: int, with_ipvs: bool) -> Plan:
    """The random node of this number."""
    dice = random.Random(seed)
    mode = dice.choice(["iptables", "iptables", "nftables", *(["ipvs"] if with_ipvs else [])])
    back = dice.choice(["legacy", "nft"])
    made = Plan(seed, mode, back, _services(dice, mode))
    made.host_ports = _host_ports(dice, made.services)
    made.listens = tuple(p for p in NODE_PORTS if dice.random() < 0.2)
    # "none": kube-proxy does not know the pods' network, so no rule treats packets from it differently.
    pods = dice.choice(["", "none"]) if mode != "nftables" else ""
    post = _post(dice) if dice.random() < 0.5 else []
    stale = any(OTHERS in rule and "RETURN" in rule for rule in post)
    made.words += [f"pods {pods or 'known'}", *(["stale RETURN"] if stale else [])]
    beside = dice.choice([back, "legacy", "nft", "native"]) if made.host_ports else ""
    first = dice.choice(["kube", "portmap", "anywhere"])
    steps = _kube(dice, made, pods, post, made.host_ports if beside == back and mode != "nftables" else (), first)
    if beside and not (beside == back and mode != "nftables"):
        steps.append(_portmap(made.host_ports, beside, first))
    if beside:
        made.words.append(f"portmap in {beside}, jump {first}")
    steps += _leftovers(dice, made)
    dice.shuffle(steps)
    # Sets must exist before rules use them.
    made.steps = sorted(steps, key=lambda s: s[0] != "ipset")
    return made


def _services(dice: random.Random, mode: str) -> tuple[Service, ...]:
    found = []
    for number in range(dice.randint(2, 4)):
        ends = tuple((PODS[p], PORT) for p in dice.sample(["pod-a", "pod-b", "far"], dice.randint(0, 3)))
        found.append(Service(
            f"default/svc-{number}", f"172.30.0.{10 + number}", dice.choice([80, 3306, 443]),
            NODE_PORTS[number] if dice.random() < 0.8 else 0, ends, dice.choice(["", "http"]),
            local=bool(ends) and dice.random() < 0.2, affinity=dice.random() < 0.3 and mode != "ipvs",
        ))  # fmt: skip
    return tuple(found)


def _host_ports(dice: random.Random, services: Sequence[Service]) -> tuple[HostPort, ...]:
    ports = [s.node_port for s in services if s.node_port] + [s.port for s in services] + [5000]
    count = dice.choice([0, 1, 1, 2])
    chosen = dict.fromkeys(dice.choices(ports, k=count))
    return tuple(HostPort(p, PODS["pod-d"], HOSTED, f"{n:064x}") for n, p in enumerate(chosen))


def _post(dice: random.Random) -> list[str]:
    """flannel's rules in POSTROUTING, with or without a stale rule for node-2's network."""
    stale = [f"! -s {NETWORK} -d {OTHERS} -j RETURN"] if dice.random() < 0.6 else []
    return [*stale, f"-s {NETWORK} -d {NETWORK} -j RETURN", f"-s {NETWORK} ! -d 224.0.0.0/4 -j MASQUERADE",
            f"! -s {NETWORK} -d {MINE} -j RETURN", f"! -s {NETWORK} -d {NETWORK} -j MASQUERADE"]  # fmt: skip


def _kube(
    dice: random.Random, made: Plan, pods: str, post: list[str], hosted: Sequence[HostPort], first: str
) -> list[Step]:  # fmt: skip
    if made.mode == "nftables":
        found: list[Step] = [("native", nftables.rules(made.services, NODE))]
        if post:
            found.append((made.back, table("nat", ("POSTROUTING",), {"POSTROUTING": post})))
        return found
    if made.mode == "iptables":
        text = iptables.rules(made.services, hosted, post, first, pods)
    else:
        text = in_ipvs.rules(made.services, hosted, post, first, pods or "10.244.0.0/16")
    if post and dice.random() < 0.4:
        # flannel's rules come first.
        jump = next(line for line in text.splitlines() if line.startswith("-A POSTROUTING"))
        text = text.replace(f"{jump}\n", "", 1)
        last = [line for line in text.splitlines() if line.startswith("-A POSTROUTING")][-1]
        text = text.replace(f"{last}\n", f"{last}\n{jump}\n", 1)
        made.words.append("flannel first")
    steps: list[Step] = [(made.back, text)]
    if made.mode == "ipvs":
        steps += [("ipset", in_ipvs.sets(made.services)), ("ipvs", in_ipvs.virtual_servers(made.services, NODE))]
    return steps


def _portmap(host_ports: Sequence[HostPort], beside: str, first: str) -> Step:
    if beside == "native":
        return "native", nftables.host_ports(host_ports)
    jump = next(j for j in portmap.beside(KUBE, host_ports, first) if j != KUBE)
    chains = {"PREROUTING": [jump], "OUTPUT": [jump], **portmap.chains(host_ports)}
    return beside, table("nat", ("PREROUTING", "OUTPUT"), chains)


def _leftovers(dice: random.Random, made: Plan) -> list[Step]:
    """The leftovers of another mode or another back end, with or without effect."""
    kind = dice.choice(["", "", "mixed", "cleaned", "dead", "rejects", "policy"])
    other = {"legacy": "nft", "nft": "legacy"}[made.back]
    if kind:
        made.words.append(kind)
    stale = []
    for s in (s for s in made.services if dice.random() < 0.7):
        ends = tuple((PODS[p], PORT) for p in dice.sample(["pod-a", "pod-b"], dice.randint(0, 2)))
        stale.append(Service(s.name, s.address, s.port, s.node_port, ends, s.port_name))
    if kind == "mixed" and stale:
        return [(other, iptables.rules(stale))]
    if kind == "cleaned":
        return [(other, table("nat", (), {"KUBE-MARK-MASQ": ["-j MARK --set-xmark 0x4000/0x4000"]}))]
    if kind == "dead" and stale:
        lines = iptables.rules(stale).splitlines()
        jumps = ("-A PREROUTING", "-A OUTPUT", "-A POSTROUTING", "-A INPUT", "-A FORWARD")
        return [(other, "\n".join(line for line in lines if not line.startswith(jumps)) + "\n")]
    if kind == "rejects" and stale:
        empty = [Service(s.name, s.address, s.port, s.node_port, (), s.port_name) for s in stale]
        text = iptables.rules(empty)
        back = made.back if made.mode == "ipvs" else other
        return [(back, text[: text.index("*nat")])]
    if kind == "policy":
        pod = dice.choice(["pod-a", "pod-b", "pod-d"])
        act = dice.choice(["DROP", "REJECT --reject-with icmp-port-unreachable"])
        return [(dice.choice(["legacy", "nft"]), table("filter", ("FORWARD",), {
            "FORWARD": [f"-d {PODS[pod]}/32 -p tcp -m tcp --dport {dice.choice([PORT, HOSTED])} -j {act}"],
        }))]  # fmt: skip
    return []


def put(made: Plan) -> None:
    """Writes the rules of a node in this network namespace, in order. Raises OSError."""
    for program, text in made.steps:
        if program == "ipvs":
            virtual.put(text, [s.address for s in made.services])
            continue
        command = {
            "legacy": ["iptables-legacy-restore", "--noflush"], "nft": ["iptables-nft-restore", "--noflush"],
            "native": ["nft", "-f", "-"], "ipset": ["ipset", "restore", "-exist"],
        }[program]  # fmt: skip
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            raise OSError(f"{made.text}: {' '.join(command)}: {done.stderr}\n{text}")


LOCAL = ("pod-a", "pod-b", "pod-c", "pod-d")
_SPACES = ("client", *LOCAL, "far")


def links() -> str:
    """The node's links and addresses, for `ip -batch` in its namespace. The other namespaces must exist."""
    lines = ["link set lo up", "link add eth0 type veth peer name eth0 netns client", f"addr add {NODE}/24 dev eth0",
             "link set eth0 up", f"route add default via {CLIENT}", "link add cni0 type bridge",
             "addr add 10.244.0.1/24 dev cni0",
             "link set cni0 up", "link add tun0 type veth peer name eth0 netns far", "addr add 10.244.0.254/32 dev tun0",
             "link set tun0 up", f"route add {OTHERS} dev tun0"]  # fmt: skip
    for pod in LOCAL:
        lines += [f"link add v{pod} type veth peer name eth0 netns {pod}", f"link set v{pod} master cni0",
                  f"link set v{pod} up", f"link set v{pod} type bridge_slave hairpin on"]  # fmt: skip
    return "".join(f"{line}\n" for line in lines)


def ends() -> dict[str, str]:
    """The links and addresses of each other namespace, for `ip -batch`."""
    up = "link set lo up\nlink set eth0 up\n"
    found = {"client": f"addr add {CLIENT}/24 dev eth0\n{up}route add default via {NODE}\n"}
    for pod in LOCAL:
        found[pod] = f"addr add {PODS[pod]}/24 dev eth0\n{up}route add default via 10.244.0.1\n"
    back = f"route add 10.244.0.254 dev eth0\nroute add {MINE} via 10.244.0.254 dev eth0 src {FAR}\n"
    found["far"] = f"addr add {FAR}/32 dev eth0\n{up}{back}"
    return found


SETTINGS = {
    "ipv4/ip_forward": "1", "ipv4/conf/all/route_localnet": "1", "ipv4/icmp_ratelimit": "0", "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0", "ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1",
    "bridge/bridge-nf-call-iptables": "1",
}  # fmt: skip


def build() -> None:
    """Builds the node in this network namespace, which must be new."""
    for name, value in SETTINGS.items():
        path = Path("/proc/sys/net", name)
        if path.exists():
            path.write_text(value)
    _ip([], links())
    for space, text in ends().items():
        _ip(["-n", space], text)


def remove() -> None:
    """Removes the links at once, before the namespace ends."""
    for name in ("eth0", "tun0", *(f"v{pod}" for pod in LOCAL)):
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def _ip(options: list[str], text: str) -> None:
    done = subprocess.run(["ip", *options, "-batch", "-"], input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(options)}: {done.stderr}")
