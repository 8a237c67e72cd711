# SPDX-License-Identifier: Apache-2.0
"""Writes NetworkPolicies as rules of iptables and ipsets, in the way of kube-router 2.9 ("old") and 2.11 ("new").

Written from the description of its source, pkg/controllers/netpol: chains for policies and pods, sets, marks and comments.
Left out are its rules for Services, NodePorts, NFLOG and bridged packets: none of them decides here.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress

from tests.support.policy_semantics import Object, World, address_of, addresses_by_number, name_of, types_of

Step = tuple[str, str]
ACCEPTED, PASSED = "0x10000/0x10000", "0x20000/0x20000"
VERSION = "1764220000000000000"


def _hash(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]


def steps(world: World, back: str, form: str = "old") -> list[Step]:
    """(program, text) in the order in which they must be written. back: "legacy" or "nft"; form: of the comments."""
    writer = _Writer(world, form)
    text = writer.text()
    return [("ipset", "".join(f"{line}\n" for line in writer.sets)), (back, text)]


class _Writer:
    def __init__(self, world: World, form: str) -> None:
        self.world, self.form = world, form
        self.sets: list[str] = []
        self.chains: list[str] = []
        self.rules: list[str] = []

    def text(self) -> str:
        top = ["KUBE-ROUTER-INPUT", "KUBE-ROUTER-FORWARD", "KUBE-ROUTER-OUTPUT", "KUBE-NWPLCY-DEFAULT", "KUBE-NWPLCY-COMMON"]
        self.rules += [
            "-A INPUT -m comment --comment \"kube-router netpol - 4IA2OSFRMVNDXBVV\" -j KUBE-ROUTER-INPUT",
            "-A FORWARD -m comment --comment \"kube-router netpol - TEMCG2JMHZYE7H7T\" -j KUBE-ROUTER-FORWARD",
            "-A OUTPUT -m comment --comment \"kube-router netpol - VEAAIY32XVBHCSCY\" -j KUBE-ROUTER-OUTPUT",
            '-A KUBE-NWPLCY-DEFAULT -m comment --comment "rule to mark traffic matching a network policy"'
            f" -j MARK --set-xmark {ACCEPTED}",
            '-A KUBE-NWPLCY-COMMON -m comment --comment "rule to drop invalid state for pod"'
            " -m conntrack --ctstate INVALID -j DROP",
            '-A KUBE-NWPLCY-COMMON -m comment --comment "rule for stateful firewall for pod"'
            " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ]  # fmt: skip
        for policy in self.world.policies:
            self._policy(policy)
        for pod in self.world.local:
            self._pod(pod)
        for chain in top[:3]:
            self.rules.append(
                f'-A {chain} -m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies"'
                f" -m mark --mark {PASSED} -j ACCEPT"
            )
        heads = [f":{chain} - [0:0]" for chain in [*top, *self.chains]]
        return "\n".join(["*filter", *heads, *self.rules, "COMMIT", ""])

    # ---- policies

    def _policy(self, policy: Object) -> None:
        namespace, name = name_of(policy).split("/")
        chain = f"KUBE-NWPLCY-{_hash(f'{namespace}{name}{VERSION}IPv4')}"
        self.chains.append(chain)
        own = [address_of(p) for p in self.world.selected(policy)]
        for way, key, side in (("ingress", "DST", "from"), ("egress", "SRC", "to")):
            if way.capitalize() not in types_of(policy):
                continue
            target = f"KUBE-{key}-{_hash(f'{namespace}{name}IPv4')}"
            self._set(target, "hash:ip", own)
            for at, rule in enumerate(policy["spec"].get(way) or ()):
                self._rule(policy, chain, way, at, rule, target, side)

    def _rule(self, policy: Object, chain: str, way: str, at: int, rule: Object, target: str, side: str) -> None:
        joined = name_of(policy).replace("/", "") + f"{way}rule{at}"
        prefix = "KUBE-SRC-" if way == "ingress" else "KUBE-DST-"
        peers, ports = rule.get(side) or [], rule.get("ports") or []
        pods = list(dict.fromkeys(address_of(p) for peer in peers for p in self.world.peers(policy, peer)))
        others = []
        if pods:
            others.append((self._set(prefix + _hash(f"{joined}IPv4pod"), "hash:ip", pods), "pods"))
        if not peers:
            others.append(("", "any"))
        blocks = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
        entries = [entry for block in blocks if "." in block["cidr"] for entry in _entries(block)]
        if entries:
            others.append((self._set(prefix + _hash(f"{joined}IPv4ipblock"), "hash:net", entries), "cidr"))
        for other, kind in others:
            said = self._said(policy, way, kind)
            for port in ports or [None]:
                if port is not None and isinstance(port.get("port"), str):
                    continue
                self._match(chain, said, way, other, target, _port(port) if port else "")
            for number, (name_set, match) in enumerate(self._named(policy, rule, way, pods, joined, at)):
                del number
                said = self._said(policy, way, kind, named=True)
                # The set of a named port takes the place of the destination.
                ends = (other, name_set) if way == "ingress" else (target, name_set)
                self._line(chain, said, ends[0], ends[1], match)

    def _named(self, policy: Object, rule: Object, way: str, pods: list[str], joined: str, at: int) -> list[tuple[str, str]]:
        """The sets of the rule's named ports with the match for their number, one for each number behind a name."""
        wanted = [p for p in rule.get("ports") or () if isinstance(p.get("port"), str)]
        among = self.world.selected(policy) if way == "ingress" else [p for p in self.world.pods if address_of(p) in pods]
        found: list[tuple[str, str]] = []
        for port in wanted:
            protocol = port.get("protocol") or "TCP"
            for number, addresses in addresses_by_number(among, port["port"], protocol).items():
                name = f"KUBE-DST-{_hash(f'{joined}{len(found)}IPv4namedport')}"
                self._set(name, "hash:ip", addresses)
                found.append((name, f"-p {protocol.lower()} -m {protocol.lower()} --dport {number}"))
        return found

    def _match(self, chain: str, said: str, way: str, other: str, target: str, match: str) -> None:
        ends = (other, target) if way == "ingress" else (target, other)
        self._line(chain, said, *ends, match)

    def _line(self, chain: str, said: str, source: str, to: str, match: str) -> None:
        words = [f'-A {chain} -m comment --comment "{said}"']
        words += [f"-m set --match-set {source} src"] if source else []
        words += [f"-m set --match-set {to} dst"] if to else []
        words += [match] if match else []
        line = " ".join(words)
        self.rules += [f"{line} -j MARK --set-xmark {ACCEPTED}", f"{line} -m mark --mark {ACCEPTED} -j RETURN"]

    def _said(self, policy: Object, way: str, kind: str, named: bool = False) -> str:
        namespace, name = name_of(policy).split("/")
        if self.form == "new":
            return f"{namespace}/{name} {way} {kind}{' np' * named}"
        ends = {
            ("ingress", "any"): "from all sources to dest pods selected by policy name:",
            ("ingress", "cidr"): "from specified ipBlocks to dest pods selected by policy name:",
            ("egress", "any"): "from source pods to all destinations selected by policy name:",
            ("egress", "cidr"): "from source pods to specified ipBlocks selected by policy name:",
        }.get((way, kind), "from source pods to dest pods selected by policy name")  # fmt: skip
        return f"rule to ACCEPT traffic {ends} {name} namespace {namespace}"

    def _set(self, name: str, kind: str, members: list[str]) -> str:
        create = f"create {name} {kind} family inet hashsize 1024 maxelem 65536 timeout 0"
        if create not in self.sets:
            self.sets += [
                create,
                *(f"add {name} {m.split(' ')[0]} timeout 0{' nomatch' * (' ' in m)}" for m in dict.fromkeys(members)),
            ]
        return name

    # ---- pods

    def _pod(self, pod: Object) -> None:
        namespace, name = name_of(pod).split("/")
        address, chain = address_of(pod), f"KUBE-POD-FW-{_hash(f'{namespace}{name}{VERSION}')}"
        self.chains.append(chain)
        short = self.form == "new"
        lines: list[str] = []
        directions = set()
        for policy in self.world.policies:
            if not any(p is pod for p in self.world.selected(policy)):
                continue
            own, types = name_of(policy).split("/"), types_of(policy)
            target = f"KUBE-NWPLCY-{_hash(f'{own[0]}{own[1]}{VERSION}IPv4')}"
            said = f"{own[0]}/{own[1]} policy" if short else f"run through nw policy {own[1]}"
            directions |= set(types)
            match = "" if len(types) == 2 else f"-d {address}/32 " if types == ["Ingress"] else f"-s {address}/32 "
            lines.insert(0, f'{match}-m comment --comment "{said}" -j {target}')
        for way, option in (("Ingress", "-d"), ("Egress", "-s")):
            if way not in directions:
                said = f"default {way.lower()}" if short else f"run through default {way.lower()} network policy chain"
                lines.insert(0, f'{option} {address}/32 -m comment --comment "{said}" -j KUBE-NWPLCY-DEFAULT')
        local = "from local node" if short else "rule to permit the traffic traffic to pods when source is the pod's local node"
        lines.insert(0, f'-d {address}/32 -m comment --comment "{local}" -m addrtype --src-type LOCAL -j ACCEPT')
        common = "common netpol rules" if short else "common bi-directional traffic policy rules"
        lines.insert(0, f'-m comment --comment "{common}" -j KUBE-NWPLCY-COMMON')
        reject = f"{namespace}/{name} reject" if short else (
            f"rule to REJECT traffic destined for POD name:{name} namespace: {namespace}")  # fmt: skip
        accept = "set netpol-ok mark" if short else "set mark to ACCEPT traffic that comply to network policies"
        lines += [
            f'-m comment --comment "{reject}" -m mark ! --mark {ACCEPTED} -j REJECT --reject-with icmp-port-unreachable',
            "-j MARK --set-xmark 0x0/0x10000",
            f'-m comment --comment "{accept}" -j MARK --set-xmark {PASSED}',
        ]
        into = (
            f"{namespace}/{name} in"
            if short
            else f"rule to jump traffic destined to POD name:{name} namespace: {namespace} to chain {chain}"
        )
        out = (
            f"{namespace}/{name} out"
            if short
            else f"rule to jump traffic from POD name:{name} namespace: {namespace} to chain {chain}"
        )
        self.rules += [f"-A {chain} {line}" for line in lines]
        self.rules += [
            f'-A KUBE-ROUTER-{top} -d {address}/32 -m comment --comment "{into}" -j {chain}' for top in ("FORWARD", "OUTPUT")
        ]
        self.rules += [
            f'-A KUBE-ROUTER-{top} -s {address}/32 -m comment --comment "{out}" -j {chain}'
            for top in ("INPUT", "FORWARD", "OUTPUT")
        ]


def _port(port: Object) -> str:
    protocol = (port.get("protocol") or "TCP").lower()
    if port.get("port") is None:
        return f"-p {protocol}"
    end = f":{port['endPort']}" if "endPort" in port else ""
    return f"-p {protocol} -m {protocol} --dport {port['port']}{end}"


def _entries(block: Object) -> list[str]:
    """Members of a set of networks; " nomatch" after an exception. A set takes no network of length 0."""
    cidr = ipaddress.ip_network(block["cidr"])
    whole = [str(n) for n in (cidr.subnets() if cidr.prefixlen == 0 else [cidr])]
    return whole + [f"{network} nomatch" for network in block.get("except") or ()]
