# SPDX-License-Identifier: Apache-2.0
"""Random native nftables rulesets: families ip, ip6, inet and netdev, jumps and gotos, sets, verdict maps, numgen, marks, NAT,
copies, long names, elements that time out."""

from __future__ import annotations

import subprocess
import time
from functools import cache
from itertools import count
from random import Random
from socket import if_nameindex

from scenes.topology import CLIENT4, DRAIN4, DRAIN6, NODE4, NODE6, PODS
from tests.kernel.truth import compare, nft
from tests.kernel.truth.senders import PORTS
from tracer.events import record
from tracer.events.record import Event
from tracer.kernel.session import Session
from tracer.model.rule import RuleTrace

CHAINS, RULES = 5, 6
HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
ADDRESSES = {
    "ip": (NODE4, DRAIN4, "203.0.113.77", PODS[0].addr4, PODS[1].addr4, CLIENT4),
    "ip6": (NODE6, DRAIN6, "fd00:113::77", PODS[0].addr6, PODS[1].addr6),
}
GATEWAYS = {"ip": nft.GATEWAYS[4], "ip6": nft.GATEWAYS[6]}
"""Targets of copies, as in tests/kernel/truth/nft.py."""
MAY_COPY = 0.06
LATE_SECONDS = (0.3, 0.6, 30)
"""Timeouts of elements of some maps."""
SLACK_NS = 2_000_000_000
"""An element is certainly gone this long after its timeout."""
_NUMBERS = count()
"""Numbers of maps with elements that time out: no two maps have the same name, not even in two tables or
namespaces, or in a table and the one that replaces it. An element may stay in one map while another map's element of that key
times out."""
PRIORITIES = {"prerouting": (-300, -150, -150, -10), "output": (-300, -150, -10), "postrouting": (-150, 10)}


def _verdict(random: Random, below: list[str]) -> str:
    choices = ["accept", "return", "continue", *(["drop"] if random.random() < 0.3 else [])]
    if below:
        choices += [f"{random.choice(['jump', 'goto'])} {random.choice(below)}"] * 4
    return random.choice(choices)


def _long(random: Random, name: str) -> str:
    """Sometimes a name that is too long for records."""
    return f"{name}-{'long' * random.choice((6, 7, 8, 20, 29))}"[:127] if random.random() < 0.4 else name


def _map(random: Random, keys: list[str], below: list[str]) -> str:
    chosen = random.sample(keys, min(len(keys), random.randrange(2, 9)))
    return "{ " + ", ".join(f"{key} : {_verdict(random, below)}" for key in chosen) + " }"


