# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the audit: makes the NodeState that checks read, of recorded nodes or of rules as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path

from tests.support.findings import FakeNode
from tests.support.nodes import Node as Recorded
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.kube.catalog import ClusterView
from tracer.model.rule import Rule
from tracer.node.routes import NetworkDevice, Route, Routes
from tracer.predict.ipsets import IpSetReader
from tracer.predict.ipvs import VirtualServers
from tracer.predict.path import PathPredictor
from tracer.rules import inventory, save_parser
from tracer.rules.inventory import RuleInventory
from tracer.rules.match_context import address_text
from tracer.rules.nftables import json_parser
from tracer.rules.packet_view import PacketView

NODE, CLIENT = "192.168.56.10", "192.168.56.1"
LINKS = (
    NetworkDevice("lo", "", ("127.0.0.0/8",)),
    NetworkDevice("eth0", "", ("192.168.56.0/24", "fd00:56::/64")),
    NetworkDevice("cni0", "bridge", ("10.244.0.0/24", "10.224.0.0/24", "fd00:10:244::/64"), 3),
)
GATEWAYS = {"10.244.3.0/24": ("10.244.3.0", "flannel.1")}
LOCAL = frozenset({NODE, "10.244.0.1", "10.224.0.1", "fd00:56::10", "fd00:10:244::1"})


@dataclass
class FakeRoutes(Routes):
    """Connected networks, networks behind a gateway, local addresses; any other address takes the default route."""

    connected: tuple[NetworkDevice, ...] = LINKS
    gateways: Mapping[str, tuple[str, str]] = field(default_factory=lambda: GATEWAYS)
    local: frozenset[str] = LOCAL

    def to(self, address: str, source: str = "", arrives: str = "", mark: int = 0) -> Route:
        if address in self.local or address.startswith("127.") or address == "::1":
            return Route("local", "lo", "", address)
        for network, (gateway, out) in self.gateways.items():
            if ip_address(address) in ip_network(network):
                return Route("unicast", out, gateway, NODE)
        for link in self.connected:
            for network in link.networks:
                if ip_address(address) in ip_network(network):
                    return Route("unicast", link.name, "", str(ip_network(network)[1]) if link.name == "cni0" else NODE)
        return Route("unicast", "eth0", CLIENT, NODE)

    def links(self) -> tuple[NetworkDevice, ...]:
        return self.connected


class SavedSets(IpSetReader):
    """The sets of a recorded node, from the output of `ipset save`; without output nothing is known of any set."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._kinds = dict(re.findall(r"^create (\S+) \w+:(\S+)", text, re.M))
        self._members = set(re.findall(r"^add (\S+) (\S+)", text, re.M))

    def has(self, name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
        kind = self._kinds.get(name)
        if kind == "net":
            end = ip_address(packet.dst if flags[0] == "dst" else packet.src)
            return any(end in ip_network(m) for n, m in self._members if n == name)
        if kind not in ("ip,port", "port", "ip,port,ip"):
            return None
        source = address_text(packet.src, packet.family)
        host = address_text(packet.dst if flags[0] == "dst" else packet.src, packet.family)
        also = f",{source}" if kind.count("ip") > 1 else ""
        member = str(packet.dport) if kind == "port" else f"{host},tcp:{packet.dport}{also}"
        return (name, member) in self._members

    def recently(self, name: str, address: str) -> bool | None:
        return None


class SavedVirtual(VirtualServers):
    """The virtual servers of a recorded node, from the output of `ipvsadm --save -n`."""

    def __init__(self, text: str = "") -> None:
        super().__init__(Path("/nonexistent"))
        object.__setattr__(self, "text", text)

    def real_servers(self, address: str, port: int, protocol: str) -> tuple[str, ...] | None:
        server = f"-{protocol[0]} {address}:{port} "
        text: str = self.__dict__["text"]
        found = tuple(re.findall(rf"^-a {re.escape(server)}-r (\S+)", text, re.M))
        return found if f"-A {server}" in text else None


def path_predictor(state: NodeState, one: Recorded | None = None, virtual: VirtualServers | None = None) -> PathPredictor:
    """Predicts the paths of packets on a node that is not a real machine."""
    sets = SavedSets(one.files.get("ipset-save", "") if one else "")
    return PathPredictor(state.installed, state.routes, healthy(), virtual or VirtualServers(Path("/nonexistent")), sets)


def recorded(one: Recorded) -> RuleInventory:
    """The rules of a recorded node, as inventory.read() would have read them there."""
    legacy = [save_parser.parse(one.files[f], family) for f, family in (("iptables-save", "ip"), ("ip6tables-save", "ip6"))
              if f in one.files]  # fmt: skip
    text = one.files.get("nft.json", "")
    nft, tables = None, frozenset[tuple[str, str]]()
    if '"chain"' in text:
        nft, tables = inventory.with_saves(json_parser.parse(text), lambda family, table: _saved(one, family, table))
    return RuleInventory(inventory.joined(legacy) if legacy else None, nft, tables)


def _saved(one: Recorded, family: str, table: str) -> dict[str, tuple[Rule, ...]]:
    if family != "ip" or "iptables-nft-save" not in one.files:
        return {}
    chains = save_parser.parse(one.files["iptables-nft-save"], "ip", "nft").chains
    return {chain: rules for (_, t, chain), rules in chains.items() if t == table}


def state(one: Recorded, folder: Path, node: FakeNode | None = None, with_api: bool = True) -> NodeState:
    """The state of a recorded node, as the audit checks read it."""
    known = one.cluster_view(folder, with_api)
    services = frozenset(re.findall(r"^-A -[tu] (\d[\d.]+):", one.files.get("ipvsadm-save", ""), re.M))
    return NodeState(
        FindingContext(known, node or healthy()), recorded(one), FakeRoutes(local=LOCAL | services),
        SavedVirtual(one.files.get("ipvsadm-save", "")), SavedSets(one.files.get("ipset-save", "")),
    )  # fmt: skip


def healthy() -> FakeNode:
    """A node with the settings that kubelet and kube-proxy need."""
    return FakeNode(settings={
        "net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/bridge/bridge-nf-call-iptables": "1",
        "net/bridge/bridge-nf-call-ip6tables": "1", "net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/eth0/rp_filter": "0",
    })  # fmt: skip


def of_text(
    text: str,
    cluster: ClusterView | None = None,
    node: FakeNode | None = None,
    backend: str = "legacy",
    sets: str = "",
    ipvs: str = "",
) -> NodeState:
    """State from one back end's iptables-save output. sets, ipvs: output of `ipset save` and of `ipvsadm --save -n`."""
    rules = save_parser.parse(text, "ip", backend)
    services = frozenset(re.findall(r"^-A -[tu] (\d[\d.]+):", ipvs, re.M))
    return NodeState(
        FindingContext(cluster or ClusterView(), node or healthy()), RuleInventory(rules), FakeRoutes(local=LOCAL | services),
        SavedVirtual(ipvs),
        SavedSets(sets),
    )  # fmt: skip
