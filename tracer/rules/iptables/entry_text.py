# SPDX-License-Identifier: Apache-2.0
"""The text of a rule as iptables-save prints it, made from the kernel's blob, for rules that no tool has printed.

A rule with an option that tracer/rules/xt_options.py does not know has no text, nor one with a protocol that has its name from
/etc/protocols, or a mask with holes. Order of the words: print_rule4 and print_rule6 in iptables.
"""

from __future__ import annotations

from tracer.rules.iptables.entry import (
    INV_DST,
    INV_FRAGMENT,
    INV_IN,
    INV_OUT,
    INV_PROTOCOL,
    INV_SRC,
    Entry,
    TableHeader,
)
from tracer.rules.xt_options import format_address, inverted_by, is_word, match_options, target_options
from tracer.util.octets import c_text

_BITS = {"ip": 32, "ip6": 128}
_NAME_BITS = 128
"""Length of an interface's name and of its mask, bits."""
_PROTOCOLS = {"ip": {1: "icmp"}, "ip6": {58: "ipv6-icmp"}}
_COMMON_PROTOCOLS = {6: "tcp", 17: "udp", 33: "dccp", 50: "esp", 51: "ah", 132: "sctp", 136: "udplite"}
"""Names that iptables knows itself: those of all others depend on /etc/protocols."""


def rule_text(family: str, entry: Entry, target: str) -> str:
    """The rule as in the output of iptables-save, without its chain; "" = a part of it is not known.

    Args:
        family: "ip" or "ip6".
        entry: The rule.
        target: The chain or verdict of a standard target, "" = it has neither; the name of any other target.
    """
    words = [_header(family, entry.header)]
    words += [
        _named("-m", match.name, match_options(match.name, match.revision, match.data, family)) for match in entry.matches
    ]
    own = entry.target
    if own.name:
        words.append(_named("-j", own.name, target_options(own.name, own.revision, own.data, family)))
    elif target:
        words.append(f"{'-g' if entry.goto else '-j'} {target}" if is_word(target) else None)
    known = [word for word in words if word is not None]
    return " ".join(word for word in known if word) if len(known) == len(words) else ""


def _named(option: str, name: str, options: str | None) -> str | None:
    return None if options is None else f"{option} {name} {options}".rstrip(" ")


def _header(family: str, h: TableHeader) -> str | None:
    inv = h.inverted
    protocol = "" if h.any_protocol else (_PROTOCOLS[family] | _COMMON_PROTOCOLS).get(h.protocol)
    if protocol is None or (h.any_protocol and inv & INV_PROTOCOL):
        return None
    words = [
        _network("-s", family, h.src, h.src_mask, inv & INV_SRC),
        _network("-d", family, h.dst, h.dst_mask, inv & INV_DST),
        _interface("-i", h.iniface, h.in_mask, inv & INV_IN),
        _interface("-o", h.outiface, h.out_mask, inv & INV_OUT),
        f"{inverted_by(inv & INV_PROTOCOL)}-p {protocol}" if protocol else "",
        f"{inverted_by(inv & INV_FRAGMENT)}-f" if h.fragment else "",
    ]
    return None if None in words else " ".join(word for word in words if word)


def _network(option: str, family: str, address: int, mask: int, inverted: int) -> str | None:
    if not mask:
        return None if inverted else ""
    bits = _BITS[family]
    length = mask.bit_count()
    if mask != (1 << bits) - (1 << bits - length):
        return None  # a mask with holes
    return f"{inverted_by(inverted)}{option} {format_address(family, address)}/{length}"


def _interface(option: str, name: int, mask: int, inverted: int) -> str | None:
    if not mask:
        return None if inverted else ""
    tested = mask.bit_count() // 8
    if mask != (1 << _NAME_BITS) - (1 << _NAME_BITS - 8 * tested):
        return None
    raw = name.to_bytes(_NAME_BITS // 8, "big")[:tested]
    text = c_text(raw)
    return f"{inverted_by(inverted)}{option} {text}{'+' * (0 not in raw)}" if is_word(text) else None
