# SPDX-License-Identifier: Apache-2.0
"""Writes NetworkPolicies as a table of nftables, in the way of Calico 3.31 and 3.32."""

from __future__ import annotations

import hashlib

from tests.support.policy_semantics import Object, World
from tests.support.policy_writers import calico_policies as calico
from tests.support.policy_writers.calico_policies import ACCEPT, ALL_BLOCKS, PASS, THIS_BLOCK, Part, compiled

Step = tuple[str, str]
LIMIT = 256


def steps(world: World, form: str = "3.32") -> list[Step]:
    """(program, text) in the order in which they must be written."""
    return [("native", _Writer(world, form).text())]


def _clear(bits: int) -> str:
    return f"meta mark set meta mark & {bits ^ 0xFFFFFFFF:#x}"


def _set_name(name: str) -> str:
    return "cali40" + name.replace(":", "-")


class _Writer:
    def __init__(self, world: World, form: str) -> None:
        self.world, self.form, self.made = world, form, compiled(world)
        self.chains: dict[str, list[str]] = {}

    def add(self, chain: str, rule: str, *comments: str) -> None:
        lines = self.chains.setdefault(chain, [])
        digest = hashlib.sha1(f"{chain}{len(lines)}{rule}".encode(), usedforsecurity=False).hexdigest()[:16]
        said = " ".join((f"cali:{digest};", *comments))[:128]
        lines.append(f'{rule} comment "{said}"')

    def text(self) -> str:
        self.add("filter-FORWARD", "counter jump filter-cali-FORWARD")
        accepted = f"meta mark & {ACCEPT:#x} == {ACCEPT:#x} counter accept"
        self.add("filter-FORWARD", accepted, "Policy explicitly accepted packet.")
        self.add("filter-FORWARD", f"counter meta mark set meta mark | {ACCEPT:#x}")
        self.add("filter-cali-FORWARD", f"counter {_clear(PASS | ALL_BLOCKS | THIS_BLOCK)}")
        self.add("filter-cali-FORWARD", 'iifname "cali*" counter jump filter-cali-from-wl-dispatch')
        self.add("filter-cali-FORWARD", 'oifname "cali*" counter jump filter-cali-to-wl-dispatch')
        self.add("filter-cali-from-wl-dispatch", "iifname vmap @filter-cali-from-wl-dispatch")
        self.add("filter-cali-to-wl-dispatch", "oifname vmap @filter-cali-to-wl-dispatch")
        for chain in ("filter-cali-from-wl-dispatch", "filter-cali-to-wl-dispatch"):
            self.add(chain, "counter drop", "Unknown interface")
        for (name, way), parts in self.made.policies.items():
            self._policy(name, way, parts)
        for pod in self.world.local:
            self._pod(pod, calico.interface_of(pod))
        return "\n".join(["table ip calico {", *self._sets(), *self._maps(), *self._chains(), "}", ""])

    def _sets(self) -> list[str]:
        lines = []
        for name, addresses in self.made.addresses.items():
            elements = f" elements = {{ {', '.join(addresses)} }};" if addresses else ""
            lines.append(f"  set {_set_name(name)} {{ type ipv4_addr; flags interval;{elements} }}")
        for name, members in self.made.named.items():
            listed = ", ".join(f"{a} . {protocol} . {port}" for a, protocol, port in members)
            elements = f" elements = {{ {listed} }};" if listed else ""
            lines.append(f"  set {_set_name(name)} {{ type ipv4_addr . inet_proto . inet_service;{elements} }}")
        return lines

    def _maps(self) -> list[str]:
        interfaces = [calico.interface_of(pod) for pod in self.world.local]
        found = []
        for way, prefix in (("from", "fw"), ("to", "tw")):
            elements = ", ".join(f'"{i}" : goto filter-cali-{prefix}-{i}' for i in interfaces)
            found.append(f"  map filter-cali-{way}-wl-dispatch {{ type ifname : verdict; elements = {{ {elements} }}; }}")
        return found

    def _chains(self) -> list[str]:
        lines = []
        for chain, rules in self.chains.items():
            base = "    type filter hook forward priority filter; policy accept;\n" if chain == "filter-FORWARD" else ""
            lines.append(f"  chain {chain} {{\n{base}" + "".join(f"    {rule}\n" for rule in rules) + "  }")
        return lines

    def _policy(self, name: str, way: str, parts: list[Part]) -> None:
        chain = "filter-" + calico.policy_chain(name, way, self.form, LIMIT)
        said = [calico.policy_comment(name, way, self.form)]
        rules: list[str] = []
        for part in parts:
            rules += _rules(part, way)
            rules.append(f"meta mark & {ACCEPT:#x} == {ACCEPT:#x} counter return")
        if rules:
            rules.pop()
        for rule in rules or ["continue"]:
            self.add(chain, rule, *said)
            said = []

    def _pod(self, pod: Object, interface: str) -> None:
        space = pod["metadata"]["namespace"]
        start, end = calico.comments_of_tier(self.form)
        is_accepted, is_passed = f"meta mark & {ACCEPT:#x} == {ACCEPT:#x}", f"meta mark & {PASS:#x} == 0"
        for way, prefix, profile in (("ingress", "tw", "cali-pri-"), ("egress", "fw", "cali-pro-")):
            chain = f"filter-cali-{prefix}-{interface}"
            self.add(chain, "ct state established,related counter accept")
            self.add(chain, "ct state invalid counter drop")
            self.add(chain, f"counter {_clear(ACCEPT | PASS)}")
            if way == "egress":
                self.add(chain, "udp dport 4789 counter drop", "Drop VXLAN encapped packets originating in workloads")
            found = calico.groups(self.world, pod, way, self.form)
            if found:
                self.add(chain, f"counter {_clear(PASS)}", start)
            for group, names in found:
                targets = ["filter-" + calico.policy_chain(name, way, self.form, LIMIT) for name in names]
                own = f"filter-{group}"
                if group and own not in self.chains:
                    for at, target in enumerate(targets):
                        match = f"meta mark & {ACCEPT | PASS:#x} == 0 " if at else ""
                        self.add(own, f"{match}counter jump {target}")
                for target in [own] if group else targets:
                    self.add(chain, f"{is_passed} counter jump {target}")
                    self.add(chain, f"{is_accepted} counter return", "Return if policy accepted")
            if found:
                self.add(chain, f"{is_passed} counter drop", end)
            of_space = "filter-" + calico.limited(profile, f"kns.{space}", LIMIT)
            if of_space not in self.chains:
                self.add(of_space, f"counter meta mark set meta mark | {ACCEPT:#x}", f"Profile kns.{space} {way}")
            self.add(chain, f"counter jump {of_space}")
            self.add(chain, f"{is_accepted} counter return", "Return if profile accepted")
            self.add(chain, "counter drop", "Drop if no profiles matched")


