# SPDX-License-Identifier: Apache-2.0
"""Evaluates values in nft's JSON for one packet: packet fields, constants, sets, maps, random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Any

from tracer.rules.match_context import MatchContext, address_text
from tracer.rules.nftables.format import expression, operand
from tracer.rules.nftables.json_parser import NftListing
from tracer.rules.packet_view import PacketView
from tracer.util.octets import decoded

PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp"}
MAX_CHOICES = 4096
"""Most values of one `numgen`. Its modulus may be any number of 32 bits, and each value is kept."""


class _Unknown:
    """A value that is not known for this packet."""


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class RandomValue:
    """One of several values, each with its share of all connections."""

    choices: tuple[tuple[Fraction, Any], ...]


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

    def of(self, value: Any) -> Any:
        """The value of an operand: text, a number, a tuple for a concatenation, a RandomValue, or UNKNOWN."""
        if isinstance(value, str | int):
            return value
        if not isinstance(value, dict) or len(value) != 1:
            return UNKNOWN
        ((kind, body),) = value.items()
        if kind == "payload":
            return self._payload(body)
        if kind == "meta":
            return self._meta(body["key"])
        if kind == "ct":
            return {"state": "new", "direction": "original"}.get(body["key"], UNKNOWN)
        if kind == "fib":
            return self._fib(body)
        if kind == "concat":
            parts = tuple(self.of(p) for p in body)
            return UNKNOWN if any(p is UNKNOWN or isinstance(p, RandomValue) for p in parts) else parts
        if kind in ("&", "|", "^", "<<", ">>"):
            return self._bits(kind, [self.of(side) for side in body])
        if kind == "numgen":
            offset, count = body.get("offset", 0), body["mod"]
            if count > MAX_CHOICES:
                return UNKNOWN
            return RandomValue(tuple((Fraction(1, count), n + offset) for n in range(count)))
        if kind == "map":
            return self._value_in(self.of(body["key"]), body["data"])
        return UNKNOWN

    def _payload(self, body: dict[str, Any]) -> Any:
        p, (protocol, name) = self.packet, (body.get("protocol"), body.get("field"))
        layer = PROTOCOLS.get(p.protocol, "")
        if protocol in ("ip", "ip6"):
            ends = {"saddr": p.src, "daddr": p.dst}
            if protocol == p.family and name in ends:
                return address_text(ends[name], p.family)
            return layer if name in ("protocol", "nexthdr") and protocol == p.family else UNKNOWN
        if protocol in ("th", layer):
            return {"dport": p.dport, "sport": p.sport if self.sport_known else UNKNOWN}.get(name or "", UNKNOWN)
        # The header of another protocol: the match is false, since nft adds a test of the protocol.
        return None if protocol in PROTOCOLS.values() else UNKNOWN

    def _meta(self, key: str) -> Any:
        p = self.packet
        if key in ("mark", "l4proto", "nfproto", "protocol"):
            family = "ipv6" if p.family == "ip6" else "ipv4"
            values = {
                "mark": self.mark,
                "l4proto": PROTOCOLS.get(p.protocol, p.protocol),
                "nfproto": family,
                "protocol": p.family,
            }
            return UNKNOWN if values[key] is None else values[key]
        if key in ("iifname", "oifname"):
            face = p.in_face if key == "iifname" else p.out_face
            return decoded(face.to_bytes(16, "big").rstrip(b"\0"))
        return UNKNOWN

    def _fib(self, body: dict[str, Any]) -> Any:
        flags = body["flags"] if isinstance(body["flags"], list) else [body["flags"]]
        if body["result"] != "type" or len(flags) != 1 or flags[0] not in ("daddr", "saddr"):
            return UNKNOWN
        end = self.packet.dst if flags[0] == "daddr" else self.packet.src
        return self.context.type_of(address_text(end, self.packet.family)).lower() or UNKNOWN

    def _bits(self, sign: str, sides: list[Any]) -> Any:
        if not all(isinstance(s, int) for s in sides):
            return UNKNOWN
        left, right = sides
        return {"&": left & right, "|": left | right, "^": left ^ right, "<<": left << right, ">>": left >> right}[sign]

    def matches(self, body: dict[str, Any]) -> bool | None:
        """Whether a match is true; None = not known."""
        left, op = body["left"], body["op"]
        if left == {"ct": {"key": "status"}}:
            states = body["right"] if isinstance(body["right"], list) else [body["right"]]
            is_met: bool | None = any(str(w).upper() in self.context.states for w in states)
        elif left == {"ct": {"key": "state"}}:
            states = body["right"] if isinstance(body["right"], list) else _members(body["right"])
            is_met = any(str(w).upper() in self.context.states for w in states)
        else:
            value = self.of(left)
            if value is None:
                return False
            if value is UNKNOWN or isinstance(value, RandomValue):
                return None
            if op in ("<", ">", "<=", ">="):
                right = self.of(body["right"])
                if not isinstance(value, int) or not isinstance(right, int):
                    return None
                return {"<": value < right, ">": value > right, "<=": value <= right, ">=": value >= right}[op]
            is_met = self._fits(value, body["right"])
        if is_met is None:
            return None
        return is_met == (op in ("==", "in"))

    def _fits(self, value: Any, right: Any) -> bool | None:
        """Whether a value is equal to, or contained in, the right side of a match; None = not known."""
        if isinstance(right, str) and right.startswith("@"):
            found = self.listed.sets.get((*self.scope, right[1:]))
            return None if found is None else self._among(value, found)
        if isinstance(right, list):
            return self._among(value, tuple(right))
        if isinstance(right, str | int):
            return _same(value, right)
        ((kind, body),) = right.items()
        if kind == "set":
            return self._among(value, tuple(body if isinstance(body, list) else [body]))
        if kind == "elem":
            return self._fits(value, body["val"])
        if kind == "prefix":
            return isinstance(value, str) and ip_address(value) in ip_network(f"{body['addr']}/{body['len']}")
        if kind == "range":
            return _between(value, body)
        if kind == "concat":
            parts = [self._fits(v, w) for v, w in zip(value, body, strict=True)] if isinstance(value, tuple) else [None]
            return False if False in parts else None if None in parts else True
        right = self.of(right)
        return None if right is UNKNOWN or isinstance(right, RandomValue) else _same(value, right)

    def _among(self, value: Any, members: tuple[Any, ...]) -> bool | None:
        results = [self._fits(value, w) for w in members]
        return True if True in results else None if None in results else False

    def look_up(self, key: Any, data: Any) -> list[tuple[Fraction, str, str]] | None:
        """(share, element as nft writes it, verdict) of a verdict map; None if the key is not known."""
        value = self.of(key)
        if value is UNKNOWN:
            return None
        if value is None:
            return []
        if isinstance(data, str) and data.startswith("@"):
            found = self.listed.maps.get((*self.scope, data[1:]))
            if found is None or not isinstance(value, tuple | str | int):
                return None
            parts = tuple(str(v) for v in (value if isinstance(value, tuple) else (value,)))
            element = found.elements.get(parts)
            if element:
                return [(Fraction(1), element.text, element.verdict)]
            simple = all("/" not in k and "-" not in k and k != "*" for e in found.elements for k in e)
            return [] if simple else None
        pairs = _members(data)
        choices = value.choices if isinstance(value, RandomValue) else ((Fraction(1), value),)
        out = []
        for share, one in choices:
            for member, verdict in pairs:
                if self._fits(one, member):
                    text = expression(verdict) if isinstance(verdict, dict) else str(verdict)
                    out.append((share, f"{operand(member)} : {text}", text))
                    break
        return out

    def _value_in(self, key: Any, data: Any) -> Any:
        """The value of a key in a map of values."""
        pairs = _members(data)
        choices = key.choices if isinstance(key, RandomValue) else ((Fraction(1), key),)
        found = []
        for share, one in choices:
            result = next((self.of(value) for member, value in pairs if self._fits(one, member)), UNKNOWN)
            found.append((share, result))
        return RandomValue(tuple(found)) if isinstance(key, RandomValue) else found[0][1]


def _members(data: Any) -> list[Any]:
    """The elements of an unnamed set or map."""
    if isinstance(data, dict) and "set" in data:
        return data["set"] if isinstance(data["set"], list) else [data["set"]]
    return [data]


def _same(value: Any, right: Any) -> bool:
    if isinstance(right, str) and right.endswith("*"):
        return str(value).startswith(right[:-1])
    return str(value) == str(right)


def _between(value: Any, body: list[Any]) -> bool | None:
    low, high = body
    if isinstance(value, int) and isinstance(low, int):
        return bool(low <= value <= high)
    if isinstance(value, str) and isinstance(low, str):
        mine, ends = ip_address(value), (ip_address(low), ip_address(high))
        return int(ends[0]) <= int(mine) <= int(ends[1])
    return None
