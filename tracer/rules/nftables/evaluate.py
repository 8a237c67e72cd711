# SPDX-License-Identifier: Apache-2.0
"""Evaluates values in nft's JSON for one packet: packet fields, constants, sets, maps, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Final, TypeAlias

from tracer.rules.match_context import MatchContext, address_text
from tracer.rules.nftables.format import expression, operand
from tracer.rules.nftables.json_parser import NftListing
from tracer.rules.packet_view import PacketView
from tracer.util.json_value import Json, as_list, as_number, as_object, as_pair, as_text, member, one_or_more, only_member
from tracer.util.octets import decoded

PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp"}
MAX_CHOICES = 4096
"""Most values of one `numgen`. Its modulus may be any number of 32 bits, and each value is kept."""
REGISTER_BITS = 128
"""Size of the largest register of nftables, bits: no shift is longer."""


class Unknown(Enum):
    """A value that is not known for this packet."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True)
class RandomValue:
    """One of several values, each with its share of all connections."""

    choices: tuple[tuple[Fraction, Value], ...]


Value: TypeAlias = "str | int | tuple[Value, ...] | RandomValue | Unknown | None"
"""The value of an operand: a tuple for a concatenation; None = the packet does not have this field."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates values for one packet.

    Attributes:
        listed: The listing of nft.
        scope: Family and table of the sets and maps.
        packet: The packet.
        context: The state beside the packet that matches test.
        mark: The packet's mark, None = not known.
        sport_known: Whether its source port is known.
    """

    listed: NftListing
    scope: tuple[str, str]
    packet: PacketView
    context: MatchContext
    mark: int | None
    sport_known: bool

    def of(self, value: Json) -> Value:
        """The value of an operand."""
        if isinstance(value, str | int):
            return value
        if not isinstance(value, dict) or len(value) != 1:
            return UNKNOWN
        kind, body = only_member(value)
        if kind == "payload":
            return self._payload(body)
        if kind == "meta":
            return self._meta(as_text(member(body, "key")))
        if kind == "ct":
            return {"state": "new", "direction": "original"}.get(as_text(member(body, "key")), UNKNOWN)
        if kind == "fib":
            return self._fib(body)
        if kind == "concat":
            parts = tuple(self.of(p) for p in as_list(body))
            return UNKNOWN if any(p is UNKNOWN or isinstance(p, RandomValue) for p in parts) else parts
        if kind in ("&", "|", "^", "<<", ">>"):
            return _bits(kind, [self.of(side) for side in as_list(body)])
        if kind == "numgen":
            offset, count = as_number(as_object(body).get("offset", 0)), as_number(member(body, "mod"))
            if count > MAX_CHOICES:
                return UNKNOWN
            return RandomValue(tuple((Fraction(1, count), n + offset) for n in range(count)))
        if kind == "map":
            return self._value_in(self.of(member(body, "key")), member(body, "data"))
        return UNKNOWN

    def _payload(self, body: Json) -> Value:
        p, given = self.packet, as_object(body)
        protocol, name = given.get("protocol"), given.get("field")
        layer = PROTOCOLS.get(p.protocol, "")
        if protocol in ("ip", "ip6"):
            ends = {"saddr": p.src, "daddr": p.dst}
            if protocol == p.family and isinstance(name, str) and name in ends:
                return address_text(ends[name], p.family)
            return layer if name in ("protocol", "nexthdr") and protocol == p.family else UNKNOWN
        if protocol in ("th", layer):
            if name == "sport":
                return p.sport if self.sport_known else UNKNOWN
            return p.dport if name == "dport" else UNKNOWN
        # The header of another protocol: the match is false, since nft adds a test of the protocol.
        return None if protocol in PROTOCOLS.values() else UNKNOWN

    def _meta(self, key: str) -> Value:
        p = self.packet
        if key == "mark":
            return UNKNOWN if self.mark is None else self.mark
        if key == "l4proto":
            return PROTOCOLS.get(p.protocol, p.protocol)
        if key == "nfproto":
            return "ipv6" if p.family == "ip6" else "ipv4"
        if key == "protocol":
            return p.family
        if key in ("iifname", "oifname"):
            face = p.in_face if key == "iifname" else p.out_face
            return decoded(face.to_bytes(16, "big").rstrip(b"\0"))
        return UNKNOWN

    def _fib(self, body: Json) -> Value:
        flags = one_or_more(member(body, "flags"))
        if member(body, "result") != "type" or len(flags) != 1 or flags[0] not in ("daddr", "saddr"):
            return UNKNOWN
        end = self.packet.dst if flags[0] == "daddr" else self.packet.src
        return self.context.type_of(address_text(end, self.packet.family)).lower() or UNKNOWN

    def matches(self, body: Json) -> bool | None:
        """Whether a match is true; None = not known."""
        left, op, right = member(body, "left"), member(body, "op"), member(body, "right")
        is_met: bool | None
        if left == {"ct": {"key": "status"}}:
            is_met = self._has_state(one_or_more(right))
        elif left == {"ct": {"key": "state"}}:
            is_met = self._has_state(right if isinstance(right, list) else _members(right))
        else:
            value = self.of(left)
            if value is None:
                return False
            if value is UNKNOWN or isinstance(value, RandomValue):
                return None
            if op in ("<", ">", "<=", ">="):
                limit = self.of(right)
                if not isinstance(value, int) or not isinstance(limit, int):
                    return None
                return {"<": value < limit, ">": value > limit, "<=": value <= limit, ">=": value >= limit}[op]
            is_met = self._fits(value, right)
        if is_met is None:
            return None
        return is_met == (op in ("==", "in"))

    def _has_state(self, states: list[Json]) -> bool:
        return any(str(w).upper() in self.context.states for w in states)

    def _fits(self, value: Value, right: Json) -> bool | None:
        """Whether a value is equal to, or contained in, the right side of a match; None = not known."""
        if isinstance(right, str) and right.startswith("@"):
            found = self.listed.sets.get((*self.scope, right[1:]))
            return None if found is None else self._among(value, found)
        if isinstance(right, list):
            return self._among(value, right)
        if isinstance(right, str | int):
            return _same(value, right)
        kind, body = only_member(right)
        if kind == "set":
            return self._among(value, one_or_more(body))
        if kind == "elem":
            return self._fits(value, member(body, "val"))
        if kind == "prefix":
            network = f"{member(body, 'addr')}/{member(body, 'len')}"
            return isinstance(value, str) and ip_address(value) in ip_network(network)
        if kind == "range":
            return _between(value, *as_pair(body))
        if kind == "concat":
            if not isinstance(value, tuple):
                return None
            parts = [self._fits(v, w) for v, w in zip(value, as_list(body), strict=True)]
            return False if False in parts else None if None in parts else True
        result = self.of(right)
        return None if result is UNKNOWN or isinstance(result, RandomValue) else _same(value, result)

    def _among(self, value: Value, members: Sequence[Json]) -> bool | None:
        results = [self._fits(value, w) for w in members]
        return True if True in results else None if None in results else False

    def look_up(self, key: Json, data: Json) -> list[tuple[Fraction, str, str]] | None:
        """(share, element as nft writes it, verdict) of a verdict map; None if the key is not known."""
        value = self.of(key)
        if value is UNKNOWN or _is_unread(data):
            return None
        if value is None:
            return []
        if isinstance(data, str) and data.startswith("@"):
            found = self.listed.maps.get((*self.scope, data[1:]))
            if found is None:
                return None
            choices = []
            for share, one in _choices(value):
                if not isinstance(one, tuple | str | int):
                    return None
                element = found.elements.get(tuple(str(v) for v in (one if isinstance(one, tuple) else (one,))))
                if element:
                    choices.append((share, element.text, element.verdict))
                elif not found.is_simple:
                    return None
            return choices
        pairs = [as_pair(m) for m in _members(data)]
        out = []
        for share, one in _choices(value):
            for element_key, verdict in pairs:
                if self._fits(one, element_key):
                    text = expression(verdict) if isinstance(verdict, dict) else str(verdict)
                    out.append((share, f"{operand(element_key)} : {text}", text))
                    break
        return out

    def _value_in(self, key: Value, data: Json) -> Value:
        """The value of a key in a map of values."""
        if _is_unread(data):
            return UNKNOWN
        if isinstance(data, str):
            return self._value_in_named(key, data)
        pairs = [as_pair(m) for m in _members(data)]
        found = []
        for share, one in _choices(key):
            found.append((share, next((self.of(value) for each, value in pairs if self._fits(one, each)), UNKNOWN)))
        return RandomValue(tuple(found)) if isinstance(key, RandomValue) else found[0][1]

    def _value_in_named(self, key: Value, data: str) -> Value:
        """The value of a key in a named map, or in an unnamed one that is given by the kernel's name for it."""
        listed = self.listed.maps.get((*self.scope, data.removeprefix("@")))
        if listed is None or not data.startswith("@") or not listed.is_simple:
            return UNKNOWN
        found: list[tuple[Fraction, Value]] = []
        for share, one in _choices(key):
            element = None
            if isinstance(one, tuple | str | int):
                element = listed.elements.get(tuple(str(v) for v in (one if isinstance(one, tuple) else (one,))))
            found.append((share, _value_of(element.verdict) if element else UNKNOWN))
        return RandomValue(tuple(found)) if isinstance(key, RandomValue) else found[0][1]