class Table:
    """One table that is being made: chains, and the named sets and maps its rules use."""

    def __init__(self, random: Random, family: str, name: str, home: bool) -> None:
        self.random, self.family, self.name = random, family, name
        self.gateways = GATEWAYS.get(family, ())[: None if home else 1]
        self.late: dict[str, float] = {}
        self.objects: list[str] = []
        self.chains: list[str] = []
        self.rules = 0

    def _ip(self) -> str:
        return self.family if self.family != "inet" else self.random.choice(["ip", "ip6"])

    def _match(self) -> str:
        random, ip = self.random, self._ip()
        no = "!= " if random.random() < 0.25 else ""
        addresses = ", ".join(random.sample(ADDRESSES[ip], 3))
        ports = ", ".join(str(p) for p in random.sample(PORTS, 3))
        low, high = sorted(random.sample(PORTS, 2))
        return random.choice([
            "", "", f"{ip} daddr {no}{random.choice(ADDRESSES[ip])}", f"{ip} saddr {no}{{ {addresses} }}",
            f"{ip} daddr @{self._set(ip)}", f"tcp dport {no}{{ {ports} }}", f"udp dport {no}{low}-{high}",
            f"meta l4proto {random.choice(['tcp', 'udp', '{ icmp, ipv6-icmp }'])}",
            f"ct state {random.choice(['new', 'established', 'invalid'])}",
            f"meta mark & 0x3 == {random.randrange(4)}", "numgen random mod 2 0", "numgen inc mod 3 1",
            'iifname "eth*"', "fib daddr type local",
        ])  # fmt: skip

    def _set(self, ip: str) -> str:
        name = f"s{len(self.objects)}"
        elements = ", ".join(self.random.sample(ADDRESSES[ip], 3))
        kind = "ipv4_addr" if ip == "ip" else "ipv6_addr"
        self.objects.append(f"  set {name} {{ type {kind}; elements = {{ {elements} }} }}")
        return name

    def _vmap(self, below: list[str]) -> str:
        """A rule that ends in a verdict map, named or not."""
        random, ip = self.random, self._ip()
        kind = random.randrange(7)
        address = "ipv4_addr" if ip == "ip" else "ipv6_addr"
        if kind == 0:
            keys = [f"{a} . {p} . {port}" for a in ADDRESSES[ip] for p in ("tcp", "udp") for port in PORTS]
            name = self._named(f"{address} . inet_proto . inet_service", random.sample(keys, 60), below)
            return f"{ip} daddr . meta l4proto . th dport vmap @{name}"
        if kind == 1:
            keys = [f"{p} . {port}" for p in ("tcp", "udp") for port in PORTS]
            return f"meta l4proto . th dport vmap @{self._named('inet_proto . inet_service', keys, below)}"
        if kind == 2:
            return f"{ip} daddr vmap {_map(random, list(ADDRESSES[ip]), below)}"
        if kind == 3:
            cuts = sorted(random.sample(range(1, 60000), 4))
            ranges = [f"{cuts[0]}-{cuts[1]}", f"{cuts[1] + 1}-{cuts[2]}", f"{cuts[3]}-65535"]
            return f"{random.choice(['tcp', 'udp'])} dport vmap {_map(random, ranges, below)}"
        if kind == 4:
            return f"numgen random mod 4 vmap {_map(random, ['0', '1', '2', '3'], below)}"
        if kind == 5:
            return f"{ip} daddr vmap @{self._late(ip, below)}"
        return f"meta l4proto vmap {_map(random, ['tcp', 'udp', 'icmp', 'ipv6-icmp'], below)}"

    def _late(self, ip: str, below: list[str]) -> str:
        """A map with elements that time out, and others that stay."""
        name, random = f"late{next(_NUMBERS)}", self.random
        verdicts = [_verdict(random, below) for _ in range(2)]
        elements = []
        for address in ADDRESSES[ip]:
            seconds = random.choice((0, *LATE_SECONDS))
            elements.append(f"{address}{f' timeout {int(seconds * 1000)}ms' * bool(seconds)} : {random.choice(verdicts)}")
            if seconds:
                self.late[f"{name} {address}"] = seconds
        if _has_catch_all():
            elements.append(f"* : {random.choice(verdicts)}")
        kind = "ipv4_addr" if ip == "ip" else "ipv6_addr"
        self.objects.append(f"  map {name} {{ type {kind} : verdict; flags timeout; elements = {{ {', '.join(elements)} }} }}")
        return name

    def _named(self, kind: str, keys: list[str], below: list[str]) -> str:
        name = f"m{len(self.objects)}"
        elements = ", ".join(f"{key} : {_verdict(self.random, below)}" for key in keys)
        self.objects.append(f"  map {name} {{ type {kind} : verdict; elements = {{ {elements} }} }}")
        return name

    def rule(self, hook: str, below: list[str]) -> str:
        random = self.random
        self.rules += 1
        comment = f' comment "rule {self.rules} # handle 7"' if random.random() < 0.5 else ""
        if random.random() < 0.35:
            return self._vmap(below) + comment
        if random.random() < 0.05:
            return "meta l4proto vmap { tcp : continue, udp : continue } meta mark set 0x2 counter" + comment
        if self.gateways and random.random() < MAY_COPY:
            copy = f"dup to {random.choice(self.gateways)}"
            return f"{self._match()} {copy} {random.choice(['', 'counter', 'counter return', 'accept'])}".strip() + comment
        statements = [_verdict(random, below), "counter", "meta mark set meta mark | 0x1", "meta mark set 0x2",
                      "meta mark set ct mark", "ct mark set meta mark", "meta mark set numgen random mod 4"]  # fmt: skip
        if hook in ("input", "forward", "output"):
            statements.append("reject")
        return f"{self._match()} {random.choice(statements)}".strip() + comment

    def chain(self, name: str, header: str, hook: str, below: list[str]) -> None:
        rules = "".join(f"    {self.rule(hook, below)}\n" for _ in range(self.random.randrange(RULES + 1)))
        self.chains.append(f"  chain {name} {{\n{header}{rules}  }}")

    def text(self) -> str:
        # A chain must exist before a map refers to it.
        names = "".join(f"  chain {c.split()[1]} {{ }}\n" for c in self.chains if "type " not in c)
        head = f"table {self.family} {self.name} {{\n"
        return head + names + "}\n" + head + "\n".join([*self.objects, *self.chains]) + "\n}\n"


