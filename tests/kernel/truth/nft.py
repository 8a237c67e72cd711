# SPDX-License-Identifier: Apache-2.0
"""Random rulesets of iptables-nft, both families: nested chains, goto, negation, comments, matches of all kinds, NAT."""

from __future__ import annotations

from random import Random

from scenes import rules
from scenes.topology import CLIENT4, CLIENT6, DRAIN4, DRAIN6, NODE4, NODE6, PODS
from tests.kernel.truth import compare, sets
from tests.kernel.truth.senders import PORTS
from tracer.events.record import Event
from tracer.kernel.session import Session
from tracer.model.rule import RuleTrace

ADDRESSES = {
    4: (NODE4, CLIENT4, "192.168.56.0/24", DRAIN4, "203.0.113.0/25", PODS[0].addr4, "10.244.0.0/16", "0.0.0.0/1"),
    6: (NODE6, CLIENT6, "fd00:56::/64", DRAIN6, "fd00:113::/64", PODS[0].addr6, "fd00:10:244::/64", "::/1"),
}
HOOKS = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}
CHAINS, RULES = 4, 5
_MAY_REJECT = 0.3
MAY_COPY = 0.1
GATEWAYS = {4: (PODS[0].addr4, CLIENT4, DRAIN4), 6: (PODS[0].addr6, CLIENT6, DRAIN6)}
"""Targets of the node's copies: machines that do not forward. The pod uses the first. The others are behind the node, which
would send a copy of a packet for the pod back to the pod, and it would be copied again until its TTL is used up."""


def _not(random: Random) -> str:
    return "! " if random.random() < 0.25 else ""


def _ports(random: Random) -> str:
    first, last = sorted(random.sample(PORTS, 2))
    return random.choice([str(first), f"{first}:{last}"])


def _protocol(random: Random, family: int) -> list[str]:
    word = random.choice(["tcp", "udp", "icmp" if family == 4 else "ipv6-icmp"])
    if word.endswith("icmp"):
        return [f"{_not(random)}-p {word}"]
    out = [f"-p {word}"]
    kind = random.randrange(4)
    if kind == 1:
        out.append(f"-m {word} {_not(random)}--dport {_ports(random)}")
    elif kind == 2:
        ports = ",".join(str(p) for p in sorted(random.sample(PORTS, 3)))
        out.append(f"-m multiport {_not(random)}--dports {ports}")
    elif kind == 3 and word == "tcp":
        out.append(f"-m tcp {_not(random)}--tcp-flags SYN,RST,ACK SYN")
    return out


def matches(random: Random, family: int, table: str, hook: str, comment: str) -> str:
    """Some matches, as text; `comment` is always among them."""
    out = []
    if random.random() < 0.3:
        out.append(f"{_not(random)}-s {random.choice(ADDRESSES[family])}")
    if random.random() < 0.4:
        out.append(f"{_not(random)}-d {random.choice(ADDRESSES[family])}")
    if random.random() < 0.15 and hook in ("PREROUTING", "INPUT", "FORWARD"):
        out.append(f"{_not(random)}-i {random.choice(['eth+', 'cni0', 'lo'])}")
    if random.random() < 0.5:
        out += _protocol(random, family)
    if random.random() < 0.2 and table != "raw":
        out.append(
            f"-m conntrack {_not(random)}--ctstate {random.choice(['NEW', 'ESTABLISHED', 'RELATED,ESTABLISHED', 'INVALID'])}"
        )
    if random.random() < 0.2:
        out.append(f"-m mark {_not(random)}--mark {random.choice(['0x1/0x1', '0x4000/0x4000', '0x0'])}")
    if random.random() < 0.15:
        out.append(f"-m statistic --mode {random.choice(['random --probability 0.5', 'nth --every 2 --packet 0'])}")
    if random.random() < 0.15:
        out.append(f"-m addrtype --dst-type {random.choice(['LOCAL', 'UNICAST'])}")
    if random.random() < 0.08 and hook in ("PREROUTING", "INPUT"):
        out.append("-m socket --restore-skmark")
    if random.random() < 0.15:
        out.append(sets.match(random, family))
    if random.random() < 0.1:
        out.append(random.choice([
            "-m limit --limit 1/sec --limit-burst 1", f"-m recent --name seen{family} --set",
            f"-m connmark {_not(random)}--mark 0x1/0x1", f"-m quota {_not(random)}--quota 400",
        ]))  # fmt: skip
    return " ".join([*out, f'-m comment --comment "{comment}"'])