def _value_of(text: str) -> Value:
    """A value from its text in a map: an address, a number, or several with " . " between them."""
    parts = tuple(int(part) if part.isdecimal() else part for part in text.split(" . "))
    return parts if len(parts) > 1 else parts[0]


def _is_unread(data: Json) -> bool:
    """Whether the elements of an unnamed map are not known."""
    return isinstance(data, dict) and "unknown" in data


def _choices(value: Value) -> tuple[tuple[Fraction, Value], ...]:
    return value.choices if isinstance(value, RandomValue) else ((Fraction(1), value),)


def _bits(sign: str, sides: list[Value]) -> Value:
    if not all(isinstance(s, int) for s in sides):
        return UNKNOWN
    left, right = (s for s in sides if isinstance(s, int))
    if sign in ("&", "|", "^"):
        return {"&": left & right, "|": left | right, "^": left ^ right}[sign]
    if not 0 <= right < REGISTER_BITS:
        return UNKNOWN
    return left << right if sign == "<<" else left >> right


def _members(data: Json) -> list[Json]:
    """The elements of an unnamed set or map."""
    if isinstance(data, dict) and "set" in data:
        return one_or_more(data["set"])
    return [data]


def _same(value: Value, right: Value) -> bool:
    if isinstance(right, str) and right.endswith("*"):
        return str(value).startswith(right[:-1])
    return str(value) == str(right)


def _between(value: Value, low: Json, high: Json) -> bool | None:
    if isinstance(value, int) and isinstance(low, int) and isinstance(high, int):
        return low <= value <= high
    if isinstance(value, str) and isinstance(low, str) and isinstance(high, str):
        mine, ends = ip_address(value), (ip_address(low), ip_address(high))
        return int(ends[0]) <= int(mine) <= int(ends[1])
    return None