def _table(random: Random, family: str, name: str, home: bool) -> Table:
    table = Table(random, family, _long(random, name), home)
    for hook in HOOKS:
        names = [_long(random, f"{hook}-{n}") for n in range(CHAINS)]
        for n, chain in enumerate(names):
            table.chain(chain, "", hook, names[n + 1 :])
        priority = random.choice(PRIORITIES.get(hook, (-10, 0, 0, 10)))
        policy = "drop" if random.random() < 0.1 else "accept"
        table.chain(
            _long(random, f"base-{hook}"), f"    type filter hook {hook} priority {priority}; policy {policy};\n", hook, names
        )
    return table


def _big(family: str) -> str:
    """A table with a chain of 2,000 rules, the last of which acts."""
    many = "".join(f"    tcp dport {port} drop\n" for port in range(50000, 51999))
    return f"""table {family} big {{
  chain many {{
{many}    counter
  }}
  chain to-many {{ type filter hook forward priority 5; jump many; }}
}}
"""


def _devices(random: Random, device: str) -> str:
    """Rules for packets received by a device: some are copied, some are sent elsewhere after a rule that shows them."""
    aside = "lo"
    rules = "".join("    " + random.choice([
        "ip protocol udp counter", f"ip daddr {DRAIN4} jump aside", f'ip protocol tcp dup to "{aside}" counter',
        f'udp dport 3306 fwd to "{aside}"', f'ip6 daddr {DRAIN6} tcp dport 9999 counter fwd to "{aside}"',
        "meta l4proto { tcp, udp } th dport vmap { 22 : continue, 53 : jump aside, 80 : accept }", "meta mark set 0x2",
    ]) + "\n" for _ in range(RULES))  # fmt: skip
    return f"""table netdev {_long(random, "door")} {{
  chain aside {{ counter; ip ttl 1-200 return; }}
  chain in {{
    type filter hook ingress device "{device}" priority 0;
    counter
{rules}  }}
}}
"""


def _leaving(device: str) -> str:
    return f"""table netdev way-out {{
  chain out {{
    type filter hook egress device "{device}" priority 0;
    counter
    meta l4proto udp counter
    tcp dport 22 fwd to "lo"
  }}
}}
"""


def _nat(random: Random, family: str) -> str:
    pods = [p.addr4 if family == "ip" else p.addr6 for p in PODS]
    to = random.choice([
        random.choice(pods),
        "numgen random mod 3 map { " + ", ".join(f"{n} : {pod}" for n, pod in enumerate(pods)) + " }",
    ])  # fmt: skip
    node = ADDRESSES[family][0]
    services = (
        "{ " + f"{node} . tcp . 80 : goto pick, {node} . udp . 53 : goto pick, {node} . tcp . 30285 : jump mark-it" + " }"
    )
    kind = "ipv4_addr" if family == "ip" else "ipv6_addr"
    return f"""table {family} nat-{family} {{
  chain mark-it {{ meta mark set meta mark | 0x4000; }}
  chain pick {{
    jump mark-it
    dnat to {to}
  }}
  map services {{ type {kind} . inet_proto . inet_service : verdict; elements = {services} }}
  chain pre {{
    type nat hook prerouting priority {random.choice([-100, -99])};
    {family} daddr . meta l4proto . th dport vmap @services
    tcp dport 443 dnat to {random.choice(pods)} comment "direct"
  }}
  chain post {{ type nat hook postrouting priority 100; meta mark & 0x4000 == 0x4000 masquerade; }}
}}
"""


