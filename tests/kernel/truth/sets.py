# SPDX-License-Identifier: Apache-2.0
"""The ipsets that random rules of iptables read and write, for each family: two of addresses, one of ports, one of marks."""

from __future__ import annotations

import random

from incidents import links
from scenes.topology import CLIENT4, CLIENT6, NODE4, NODE6, PODS


def _text() -> str:
    members = {4: (NODE4, PODS[1].addr4, CLIENT4), 6: (NODE6, PODS[1].addr6, CLIENT6)}
    lines = []
    for version, family in ((4, "inet"), (6, "inet6")):
        lines += [f"create hosts{version} hash:ip family {family}", f"create met{version} hash:ip family {family}"]
        lines += [f"create doors{version} hash:ip,port family {family}"]
        lines += [f"create marks{version} hash:ip family {family} skbinfo"]
        lines += [f"add marks{version} {members[version][0]} skbmark 0x4000/0x4000"]
        lines += [f"add hosts{version} {address}" for address in members[version]]
        lines += [f"add doors{version} {members[version][0]},{port}" for port in ("tcp:80", "tcp:30285", "udp:53")]
    return "\n".join(lines) + "\n"


def make() -> None:
    """Makes the sets that do not exist yet."""
    links.ipset(_text())


def match(rng: random.Random, version: int) -> str:
    """A match that reads one of the sets."""
    inverted = rng.choice(("", "! "))
    lookup = rng.choice((f"hosts{version} src", f"hosts{version} dst", f"met{version} dst", f"doors{version} dst,dst"))
    return f"-m set {inverted}--match-set {lookup}"


def target(rng: random.Random, version: int) -> str:
    """A target that writes one of the sets."""
    return f"-j SET --{rng.choice(('add', 'del'))}-set met{version} dst"