def _rules(part: Part, way: str) -> list[str]:
    side = "saddr" if way == "ingress" else "daddr"
    protocol = f"meta l4proto {part.protocol}" if part.protocol else ""
    listed = ", ".join(each.replace(":", "-") for each in part.ports)
    ports = f"{part.protocol} dport {{ {listed} }}" if listed else ""
    named = [f"ip daddr . meta l4proto . th dport @{_set_name(name)}" for name in part.named]
    alternatives = [*([ports] if ports else []), *named]
    lines, matches = [], []
    has_block = len(alternatives) > 1
    if has_block:
        lines.append(f"counter meta mark set meta mark & {(ALL_BLOCKS | THIS_BLOCK) ^ 0xFFFFFFFF:#x}")
        lines += [f"{each} counter meta mark set meta mark | {ALL_BLOCKS:#x}" for each in alternatives]
    if part.exceptions:
        if not has_block:
            lines.append(f"counter meta mark set meta mark | {ALL_BLOCKS:#x}")
        lines += [f"ip {side} {network} counter {_clear(ALL_BLOCKS)}" for network in part.exceptions]
    matches += [protocol] if protocol else []
    matches += [f"ip {side} {part.net}"] if part.net and not calico.is_whole(part.net) else []
    matches += [f"ip {side} @{_set_name(part.others)}"] if part.others else []
    matches += alternatives if len(alternatives) == 1 else []
    if has_block or part.exceptions:
        matches.append(f"meta mark & {ALL_BLOCKS:#x} == {ALL_BLOCKS:#x}")
    return [*lines, f"{' '.join(matches)} counter meta mark set meta mark | {ACCEPT:#x}".strip()]
