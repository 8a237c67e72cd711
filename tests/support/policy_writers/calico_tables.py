# SPDX-License-Identifier: Apache-2.0
"""Writes NetworkPolicies as rules of iptables and ipsets, in the way of Calico 3.28, 3.31 and 3.32."""

from __future__ import annotations

import hashlib

from tests.support.policy_semantics import Object, World
from tests.support.policy_writers import calico_policies as calico
from tests.support.policy_writers.calico_policies import ACCEPT, ALL_BLOCKS, PASS, THIS_BLOCK, Part, compiled

Step = tuple[str, str]
LIMIT = 28


def steps(world: World, back: str, form: str = "3.32") -> list[Step]:
    """(program, text) in the order in which they must be written. back: "legacy" or "nft"."""
    made = compiled(world)
    lines = []
    for name, addresses in made.addresses.items():
        lines += [f"create cali40{name} hash:net family inet maxelem 1048576", *(f"add cali40{name} {a}" for a in addresses)]
    for name, members in made.named.items():
        lines.append(f"create cali40{name} hash:ip,port family inet maxelem 1048576")
        lines += [f"add cali40{name} {address},{protocol}:{port}" for address, protocol, port in members]
    return [("ipset", "".join(f"{line}\n" for line in lines)), (back, _Writer(world, form, made).text())]


def mark(bits: int, mask: int = 0) -> str:
    return f"-j MARK --set-xmark {bits:#x}/{mask or bits:#x}"