def _load(text: str) -> None:
    done = subprocess.run(["nft", "-f", "-"], input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nft refused: {done.stderr[:2000]}\n{text}")


def _is_accepted(text: str) -> bool:
    """Whether this kernel and nft accept a ruleset; it is only checked."""
    return subprocess.run(["nft", "-c", "-f", "-"], input=text, text=True, capture_output=True, check=False).returncode == 0


@cache
def _has_catch_all() -> bool:
    return _is_accepted("table ip t {\n  map m { type ipv4_addr : verdict; elements = { * : drop } }\n}\n")


@cache
def _has_egress(device: str) -> bool:
    return _is_accepted(_leaving(device))


class RandomRules:
    """Random tables of all families. The node's are remembered, to replace one of them."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}
        self._late: dict[str, int] = {}

    def restore(self, random: Random, home: bool, big: bool) -> None:
        """Puts random rules in force. home: the node's, which are replaced later. big: with a chain of 2,000 rules."""
        device = max(name for _, name in if_nameindex() if name.startswith("eth"))
        kinds = [("ip", "t4"), ("ip6", "t6"), ("inet", "t46")]
        random.shuffle(kinds)
        tables = [_table(random, *kind, home) for kind in kinds]
        others = [_nat(random, "ip"), _nat(random, "ip6"), _devices(random, device), *([_big("inet")] if big else [])]
        if _has_egress(device):
            others.append(_leaving(device))
        _load("".join([*(t.text() for t in tables), *others]))
        if home:
            self._tables = {t.name: t for t in tables}
        else:
            self._late.clear()
        self._remember(tables)

    def _remember(self, tables: list[Table]) -> None:
        """Notes the latest times at which elements time out (ns, CLOCK_MONOTONIC): before they are loaded and after."""
        now = time.monotonic_ns()
        for table in tables:
            for name, seconds in table.late.items():
                self._late[name] = now + int(seconds * 1e9) + SLACK_NS

    def replace_part(self, random: Random) -> None:
        """Replaces one of the node's tables by another of the same name."""
        old = random.choice(list(self._tables.values()))
        new = _table(random, old.family, "t", True)
        new.name = old.name
        self._remember([new])
        _load(f"delete table {old.family} {old.name}\n{new.text()}")
        self._remember([new])

    def check(self, e: Event, trace: RuleTrace) -> str:
        """What is wrong with texts and elements of a rule trace; "" when nothing is."""
        for hit in trace.hits:
            rule = hit.rule
            if rule is None:
                continue
            if not rule.text:
                return f"no text for {rule.chain} {rule.number}"
            if "@late" in rule.text:
                late = f"{rule.text.split('@')[1].split()[0]} {hit.element.split(' : ')[0]}"
                if e.time > self._late.get(late, e.time):
                    return f"element {hit.element!r} of {rule.text[:60]!r} had timed out"
            goes_on = hit.verdict in ("CONTINUE", "MARK") and rule.text.split("comment")[0].rstrip().endswith("counter")
            if " vmap " in f" {rule.text} " and (hit.element or not ("@late" in rule.text or goes_on)):
                wrong = _wrong_element(e, rule.text, hit.verdict, hit.element)
                if wrong:
                    return wrong
        return ""


def _wrong_element(e: Event, text: str, verdict: str, element: str) -> str:
    """Checks the element of a verdict map against the packet and the verdict."""
    key, _, action = element.partition(" : ")
    if action.upper().split() != verdict.upper().split():
        return f"element {element!r} of {text[:60]!r} and verdict {verdict!r}"
    words = {"meta l4proto": {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}.get(e.protocol, ""), "th dport": str(e.dport),
             "ip daddr": record.address(e.dst), "ip6 daddr": record.address(e.dst)}  # fmt: skip
    key_fields = text.split(" vmap ")[0].split(" . ")
    if key != "*" and all(word in words for word in key_fields) and key != " . ".join(words[word] for word in key_fields):
        return f"element {element!r} of {text[:60]!r} for {record.header(e)}"
    return ""


def run(packets: int, seed: int, session: Session | None = None) -> tuple[int, int, int]:
    """Returns packets compared, rules that acted on them, and mismatches."""
    return compare.run(packets, seed, RandomRules(), session)
