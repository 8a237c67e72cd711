# SPDX-License-Identifier: Apache-2.0
"""Parses the text of a rule of iptables or nft: addresses, ports, marks. Independent of the rule's writer."""

from __future__ import annotations

import re
from functools import lru_cache

from tracer.model.rule import Rule, Ruleset

BASE = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
"""The built-in chains of iptables, which all programs use."""

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
    """Returns the text without its comment, which can contain anything."""
    return _COMMENT.sub("", text) if "comment" in text else text


def destination_ports(rule: Rule) -> tuple[int, ...]:
    """Returns the destination ports that the rule matches; () = none, or ranges."""
    found = _DPORT.search(_plain(rule.text))
    if not found:
        return ()
    numbers = (found[1] or found[2]).split(",")
    return tuple(int(n) for n in numbers if n.isdigit())


def protocol(rule: Rule) -> str:
    """Returns tcp, udp or sctp; "" if the rule matches none of them."""
    found = _PROTOCOL.search(_plain(rule.text))
    return next((g for g in found.groups() if g), "") if found else ""


def destination(rule: Rule) -> str:
    """Returns the destination address or network that the rule matches, without prefix length; "" = none, or negated."""
    found = _DESTINATION.search(_plain(rule.text))
    if not found or found[1] or found[3]:
        return ""
    return found[2] or found[4]


def dnat_target(rule: Rule) -> tuple[str, int] | None:
    """Returns the DNAT target: address, port (0 = unchanged). None for no DNAT, or several targets."""
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
    """Parses 10.0.0.1:80, [fd00::1]:80, 10.0.0.1 -> address, port (0 = none)."""
    if end.startswith("["):
        address, _, port = end[1:].partition("]")
        port = port.lstrip(":")
    elif end.count(":") == 1:
        address, _, port = end.partition(":")
    else:
        address, port = end, ""
    return address, int(port) if port.isdigit() else 0


def mark_set(rule: Rule) -> int:
    """Returns the mark bits that the rule sets; 0 = none."""
    found = _SET_MARK.search(_plain(rule.text))
    return int(found[1] or found[2], 16) if found else 0


def mark_tested(rule: Rule) -> int:
    """Returns the mark bits that the rule tests; 0 = none."""
    found = _TEST_MARK.search(_plain(rule.text))
    return int(found[1] or found[2], 16) if found else 0


def is_hidden(rule: Rule) -> bool:
    """Whether nft did not print the rule's comment, which could have named its writer."""
    return 'xt match "comment"' in rule.text and not rule.comment


def from_base(rule: Rule, own: frozenset[str] | tuple[str, ...]) -> bool:
    """Whether a rule in a built-in chain jumps to a chain of a program. own: the names, or a tuple of prefixes."""
    if rule.chain not in BASE:
        return False
    return rule.target.startswith(own) if isinstance(own, tuple) else rule.target in own


def siblings(rule: Rule, ruleset: Ruleset, chain: str = "") -> tuple[Rule, ...]:
    """Returns the rules of a chain in the same table. chain: "" = the rule's own chain."""
    return ruleset.chain(rule.family, rule.table, chain or rule.chain)