class _Writer:
    def __init__(self, world: World, form: str, made: calico.Compiled) -> None:
        self.world, self.form, self.made = world, form, made
        self.chains: dict[str, list[str]] = {}

    def add(self, chain: str, rule: str, *comments: str) -> None:
        lines = self.chains.setdefault(chain, [])
        digest = hashlib.sha1(f"{chain}{len(lines)}{rule}".encode(), usedforsecurity=False).hexdigest()[:16]
        said = "".join(f' -m comment --comment "{c}"' for c in (f"cali:{digest}", *comments))
        # iptables-save prints addresses, interfaces and protocol before the matches.
        first, rest = _split(rule)
        lines.append(" ".join(filter(None, [f"-A {chain}", first, said.strip(), rest])))

    def text(self) -> str:
        self.add("FORWARD", "-j cali-FORWARD")
        self.add("FORWARD", f"-m mark --mark {ACCEPT:#x}/{ACCEPT:#x} -j ACCEPT", "Policy explicitly accepted packet.")
        self.add("FORWARD", mark(ACCEPT))
        self.add("cali-FORWARD", mark(0, PASS | ALL_BLOCKS | THIS_BLOCK))
        self.add("cali-FORWARD", f"-m mark --mark 0x0/{ACCEPT:#x} -j cali-from-hep-forward")
        self.add("cali-FORWARD", "-i cali+ -j cali-from-wl-dispatch")
        self.add("cali-FORWARD", "-o cali+ -j cali-to-wl-dispatch")
        self.add("cali-FORWARD", "-j cali-to-hep-forward")
        for chain in ("cali-from-hep-forward", "cali-to-hep-forward"):
            self.chains.setdefault(chain, [])
        for (name, way), parts in self.made.policies.items():
            self._policy(name, way, parts)
        for pod in self.world.local:
            interface = calico.interface_of(pod)
            self.add("cali-from-wl-dispatch", f"-i {interface} -g cali-fw-{interface}")
            self.add("cali-to-wl-dispatch", f"-o {interface} -g cali-tw-{interface}")
            self._pod(pod, interface)
        for chain in ("cali-from-wl-dispatch", "cali-to-wl-dispatch"):
            self.add(chain, "-j DROP", "Unknown interface")
        heads = [f":{chain} - [0:0]" for chain in self.chains if chain != "FORWARD"]
        rules = [line for lines in self.chains.values() for line in lines]
        return "\n".join(["*filter", *heads, *rules, "COMMIT", ""])

    def _policy(self, name: str, way: str, parts: list[Part]) -> None:
        chain = calico.policy_chain(name, way, self.form, LIMIT)
        self.chains.setdefault(chain, [])
        said = [calico.policy_comment(name, way, self.form)]
        rules: list[str] = []
        for part in parts:
            rules += _rules(part, way)
            rules.append(f"-m mark --mark {ACCEPT:#x}/{ACCEPT:#x} -j RETURN")
        # A RETURN at the end does nothing; newer releases leave it out.
        if rules and self.form != "3.28":
            rules.pop()
        for rule in rules or [""]:
            self.add(chain, rule, *said)
            said = []

    def _pod(self, pod: Object, interface: str) -> None:
        space = pod["metadata"]["namespace"]
        start, end = calico.comments_of_tier(self.form)
        for way, prefix, profile in (("ingress", "cali-tw-", "cali-pri-"), ("egress", "cali-fw-", "cali-pro-")):
            chain = prefix + interface
            self.add(chain, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
            self.add(chain, "-m conntrack --ctstate INVALID -j DROP")
            self.add(chain, mark(0, ACCEPT | PASS))
            if way == "egress":
                self.add(
                    chain, "-p udp -m multiport --dports 4789 -j DROP", "Drop VXLAN encapped packets originating in workloads"
                )
                self.add(chain, "-p ipencap -j DROP", "Drop IPinIP encapped packets originating in workloads")
            found = calico.groups(self.world, pod, way, self.form)
            if found:
                self.add(chain, mark(0, PASS), start)
            for group, names in found:
                targets = [calico.policy_chain(name, way, self.form, LIMIT) for name in names]
                if group and group not in self.chains:
                    for at, target in enumerate(targets):
                        match = f"-m mark --mark 0x0/{ACCEPT | PASS:#x} " if at else ""
                        self.add(group, f"{match}-j {target}")
                for target in [group] if group else targets:
                    self.add(chain, f"-m mark --mark 0x0/{PASS:#x} -j {target}")
                    self.add(chain, f"-m mark --mark {ACCEPT:#x}/{ACCEPT:#x} -j RETURN", "Return if policy accepted")
            if found:
                self.add(chain, f"-m mark --mark 0x0/{PASS:#x} -j DROP", end)
            own = calico.limited(profile, f"kns.{space}", LIMIT)
            if own not in self.chains:
                self.add(own, mark(ACCEPT), f"Profile kns.{space} {way}")
                if self.form == "3.28":
                    self.add(own, f"-m mark --mark {ACCEPT:#x}/{ACCEPT:#x} -j RETURN")
            self.add(chain, f"-j {own}")
            self.add(chain, f"-m mark --mark {ACCEPT:#x}/{ACCEPT:#x} -j RETURN", "Return if profile accepted")
            self.add(chain, "-j DROP", "Drop if no profiles matched")


def _split(rule: str) -> tuple[str, str]:
    """Splits a rule into what iptables-save prints first, and the matches and the target."""
    words, first = rule.split(), []
    while words and words[0] in ("-s", "-d", "-i", "-o", "-p"):
        first += [words.pop(0), words.pop(0)]
    return " ".join(first), " ".join(words)


def _rules(part: Part, way: str) -> list[str]:
    """The rules of a part: blocks for alternatives that one rule cannot have, then the rule that sets the mark."""
    side, flag = ("-s", "src") if way == "ingress" else ("-d", "dst")
    protocol = f"-p {part.protocol} " if part.protocol else ""
    listed = f"-m multiport --dports {','.join(part.ports)}" if part.ports else ""
    named = [f"-m set --match-set cali40{name} dst,dst" for name in part.named]
    alternatives = [*([listed] if listed else []), *named]
    net = "" if not part.net or calico.is_whole(part.net) else f"{side} {part.net} "
    lines, matches = [], []
    has_block = len(alternatives) > 1
    if has_block:
        lines.append(mark(0, ALL_BLOCKS | THIS_BLOCK))
        lines += [f"{protocol}{each} {mark(ALL_BLOCKS)}" for each in alternatives]
    elif alternatives:
        matches.append(alternatives[0])
    if part.exceptions:
        if not has_block:
            lines.append(mark(ALL_BLOCKS, ALL_BLOCKS | THIS_BLOCK))
        lines += [f"{side} {network} {mark(0, ALL_BLOCKS)}" for network in part.exceptions]
    if has_block or part.exceptions:
        matches.append(f"-m mark --mark {ALL_BLOCKS:#x}/{ALL_BLOCKS:#x}")
    if part.others:
        matches.insert(0, f"-m set --match-set cali40{part.others} {flag}")
    return [*lines, f"{net}{protocol}{' '.join(matches)} {mark(ACCEPT)}".replace("  ", " ").strip()]
