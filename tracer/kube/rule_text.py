# SPDX-License-Identifier: Apache-2.0
"""What a rule's text says, whether iptables or nft wrote it: addresses, ports, marks. Knows nothing of who wrote it."""

from __future__ import annotations

import re
from functools import lru_cache

from tracer.model.rule import Rule, Ruleset

BASE = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
"""iptables' own chains, into which everybody writes."""

_DPORT = re.compile(r"--dports? ([\d,:]+)|(?:tcp|udp|sctp|th) dport (\d+)\b")
_PROTOCOL = re.compile(r"-p (tcp|udp|sctp)\b|l4proto (tcp|udp|sctp)\b|(tcp|udp|sctp) dport")
_DESTINATION = re.compile(r"(! )?-d ([0-9a-f.:]+)(?:/\d+)?|ip6? daddr (!= )?([0-9a-f.:]+)")
_DNAT = re.compile(r"--to-destination (\S+)|dnat (?:ip6? )?to ([0-9a-f.:\[\]]+)")
_DNAT_MAP = re.compile(r"dnat ip6? to numgen .* map \{ (.*) \}")
_SET_MARK = re.compile(r"--set-x?mark (0x[0-9a-f]+)|mark set (?:meta )?mark (?:\||or) (0x[0-9a-f]+)")
_TEST_MARK = re.compile(r"--mark (0x[0-9a-f]+)|mark & (0x[0-9a-f]+)")
_COMMENT = re.compile(r'(?:-m comment )?--comment "(?:\\.|[^"\\])*"|(?<!match )comment "[^"]*"')


@lru_cache(8192)
def _plain(text: str) -> str:
    """The text without its comment, which may look like anything."""
    return _COMMENT.sub("", text) if "comment" in text else text


def destination_ports(rule: Rule) -> tuple[int, ...]:
    """The destination ports it asks for, one by one; () when it asks for none, or for ranges."""
    found = _DPORT.search(_plain(rule.text))
    if not found:
        return ()
    numbers = (found[1] or found[2]).split(",")
    return tuple(int(n) for n in numbers if n.isdigit())


def protocol(rule: Rule) -> str:
    """tcp, udp or sctp; "" when it asks for none of them."""
    found = _PROTOCOL.search(_plain(rule.text))
    return next((g for g in found.groups() if g), "") if found else ""


def destination(rule: Rule) -> str:
    """The one address or network it asks for as the destination, without its prefix; "" for none or a negated one."""
    found = _DESTINATION.search(_plain(rule.text))
    if not found or found[1] or found[3]:
        return ""
    return found[2] or found[4]


def dnat_target(rule: Rule) -> tuple[str, int] | None:
    """Where it sends packets to: address, port (0: unchanged). None for no DNAT, or one of several targets."""
    text = _plain(rule.text)
    found = _DNAT.search(text)
    if found:
        return split_end(found[1] or found[2])
    targets = _DNAT_MAP.search(text)
    if not targets or "," in targets[1]:
        return None
    address, _, port = targets[1].partition(" : ")[2].partition(" . ")
    return (address, int(port)) if port.isdigit() else None


def split_end(end: str) -> tuple[str, int]:
    """10.0.0.1:80, [fd00::1]:80, 10.0.0.1 -> address, port (0 when it has none)."""
    if end.startswith("["):
        address, _, port = end[1:].partition("]")
        port = port.lstrip(":")
    elif end.count(":") == 1:
        address, _, port = end.partition(":")
    else:
        address, port = end, ""
    return address, int(port) if port.isdigit() else 0


def mark_set(rule: Rule) -> int:
    """The bits it sets in the mark; 0 for none."""
    found = _SET_MARK.search(_plain(rule.text))
    return int(found[1] or found[2], 16) if found else 0


def mark_tested(rule: Rule) -> int:
    """The bits of the mark it looks at; 0 for none."""
    found = _TEST_MARK.search(_plain(rule.text))
    return int(found[1] or found[2], 16) if found else 0


def is_hidden(rule: Rule) -> bool:
    """Whether nft has kept something of it to itself that could have named its writer."""
    return 'xt match "comment"' in rule.text and not rule.comment


def from_base(rule: Rule, own: frozenset[str] | tuple[str, ...]) -> bool:
    """Whether it leads from one of iptables' own chains into a chain of this program. own: names, or prefixes as a tuple."""
    if rule.chain not in BASE:
        return False
    return rule.target.startswith(own) if isinstance(own, tuple) else rule.target in own


def siblings(rule: Rule, ruleset: Ruleset, chain: str = "") -> tuple[Rule, ...]:
    """The rules of a chain of the same table; of its own if no name is given."""
    return ruleset.chain(rule.family, rule.table, chain or rule.chain)
