# SPDX-License-Identifier: Apache-2.0
"""Random legacy rulesets: nested chains, goto, inversion, and the matches that Kubernetes rules have, and some more.

Every rule has a match, at least a comment: the kernel's trace calls the verdict of a rule without a match a policy. Some rules
are followed by a marker, a rule that only counts: where a match drops a packet, the trace ends with the marker before it.
"""

from __future__ import annotations

import random

from scenes import topology
from tests.kernel.truth import legacy_odd, sets
from tests.kernel.truth.packets import PORTS

HOOKS = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}
DEPTH = 4
LONG = 2000
"""Rules of a long chain."""


def make(rng: random.Random, v6: bool, odd: bool = False, long: int = 0, home: bool = False) -> str:
    """The text of all tables, as iptables-restore takes it. odd: with matches of legacy_odd.py. long: rules of a long chain.
    home: for the node, with rules that send copies."""
    return "".join(table_of(rng, table, v6, odd, long if table == "filter" else 0, home) for table in HOOKS)


def table_of(rng: random.Random, table: str, v6: bool, odd: bool = False, long: int = 0, home: bool = False) -> str:
    """The text of one table."""
    # In nat, what a chain may hold depends on the hooks it is reached from.
    groups = (HOOKS[table],) if table != "nat" else (("PREROUTING", "OUTPUT"), ("INPUT", "POSTROUTING"))
    heads, lines = [], []
    for hooks in groups:
        chains = [f"{'AB'[groups.index(hooks)]}{level}{x}" for level in range(DEPTH) for x in "xy"]
        marked = rng.random() < 0.4
        for hook in hooks:
            policy = "DROP" if table == "filter" and rng.random() < 0.2 else "ACCEPT"
            heads.append(f":{hook} {policy} [0:0]")
            if table == "raw":
                lines.append(f"-A {hook} -j TRACE")
            if long:
                lines.append(f"-A {hook} -j LONG")
            if odd and home and table == "mangle":
                lines += legacy_odd.copies(rng, hook, v6)
            for _ in range(rng.randrange(1, 5)):
                lines.append(_rule(rng, table, hook, hooks, chains, v6, odd))
                lines += [f"-A {hook} {legacy_odd.MARKER}"] * marked
        for chain in chains:
            heads.append(f":{chain} - [0:0]")
            deeper = [c for c in chains if c[1] > chain[1]]
            for _ in range(rng.randrange(0, 5)):
                lines.append(_rule(rng, table, chain, hooks, deeper, v6, odd))
                lines += [f"-A {chain} {legacy_odd.MARKER}"] * marked
    if long:
        heads.append(":LONG - [0:0]")
        lines += [f"-A LONG {_rare_rule(rng, v6)}" for _ in range(long)]
    return "\n".join([f"*{table}", *heads, *lines, "COMMIT"]) + "\n"


def _rare_rule(rng: random.Random, v6: bool) -> str:
    """A rule of a long chain: few packets match it, or it only counts."""
    if rng.random() < 0.01:
        return legacy_odd.MARKER
    source = f"fd00:56::{rng.randrange(256, 65536):x}/128" if v6 else f"192.168.56.{rng.randrange(20, 255)}/32"
    port = rng.randrange(10_000, 60_000)
    return rng.choice((
        f"-s {source} -j DROP", f"-p tcp -m tcp --sport {port} -j RETURN", f"-p udp -m udp --sport {port} -j RETURN",
        f"-p tcp -m multiport --dports {port},1:20 -j RETURN", f"-m mark --mark {rng.getrandbits(24) | 2:#x} -j DROP",
    ))  # fmt: skip


