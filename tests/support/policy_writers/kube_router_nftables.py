# SPDX-License-Identifier: Apache-2.0
"""Writes NetworkPolicies as a table of nftables, in the way of kube-router 2.11 with --use-nftables-for-netpol.

Written from the description of its source, pkg/controllers/netpol/npc_nftables.go. Left out are its rules for Services and
NodePorts, and logging: none of them decides here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.policy_semantics import Object, World, address_of, addresses_by_number, name_of, types_of
from tracer.kube.policies.kube_router_names import digest

Step = tuple[str, str]
VERSION = "1764220000000000000"
ACCEPT = "counter meta mark set meta mark or 0x10000 return"
TOPS = ("KUBE-ROUTER-INPUT", "KUBE-ROUTER-FORWARD", "KUBE-ROUTER-OUTPUT")


def steps(world: World) -> list[Step]:
    """(program, text) in the order in which they must be written."""
    return [("native", _Writer(world).text())]


class _Writer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.sets: dict[str, str] = {}
        self.chains: dict[str, list[str]] = {}

    def text(self) -> str:
        for top in TOPS:
            hook = top.removeprefix("KUBE-ROUTER-").lower()
            self.chains[top] = [f"type filter hook {hook} priority 0; policy accept;"]
        self._add("KUBE-NWPLCY-DEFAULT", "counter meta mark set mark or 0x10000", "mark default netpol")
        self._add("KUBE-NWPLCY-COMMON", "ct state invalid counter drop", "drop invalid")
        self._add("KUBE-NWPLCY-COMMON", "ct state established,related counter accept", "stateful")
        for policy in self.world.policies:
            self._policy(policy)
        for pod in self.world.local:
            self._pod(pod)
        for top in TOPS:
            self._add(top, "meta mark and 0x20000 == 0x20000 counter accept", "accept netpol-ok")
        chains = [f"\tchain {name} {{\n" + "".join(f"\t\t{r}\n" for r in rules) + "\t}" for name, rules in self.chains.items()]
        # A chain is known before a rule jumps to it.
        names = [f"\tchain {name} {{ }}" for name in self.chains if name not in TOPS]
        return "\n".join(["table ip kube-router-filter-ipv4 {", *self.sets.values(), *names, *chains, "}", ""])

    def _add(self, chain: str, rule: str, comment: str) -> None:
        self.chains.setdefault(chain, []).append(f'{rule} comment "{comment}"')

    def _set(self, name: str, members: Sequence[str], networks: bool = False) -> str:
        flags = " flags interval; auto-merge;" if networks else ""
        elements = f" elements = {{ {', '.join(dict.fromkeys(members))} }}" if members else ""
        self.sets[name] = f'\tset {name} {{ type ipv4_addr;{flags} comment "set for network policy";{elements}; }}'
        return name

    def _policy(self, policy: Object) -> None:
        namespace, name = name_of(policy).split("/")
        chain = _policy_chain(namespace, name)
        self.chains[chain] = []
        own = [address_of(pod) for pod in self.world.selected(policy)]
        for way, key, side in (("ingress", "DST", "from"), ("egress", "SRC", "to")):
            if way.capitalize() not in types_of(policy):
                continue
            target = self._set(f"KUBE-{key}-{digest(f'{namespace}{name}IPv4')}", own)
            for at, rule in enumerate(policy["spec"].get(way) or ()):
                self._rule(policy, chain, way, at, rule, target, side)

    def _rule(self, policy: Object, chain: str, way: str, at: int, rule: Object, target: str, side: str) -> None:
        namespace, name = name_of(policy).split("/")
        joined = f"{namespace}{name}{way}rule{at}IPv4"
        prefix = "KUBE-SRC-" if way == "ingress" else "KUBE-DST-"
        peers = rule.get(side) or []
        pods = list(dict.fromkeys(address_of(p) for peer in peers for p in self.world.peers(policy, peer)))
        if pods:
            other = self._set(prefix + digest(f"{joined}pod"), pods)
            self._accept(policy, chain, rule, way, at, "pods", other, target, pods)
        if not peers:
            self._accept(policy, chain, rule, way, at, "any", "", target, [])
        blocks = [peer["ipBlock"] for peer in peers if "ipBlock" in peer and "." in peer["ipBlock"]["cidr"]]
        if blocks:
            other = self._set(prefix + digest(f"{joined}ipblock"), [block["cidr"] for block in blocks], networks=True)
            excepted = [network for block in blocks for network in block.get("except") or ()]
            if excepted:
                skipped = self._set(prefix + digest(f"{joined}ipblockexcept"), excepted, networks=True)
                end, word = ("saddr", "except-src") if way == "ingress" else ("daddr", "except-dst")
                # "return" for an exception leaves only this chain: later rules may still accept.
                inner = f"KUBE-NWPLCY-{digest(f'{joined}{VERSION}ipblockchain')}"
                self._add(inner, f"ip {end} @{skipped} counter return", f"{namespace}/{name} {word}")
                self._add(chain, f"counter jump {inner}", f"{namespace}/{name} ipblock")
                chain = inner
            self._accept(policy, chain, rule, way, at, "cidr", other, target, [])

    def _accept(
        self, policy: Object, chain: str, rule: Object, way: str, at: int, kind: str, other: str, target: str, pods: list[str]
    ) -> None:
        """The accepting rules for one kind of ends: one for each port."""
        said = f"{name_of(policy)} {way} {kind}"
        ends = (other, target) if way == "ingress" else (target, other)
        ports = rule.get("ports") or []
        for port in ports:
            if not isinstance(port.get("port"), str):
                self._line(chain, said, ends, _port(port))
        for name_set, match in self._named(policy, rule, way, at, pods):
            self._line(chain, f"{said} np", (other, name_set) if way == "ingress" else (target, name_set), match)
        if not ports:
            self._line(chain, said, ends, "")

    def _line(self, chain: str, said: str, ends: tuple[str, str], match: str) -> None:
        words = [f"ip saddr @{ends[0]}"] if ends[0] else []
        words += [f"ip daddr @{ends[1]}"] if ends[1] else []
        self._add(chain, " ".join([*words, *([match] if match else []), ACCEPT]), said)

    def _named(self, policy: Object, rule: Object, way: str, at: int, pods: list[str]) -> list[tuple[str, str]]:
        namespace, name = name_of(policy).split("/")
        among = self.world.selected(policy) if way == "ingress" else [p for p in self.world.pods if address_of(p) in pods]
        found: list[tuple[str, str]] = []
        for port in rule.get("ports") or ():
            if not isinstance(port.get("port"), str):
                continue
            protocol = port.get("protocol") or "TCP"
            for number, addresses in addresses_by_number(among, port["port"], protocol).items():
                of = self._set(f"KUBE-DST-{digest(f'{namespace}{name}{way}rule{at}{len(found)}IPv4namedport')}", addresses)
                found.append((of, f"{protocol.lower()} dport {number}"))
        return found

    def _pod(self, pod: Object) -> None:
        namespace, name = name_of(pod).split("/")
        address, chain = address_of(pod), f"KUBE-POD-FW-{digest(f'{namespace}{name}{VERSION}')}"
        self._add(chain, "counter jump KUBE-NWPLCY-COMMON", "common netpol rules")
        self._add(chain, f"fib saddr type local ip daddr {address} counter accept", "from local node")
        directions: set[str] = set()
        for policy in self.world.policies:
            if not any(p is pod for p in self.world.selected(policy)):
                continue
            own, types = name_of(policy).split("/"), types_of(policy)
            directions |= set(types)
            match = "" if len(types) == 2 else f"ip daddr {address} " if types == ["Ingress"] else f"ip saddr {address} "
            self._add(chain, f"{match}counter jump {_policy_chain(*own)}", f"{own[0]}/{own[1]} policy")
        for way, end in (("Egress", "saddr"), ("Ingress", "daddr")):
            if way not in directions:
                self._add(chain, f"ip {end} {address} counter jump KUBE-NWPLCY-DEFAULT", f"default {way.lower()}")
        denied = "meta mark and 0x10000 == 0x0"
        self._add(chain, f"{denied} counter reject", f"{namespace}/{name} reject")
        self._add(chain, "meta mark set meta mark and 0xfffeffff", "clear netpol mark")
        self._add(chain, "meta mark set meta mark or 0x20000", "set netpol-ok mark")
        for word, end, tops in (("in", "daddr", TOPS[1:]), ("out", "saddr", TOPS)):
            for top in tops:
                self._add(top, f"ip {end} {address} counter jump {chain}", f"{namespace}/{name} {word}")


def _policy_chain(namespace: str, name: str) -> str:
    return f"KUBE-NWPLCY-{digest(f'{namespace}{name}{VERSION}IPv4')}"


def _port(port: Object) -> str:
    protocol = (port.get("protocol") or "TCP").lower()
    if port.get("port") is None:
        return f"meta l4proto {protocol}"
    end = f"-{port['endPort']}" if "endPort" in port else ""
    return f"{protocol} dport {port['port']}{end}"