def target(random: Random, family: int, table: str, hook: str, below: list[str], gateways: tuple[str, ...]) -> str:
    """The target of a rule. below: the chains it may jump to. gateways: where it may send copies to."""
    choices = ["-j ACCEPT", "-j RETURN", "", "-j MARK --set-xmark 0x1/0x1", "-j MARK --set-xmark 0x4000/0x4000"]
    if table in ("raw", "nat"):
        choices = ["-j ACCEPT", "-j RETURN", ""]
    if table != "nat" and random.random() < 0.3:
        choices.append("-j DROP")
    if table == "filter" and random.random() < _MAY_REJECT:
        with_ = "icmp-port-unreachable" if family == 4 else "icmp6-port-unreachable"
        choices.append(f"-j REJECT --reject-with {with_}")
    if random.random() < 0.2:
        choices.append(random.choice(["-j LOG", "-j NFLOG --nflog-group 3", sets.target(random, family)]))
    if table == "filter" and random.random() < _MAY_REJECT:
        choices.append("-j NFQUEUE --queue-num 7 --queue-bypass")
    if table == "mangle":
        choices.append(f"-j CONNMARK --{random.choice(['restore', 'save'])}-mark")
        if random.random() < MAY_COPY:
            choices = [f"-j TEE --gateway {random.choice(gateways)}"]
    if table == "nat":
        choices += [_nat(random, family, hook)] * 2
    if below and random.random() < 0.6:
        return f"-{random.choice('jjg')} {random.choice(below)}"
    return random.choice(choices)


def _nat(random: Random, family: int, hook: str) -> str:
    pod = random.choice(PODS)
    if hook == "PREROUTING":
        return f"-j DNAT --to-destination {pod.addr4 if family == 4 else pod.addr6}"
    return "-j MASQUERADE"


def _comment(words: str) -> str:
    return f'-m comment --comment "filter rule {words}: \\"it\\""'


def _big(name: str) -> list[str]:
    """A chain of 2,000 rules, the last of which acts."""
    ports = range(50000, 51999)
    return [f"-A {name} -p tcp -m tcp --dport {port} {_comment('of many')} -j DROP" for port in ports] + [
        f"-A {name} {_comment('of all')}"
    ]


def ruleset(random: Random, family: int, home: bool, big: bool) -> str:
    """The text of all tables, as iptables-save writes it. Every rule has a comment of its own. home: for the node. big: see
    _big."""
    lines, number = [], 0
    gateways = GATEWAYS[family] if home else GATEWAYS[family][:1]
    for table, hooks in HOOKS.items():
        lines.append(f"*{table}")
        body = []
        for hook in hooks:
            policy = "DROP" if table in ("filter", "mangle") and random.random() < 0.1 else "ACCEPT"
            lines.append(f":{hook} {policy} [0:0]")
            names = [f"{hook[:4]}-{table}-{n}" for n in range(CHAINS)]
            lines += [f":{name} - [0:0]" for name in names]
            for place, chain in enumerate([hook, *names]):
                for _ in range(random.randrange(RULES + 1)):
                    number += 1
                    words = matches(random, family, table, hook, f'{table} rule {number}: \\"it\\"')
                    action = target(random, family, table, hook, names[place:], gateways)
                    body.append(f"-A {chain} {words} {action}".rstrip())
        # The DNAT target takes ports only with a protocol, otherwise iptables refuses the whole rule: no ports are given.
        if big and table == "filter":
            lines += [":big - [0:0]"]
            body = [*_big("big"), f"-A FORWARD {_comment('to many')} -j big", *body]
        lines += [*body, "COMMIT"]
    return "\n".join(lines) + "\n"


class RandomRules:
    """Random rules of both families."""

    def restore(self, random: Random, home: bool, big: bool) -> None:
        """Puts random rules in force. big: with a chain of 2,000 rules."""
        sets.make()
        for family in (4, 6):
            rules.restore_text(ruleset(random, family, home, big), family, "nft")

    def replace_part(self, random: Random) -> None:
        """Replaces a table of one family."""
        family = random.choice((4, 6))
        tables = ruleset(random, family, True, False).split("*")[1:]
        rules.restore_text("*" + random.choice(tables), family, "nft")

    def check(self, e: Event, trace: RuleTrace) -> str:
        return check(e, trace)


def check(e: Event, trace: RuleTrace) -> str:
    """What is wrong with the texts of a rule trace; "" when nothing is. Each rule of iptables has its own comment."""
    for hit in trace.hits:
        rule = hit.rule
        if (
            rule
            and rule.table != "truth"
            and (not rule.comment.startswith(f"{rule.table} rule ") or rule.comment.count('"') != 2)
        ):
            return f"comment {rule.comment!r} of {rule.chain} {rule.number}"
        if rule and rule.table != "truth" and rule.comment.split(":")[0] + ":" not in rule.text:
            return f"text {rule.text!r} of {rule.chain} {rule.number}"
    return ""


def run(packets: int, seed: int, session: Session | None = None) -> tuple[int, int, int]:
    """Returns packets compared, rules that acted on them, and mismatches."""
    return compare.run(packets, seed, RandomRules(), session)