def _rule(rng: random.Random, table: str, chain: str, hooks: tuple[str, ...], chains: list[str], v6: bool, odd: bool) -> str:
    if odd and rng.random() < 0.2:
        return f"-A {chain} {legacy_odd.match(rng, chain, v6)} {_target(rng, table, hooks, chains, '', v6)}".rstrip()
    protocol = rng.choice(("tcp", "udp", "tcp", "udp", "icmp", "")) if rng.random() < 0.5 else ""
    parts = [f"-A {chain}", *_address(rng, hooks, chain, v6)]
    if protocol:
        inverted = "! " if rng.random() < 0.1 else ""
        name = "ipv6-icmp" if v6 and protocol == "icmp" else protocol
        parts.append(f"{inverted}-p {name}")
        if not inverted and rng.random() < 0.6:
            parts.append(_transport(rng, protocol, v6))
    if not v6 and not protocol and rng.random() < 0.05:
        parts.append(rng.choice(("-f", "! -f")))
    parts += [_match(rng, table, chain, v6) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    if len(parts) == 1:
        parts.append('-m comment --comment "whatever comes"')
    return " ".join(p for p in (*parts, _target(rng, table, hooks, chains, protocol if "! -p" not in parts else "", v6)) if p)


def _address(rng: random.Random, hooks: tuple[str, ...], chain: str, v6: bool) -> list[str]:
    nets = (
        ("fd00:56::/64", "fd00:10:244::/64", f"{topology.PODS[1].addr6}/128", "fd00::/16") if v6
        else ("192.168.56.0/24", "10.244.0.0/24", f"{topology.PODS[1].addr4}/32", "10.0.0.0/8")
    )  # fmt: skip
    parts = []
    for option in ("-s", "-d"):
        if rng.random() < 0.15:
            parts.append(f"{rng.choice(('', '! '))}{option} {rng.choice(nets)}")
    interface_options = []
    if chain in ("PREROUTING", "INPUT", "FORWARD"):
        interface_options.append("-i")
    if chain in ("FORWARD", "OUTPUT", "POSTROUTING"):
        interface_options.append("-o")
    for option in interface_options:
        if rng.random() < 0.15:
            parts.append(f"{rng.choice(('', '! '))}{option} {rng.choice(('eth0', 'eth+', 'cni0', 'lo', 'veth+'))}")
    return parts


def _transport(rng: random.Random, protocol: str, v6: bool) -> str:
    no = rng.choice(("", "", "! "))
    if protocol == "icmp":
        name = "icmp6 --icmpv6-type" if v6 else "icmp --icmp-type"
        kind = rng.choice(("echo-request", "echo-reply", "destination-unreachable"))
        return f"-m {name.split()[0]} {no}{name.split()[1]} {kind}"
    if rng.random() < 0.3:
        ports = ",".join(str(p) for p in sorted(rng.sample(PORTS, 2))) + rng.choice(("", ",1000:2000", ",10000:10050"))
        return f"-m multiport {no}{rng.choice(('--dports', '--sports', '--ports'))} {ports}"
    if protocol == "tcp" and rng.random() < 0.3:
        return f"-m tcp {no}--tcp-flags {rng.choice(('SYN,RST,ACK SYN', 'FIN,ACK ACK', 'RST RST'))}"
    return f"-m {protocol} {no}--dport {rng.choice(PORTS)}" + rng.choice(("", "", " --sport 10000:60000"))


def _match(rng: random.Random, table: str, chain: str, v6: bool) -> str:
    no = rng.choice(("", "! "))
    kinds = [
        f'-m comment --comment "rule {rng.randrange(1000)} of default/http-proxy:http"',
        f"-m mark {no}--mark {rng.choice(('0x4000/0x4000', '0x1', '0x0/0x8000'))}",
        f"-m statistic --mode random {no}--probability {rng.choice(('0.33', '0.5', '0.9'))}",
        "-m statistic --mode nth --every 2 --packet 0",
        f"-m limit --limit {rng.choice(('1/sec', '5/sec'))} --limit-burst {rng.randrange(1, 4)}",
        f"-m length {no}--length {rng.choice(('0:60', '61:100', '40'))}",
        f"-m addrtype {no}--dst-type LOCAL",
        f"-m pkttype {no}--pkt-type unicast",
        sets.match(rng, 6 if v6 else 4),
        sets.match(rng, 6 if v6 else 4),
        f"-m hashlimit --hashlimit-upto {rng.choice(('1/sec', '3/min'))} --hashlimit-mode dstip --hashlimit-name h{int(v6)}",
        f"-m recent --name seen{int(v6)} {rng.choice(('--set', '--rcheck', '--update --hitcount 2'))}",
        f"-m connmark {no}--mark 0x1/0x1",
        f"-m dscp {no}--dscp 0x0a",
        f"-m hl {no}--hl-eq 64" if v6 else f"-m ttl {no}--ttl-eq 64",
        f"-m quota {no}--quota {rng.randrange(100, 900)}",
        f"-m iprange {no}--src-range {'fd00:56::1-fd00:56::ff' if v6 else '192.168.56.1-192.168.56.20'}",
        f"-m connbytes {no}--connbytes 1:2 --connbytes-mode packets --connbytes-dir both",
        f'-m u32 {no}--u32 "{"4&0xFFFF=0:60" if v6 else "0&0xFFFF=0:60"}"',
    ]
    if chain in ("OUTPUT", "POSTROUTING"):
        kinds.append(f"-m owner {no}--uid-owner 0")
    kinds += [f"-m conntrack {_connection(rng, no, v6)}" for _ in range(4)]
    if table != "raw":
        kinds.append(f"-m state --state {rng.choice(('NEW', 'ESTABLISHED'))}")
    return rng.choice(kinds)


def _connection(rng: random.Random, no: str, v6: bool) -> str:
    """Options of match conntrack."""
    net = rng.choice(
        ("fd00:56::/64", "fd00:10:244::/64", f"{topology.PODS[1].addr6}/128", f"{topology.GATEWAY6}/128") if v6
        else ("192.168.56.0/24", "10.244.0.0/24", f"{topology.PODS[1].addr4}/32", f"{topology.GATEWAY4}/32")
    )  # fmt: skip
    states = ("NEW", "RELATED,ESTABLISHED", "INVALID", "NEW,RELATED", "DNAT", "SNAT", "RELATED,ESTABLISHED,DNAT", "UNTRACKED")
    return rng.choice((
        *(f"{no}--ctstate {state}" for state in rng.sample(states, 4)),
        f"--ctdir {rng.choice(('ORIGINAL', 'REPLY'))} {no}--ctstate {rng.choice(('NEW', 'ESTABLISHED', 'INVALID', 'SNAT'))}",
        f"{no}--ct{rng.choice(('origsrc', 'origdst', 'replsrc', 'repldst'))} {net}",
        f"{no}--ct{rng.choice(('origdstport', 'replsrcport'))} {rng.choice((rng.choice(PORTS), '8080', '80:30300'))}",
        f"{no}--ct{rng.choice(('origsrcport', 'repldstport'))} {rng.choice(('10000:40000', '1:1000', '32768:65535'))}",
        f"{no}--ctstatus {rng.choice(('ASSURED', 'SEEN_REPLY', 'CONFIRMED', 'EXPECTED', 'ASSURED,CONFIRMED'))}",
        f"{no}--ctproto {rng.choice(('tcp', 'udp', '58' if v6 else '1'))}",
    ))  # fmt: skip


def _target(rng: random.Random, table: str, hooks: tuple[str, ...], chains: list[str], protocol: str, v6: bool) -> str:
    kinds = ["-j RETURN", "-j ACCEPT", ""]
    if table != "nat":
        kinds += ["-j DROP"] * (2 if table == "filter" else 1)
    kinds += [f"-j {rng.choice(chains)}", f"-j {rng.choice(chains)}", f"-j {rng.choice(chains)}",
              f"-g {rng.choice(chains)}"] if chains else []  # fmt: skip
    if table in ("mangle", "nat"):
        kinds.append(f"-j MARK --set-xmark {rng.choice(('0x4000/0x4000', '0x0/0x1', '0x1/0xffffffff'))}")
    if table == "mangle":
        kinds += [rng.choice(("-j CONNMARK --save-mark", "-j CONNMARK --restore-mark")), _mangle(rng, v6)]
        kinds += [f"-j SET --map-set marks{6 if v6 else 4} dst --map-mark"]
    if table == "filter":
        kinds += ["-j REJECT", "-j NFQUEUE --queue-num 7 --queue-bypass"]
    if table == "raw" and rng.random() < 0.2:
        kinds += ["-j CT --notrack"] * 2
    kinds += [rng.choice(("-j LOG", "-j NFLOG --nflog-group 3", sets.target(rng, 6 if v6 else 4)))]
    if table == "nat" and "PREROUTING" in hooks and protocol in ("tcp", "udp"):
        pod = rng.choice(topology.PODS)
        kinds += [f"-j DNAT --to-destination {f'[{pod.addr6}]' if v6 else pod.addr4}:8080"] * 4
        kinds += [f"-j REDIRECT --to-ports {rng.choice(PORTS)}"]
    if table == "nat" and "POSTROUTING" in hooks:
        gateway = topology.GATEWAY6 if v6 else topology.GATEWAY4
        kinds += [f"-j SNAT --to-source {gateway}"] * 2
        if "INPUT" not in hooks:
            kinds += ["-j MASQUERADE"]
    return rng.choice(kinds)


def _mangle(rng: random.Random, v6: bool) -> str:
    """A target that only mangle may have; the packet continues after it."""
    return rng.choice((
        "-j DSCP --set-dscp 0x0a",
        "-j HL --hl-set 63" if v6 else "-j TTL --ttl-set 63",
        "-j CONNMARK --set-xmark 0x1/0x1",
    ))  # fmt: skip
