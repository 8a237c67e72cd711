# SPDX-License-Identifier: Apache-2.0
"""The expressions of a rule from netlink, as `nft -j` writes them.

The kernel has small steps that load a value into a register, change it and compare it. The decoder keeps what each register
holds and joins the steps to matches and statements. What it does not know becomes {"unknown": ...}: an expression, or an
attribute of one, that this program does not know, and each value that may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tracer.node.nfnetlink import attributes, items, number, text
from tracer.rules.nftables import data_types
from tracer.rules.nftables.data_types import (
    BIT_TYPES,
    BOOLEAN,
    CT_DIRECTION,
    CT_STATE,
    CT_STATUS,
    ETHERTYPE,
    FIB_TYPE,
    HOST_NUMBER,
    ICMP_CODE,
    ICMP_TYPE,
    ICMPV6_CODE,
    ICMPV6_TYPE,
    ICMPX_CODE,
    IFNAME,
    IPV4,
    IPV6,
    LINK_ADDRESS,
    MARK,
    NFPROTO,
    NUMBER,
    PKTTYPE,
    PORT,
    PROTOCOL,
    TCP_FLAG,
)
from tracer.rules.nftables.netlink_sets import SetDefinition, UnreadElements, verdict
from tracer.util.json_value import Json, JsonObject

FindSet = Callable[[str], SetDefinition | None]
"""Gives the set with a name in the rule's table."""
ReadElements = Callable[[str], Sequence[bytes]]
"""Gives the elements of a set in the rule's table (attributes NFTA_SET_ELEM_*). Raises UnreadElements."""
_KNOWN_ATTRIBUTES = {
    "immediate": 2, "bitwise": 7, "byteorder": 5, "cmp": 3, "range": 4, "lookup": 5, "dynset": 10, "payload": 8, "meta": 3,
    "rt": 2, "ct": 4, "limit": 6, "counter": 3, "last": 3, "log": 6, "queue": 4, "quota": 5, "reject": 2, "nat": 7, "masq": 3,
    "redir": 3, "numgen": 4, "hash": 9, "fib": 3, "objref": 5, "notrack": 0, "match": 3, "target": 3, "dup": 2, "tproxy": 3,
}  # fmt: skip
"""Last attribute of each expression that is decoded. One with a later attribute may mean something else."""
_SLOTS = 16
_VERDICT_REGISTER = 0
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=")
_LAYER4 = {1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 58: "icmpv6", 132: "sctp", 136: "udplite"}
_ETHERNET = 1
"""ARPHRD_ETHER."""
_ETHERTYPES = {0x0800: "ip", 0x86DD: "ip6"}
_META: dict[int, tuple[str, int]] = {
    0: ("length", HOST_NUMBER), 1: ("protocol", ETHERTYPE), 2: ("priority", HOST_NUMBER), 3: ("mark", MARK),
    4: ("iif", HOST_NUMBER),
    5: ("oif", HOST_NUMBER), 6: ("iifname", IFNAME), 7: ("oifname", IFNAME), 8: ("iiftype", HOST_NUMBER),
    9: ("oiftype", HOST_NUMBER), 10: ("skuid", HOST_NUMBER), 11: ("skgid", HOST_NUMBER), 12: ("nftrace", NUMBER),
    13: ("rtclassid", HOST_NUMBER), 15: ("nfproto", NFPROTO), 16: ("l4proto", PROTOCOL), 17: ("ibrname", IFNAME),
    18: ("obrname", IFNAME), 19: ("pkttype", PKTTYPE), 20: ("cpu", HOST_NUMBER), 21: ("iifgroup", HOST_NUMBER),
    22: ("oifgroup", HOST_NUMBER), 23: ("cgroup", HOST_NUMBER), 24: ("random", NUMBER), 25: ("ipsec", BOOLEAN),
    26: ("iifkind", IFNAME), 27: ("oifkind", IFNAME), 33: ("sdif", HOST_NUMBER), 34: ("sdifname", IFNAME),
}  # fmt: skip
"""Name and type of the values of `meta`, by key."""
_META_SIZES = {1: 2, 12: 1, 15: 1, 16: 1, 19: 1, 8: 2, 9: 2, 25: 1, **dict.fromkeys((6, 7, 17, 18, 26, 27, 34), 16)}
_CT: dict[int, tuple[str, int, int]] = {
    0: ("state", CT_STATE, 4), 1: ("direction", CT_DIRECTION, 1), 2: ("status", CT_STATUS, 4), 3: ("mark", MARK, 4),
    5: ("expiration", HOST_NUMBER, 4), 6: ("helper", IFNAME, 16), 7: ("l3proto", NFPROTO, 1), 10: ("protocol", PROTOCOL, 1),
    11: ("proto-src", PORT, 2), 12: ("proto-dst", PORT, 2), 14: ("packets", HOST_NUMBER, 8), 15: ("bytes", HOST_NUMBER, 8),
    16: ("avgpkt", HOST_NUMBER, 8), 17: ("zone", HOST_NUMBER, 2), 19: ("ip saddr", IPV4, 4), 20: ("ip daddr", IPV4, 4),
    21: ("ip6 saddr", IPV6, 16), 22: ("ip6 daddr", IPV6, 16), 23: ("id", HOST_NUMBER, 4),
}  # fmt: skip
"""Name, type and size of the values of `ct`, by key."""
_DIRECTIONS = ("original", "reply")
_FIELDS: dict[str, tuple[tuple[int, int, str, int], ...]] = {
    "ether": ((0, 6, "daddr", LINK_ADDRESS), (6, 6, "saddr", LINK_ADDRESS), (12, 2, "type", ETHERTYPE)),
    "ip": ((2, 2, "length", NUMBER), (4, 2, "id", NUMBER), (8, 1, "ttl", NUMBER), (9, 1, "protocol", PROTOCOL),
           (10, 2, "checksum", NUMBER), (12, 4, "saddr", IPV4), (16, 4, "daddr", IPV4)),
    "ip6": ((4, 2, "length", NUMBER), (6, 1, "nexthdr", PROTOCOL), (7, 1, "hoplimit", NUMBER), (8, 16, "saddr", IPV6),
            (24, 16, "daddr", IPV6)),
    "tcp": ((0, 2, "sport", PORT), (2, 2, "dport", PORT), (4, 4, "sequence", NUMBER), (8, 4, "ackseq", NUMBER),
            (13, 1, "flags", TCP_FLAG), (14, 2, "window", NUMBER), (16, 2, "checksum", NUMBER), (18, 2, "urgptr", NUMBER)),
    "udp": ((0, 2, "sport", PORT), (2, 2, "dport", PORT), (4, 2, "length", NUMBER), (6, 2, "checksum", NUMBER)),
    "icmp": ((0, 1, "type", ICMP_TYPE), (1, 1, "code", ICMP_CODE), (2, 2, "checksum", NUMBER), (4, 2, "id", NUMBER),
             (6, 2, "sequence", NUMBER)),
    "icmpv6": ((0, 1, "type", ICMPV6_TYPE), (1, 1, "code", ICMPV6_CODE), (2, 2, "checksum", NUMBER), (4, 2, "id", NUMBER),
               (6, 2, "sequence", NUMBER)),
    **dict.fromkeys(("th", "sctp", "dccp", "udplite"), ((0, 2, "sport", PORT), (2, 2, "dport", PORT))),
}  # fmt: skip
"""Header fields: offset and size in bytes, name, type."""
_BASES = ("ll", "nh", "th", "ih")
_NAT_FLAGS = ((0x4, "random"), (0x8, "persistent"), (0x10, "fully-random"))
_NAT_KNOWN = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20
"""Flags of a translation: a given address (0x1), a given port (0x2), those of _NAT_FLAGS, given by hand (0x20)."""
_FAMILIES = {2: "ip", 10: "ip6"}
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit")
_OBJECTS = {1: "counter", 2: "quota", 3: "ct helper", 4: "limit", 5: "ct count", 7: "ct timeout", 9: "ct expectation",
            10: "synproxy"}  # fmt: skip
_SECONDS = {1: "second", 60: "minute", 3600: "hour", 86400: "day", 604800: "week"}
_FIB_RESULTS = {1: "oif", 2: "oifname", 3: "type"}
_FIB_FLAGS = ((1, "saddr"), (2, "daddr"), (4, "mark"), (8, "iif"), (16, "oif"))


def unknown(what: str) -> JsonObject:
    """A value or an expression that could not be decoded."""
    return {"unknown": what}


@dataclass(frozen=True)
class _Loaded:
    """What was loaded into a register.

    Attributes:
        json: As nft writes it.
        kind: Its type.
        size: Its size, bytes.
        raw: Its bytes, if it is a constant.
        fields: (text, type, size) of each field where several header fields that follow each other were loaded at once.
        whole: Size of the field of which only the beginning was loaded, 0 = all of it.
        mask: The bits that a mask has left, None = all.
        masked: What was masked.
        layer: The layer of a header field ("nh", "th"), "" = none.
    """

    json: Json
    kind: int
    size: int
    raw: bytes | None = None
    fields: tuple[tuple[Json, int, int], ...] = ()
    whole: int = 0
    mask: bytes | None = None
    masked: _Loaded | None = None
    layer: str = ""


class RuleDecoder:
    """Decodes the expressions of one rule.

    Args:
        family: Family of the rule's table.
        find_set: Gives the definitions of sets.
        read_elements: Gives the elements of unnamed sets. None = an unnamed set is given by the kernel's name for it.
    """

    def __init__(self, family: str, find_set: FindSet, read_elements: ReadElements | None) -> None:
        self._find_set, self._read_elements = find_set, read_elements
        self._slots: dict[int, _Loaded] = {}
        self._out: list[JsonObject] = []
        self._family = family
        self._network = family if family in ("ip", "ip6") else ""
        self._transport = ""
        self._tests: dict[str, JsonObject] = {}
        """The test of the protocol of a layer that nft does not show where a field of this protocol follows."""

    def decode(self, raw: bytes) -> tuple[JsonObject, ...]:
        """The expressions of a rule from NFTA_RULE_EXPRESSIONS."""
        for _, each in items(raw):
            expression = attributes(each)
            name = text(expression.get(1))
            data = attributes(expression.get(2, b""))
            step = _STEPS.get(name)
            if step is None or max(data, default=0) > _KNOWN_ATTRIBUTES[name]:
                self._give_up(name)
            else:
                step(self, data)
        return tuple(self._out)

    def _give_up(self, name: str) -> None:
        """An expression of unknown meaning: it may have changed any register."""
        self._out.append(unknown(name))
        self._slots = {slot: _Loaded(unknown("register"), NUMBER, 4) for slot in range(_SLOTS)}

    # Registers

    def _store(self, register: int, loaded: _Loaded) -> None:
        first = _slot(register)
        if not 0 <= first < _SLOTS or not 0 <= loaded.size <= 4 * _SLOTS:
            return self._give_up("register")
        for slot in range(first, first + max(1, (loaded.size + 3) // 4)):
            self._slots.pop(slot, None)
        # What began before and reaches into this register is overwritten in part.
        for slot, before in list(self._slots.items()):
            if slot < first < slot + (before.size + 3) // 4:
                del self._slots[slot]
        self._slots[first] = loaded
        return None

    def _at(self, register: int) -> _Loaded:
        return self._slots.get(_slot(register)) or _Loaded(unknown("register"), NUMBER, 4)

    def _span(self, register: int, size: int) -> list[_Loaded]:
        """What the registers hold from this one on, for `size` bytes; [] if that is not known."""
        if size > 4 * _SLOTS:
            return []
        found, slot, end = list[_Loaded](), _slot(register), _slot(register) + (size + 3) // 4
        while slot < end:
            loaded = self._slots.get(slot)
            if loaded is None:
                return []
            if loaded.fields:
                found += [_Loaded(json, kind, length, layer=loaded.layer) for json, kind, length in loaded.fields]
            else:
                found.append(loaded)
            slot += max(1, (loaded.size + 3) // 4)
        return found

    def _operand(self, register: int, size: int) -> tuple[Json, list[int]]:
        """A key in the registers as nft writes it, and the types of its parts."""
        parts = self._span(register, size)
        if not parts:
            return unknown("register"), []
        for part in parts:
            self._use(part)
        return data_types.concatenation(_json_of(part) for part in parts), [part.kind for part in parts]

    def _use(self, loaded: _Loaded) -> None:
        """Removes the test of a protocol that this header field implies."""
        layers = (loaded.layer, "nh") if self._transport in ("icmp", "icmpv6") and loaded.layer == "th" else (loaded.layer,)
        for layer in layers:
            test = self._tests.pop(layer, None)
            if test is not None:
                self._out = [each for each in self._out if each is not test]

    # Steps that load or change a value

    def _payload(self, data: Mapping[int, bytes]) -> None:
        base, offset, size = (number(data.get(kind)) for kind in (2, 3, 4))
        layer = _BASES[base] if base < len(_BASES) else "?"
        found = self._fields(layer, offset, size)
        if 5 in data:
            value, _ = self._operand(number(data[5]), size)
            if found.fields:
                value = unknown("several fields at once")
            self._out.append({"mangle": {"key": found.json, "value": self._typed(number(data[5]), size, found.kind, value)}})
            return
        self._store(number(data.get(1)), found)

    def _fields(self, layer: str, offset: int, size: int) -> _Loaded:
        """The header fields at this place."""
        protocol = {"ll": "ether", "nh": self._network, "th": self._transport or "th"}.get(layer, "")
        fields = _FIELDS.get(protocol, ())
        at, parts = offset, list[tuple[Json, int, int]]()
        named = layer if protocol not in ("th", self._family) and (layer != "ll" or self._family == "inet") else ""
        while at < offset + size:
            found = next((f for f in fields if f[0] == at), None)
            if found is None:
                break
            _, length, name, kind = found
            json: Json = {"payload": {"protocol": protocol, "field": name}}
            if at + length > offset + size:
                if parts or kind not in (IPV4, IPV6):
                    break
                return _Loaded(json, kind, size, whole=length, layer=named)
            parts.append((json, kind, length))
            at += length
        if at != offset + size or not parts:
            return _Loaded({"payload": {"base": layer, "offset": 8 * offset, "len": 8 * size}}, NUMBER, size)
        if len(parts) == 1:
            return _Loaded(*parts[0], layer=named)
        return _Loaded(unknown("several fields at once"), NUMBER, size, fields=tuple(parts), layer=named)

    def _meta(self, data: Mapping[int, bytes]) -> None:
        key = number(data.get(2))
        name, kind = _META.get(key, (f"key {key}", NUMBER))
        json: JsonObject = {"meta": {"key": name}} if key in _META else unknown(f"meta {name}")
        size = _META_SIZES.get(key, 4)
        if 3 in data:
            value, _ = self._operand(number(data[3]), size)
            self._out.append({"mangle": {"key": json, "value": self._typed(number(data[3]), size, kind, value)}})
        else:
            self._store(number(data.get(1)), _Loaded(json, kind, size))

    def _ct(self, data: Mapping[int, bytes]) -> None:
        key = number(data.get(2))
        name, kind, size = _CT.get(key, (f"key {key}", NUMBER, 16))
        inner: JsonObject = {"key": name}
        direction = number(data.get(3))
        if 3 in data:
            inner["dir"] = _DIRECTIONS[direction] if direction < 2 else "unknown"
        json: JsonObject = {"ct": inner} if key in _CT and direction < 2 else unknown(f"ct {name}")
        if 4 in data:
            value, _ = self._operand(number(data[4]), size)
            self._out.append({"mangle": {"key": json, "value": self._typed(number(data[4]), size, kind, value)}})
        else:
            self._store(number(data.get(1)), _Loaded(json, kind, size))

    def _rt(self, data: Mapping[int, bytes]) -> None:
        self._store(number(data.get(1)), _Loaded(unknown("rt"), NUMBER, 16))

    def _numgen(self, data: Mapping[int, bytes]) -> None:
        mode = {0: "inc", 1: "random"}.get(number(data.get(3)))
        body: JsonObject = {"mode": mode, "mod": number(data.get(2)), "offset": number(data.get(4))}
        self._store(number(data.get(1)), _Loaded({"numgen": body} if mode else unknown("numgen"), HOST_NUMBER, 4))

    def _hash(self, data: Mapping[int, bytes]) -> None:
        body: JsonObject = {"mod": number(data.get(4))}
        kind = "symhash" if number(data.get(7)) == 1 else "jhash"
        if kind == "jhash":
            body["expr"], _ = self._operand(number(data.get(1)), number(data.get(3)))
            body |= {"seed": number(data[5])} if 5 in data else {}
        body |= {"offset": number(data[6])} if number(data.get(6)) else {}
        self._store(number(data.get(2)), _Loaded({kind: body}, HOST_NUMBER, 4))

    def _fib(self, data: Mapping[int, bytes]) -> None:
        result, flags = number(data.get(2)), number(data.get(3))
        names: list[Json] = [name for bit, name in _FIB_FLAGS if flags & bit]
        kind, size = {1: (HOST_NUMBER, 4), 2: (IFNAME, 16), 3: (FIB_TYPE, 4)}.get(result, (NUMBER, 4))
        if flags & ~0x3F or result not in _FIB_RESULTS:
            json = unknown("fib")
        else:
            json = {"fib": {"result": _FIB_RESULTS[result], "flags": names}}
        if flags & 0x20:
            kind, size = BOOLEAN, 1
        self._store(number(data.get(1)), _Loaded(json, kind, size))

    def _immediate(self, data: Mapping[int, bytes]) -> None:
        value = attributes(data.get(2, b""))
        if number(data.get(1)) == _VERDICT_REGISTER:
            self._out.append(verdict(value.get(2, b"")))
        else:
            raw = value.get(1, b"")
            self._store(number(data.get(1)), _Loaded(unknown("constant"), NUMBER, len(raw), raw=raw))

    def _bitwise(self, data: Mapping[int, bytes]) -> None:
        source, size, operation = self._at(number(data.get(1))), number(data.get(3)), number(data.get(6))
        destination = number(data.get(2))
        if operation in (1, 2):
            sign = "<<" if operation == 1 else ">>"
            shift = int.from_bytes(attributes(data.get(7, b"")).get(1, b""), "little")
            self._store(destination, _Loaded({sign: [_json_of(source), shift]}, source.kind, size))
            return
        mask, xor = (attributes(data.get(kind, b"")).get(1, b"") for kind in (4, 5))
        if operation or not len(mask) == len(xor) == size or source.raw is not None or source.fields or source.size != size:
            self._store(destination, _Loaded(unknown("bitwise"), NUMBER, size))
        elif not any(xor) and source.mask is None:
            masked = replace(source, json=_masked(source, mask), mask=mask, masked=source)
            self._store(destination, masked)
        else:
            self._store(destination, replace(source, json=_bits(source, mask, xor), mask=None, masked=None, whole=0))

    def _byteorder(self, data: Mapping[int, bytes]) -> None:
        source = self._at(number(data.get(1)))
        kind = NUMBER if number(data.get(3)) == 1 else HOST_NUMBER
        self._store(number(data.get(2)), replace(source, kind=kind, size=number(data.get(4))))

    # Matches

    def _cmp(self, data: Mapping[int, bytes]) -> None:
        raw = attributes(data.get(3, b"")).get(1, b"")
        operation = number(data.get(2))
        operator = _OPERATORS[operation] if operation < len(_OPERATORS) else "?"
        loaded = self._at(number(data.get(1)))
        parts = self._span(number(data.get(1)), len(raw))
        self._use(loaded)
        if operator == "?":
            self._out.append(_match(unknown("comparison"), "==", unknown("constant")))
        elif loaded.fields and operator == "==" and sum(size for *_, size in loaded.fields) == len(raw):
            at = 0
            for json, kind, size in loaded.fields:
                self._out.append(_match(json, "==", data_types.value(kind, raw[at : at + size])))
                at += size
        elif len(parts) > 1:
            self._out.append(self._concatenated(parts, operator, raw))
        else:
            self._compare(loaded, operator, raw)

    def _concatenated(self, parts: list[_Loaded], operator: str, raw: bytes) -> JsonObject:
        split = data_types.split([p.kind for p in parts], raw, [p.size for p in parts]) or []
        left = data_types.concatenation(_json_of(p) for p in parts)
        return _match(left, operator, data_types.concatenation(data_types.value(*each) for each in split))

    def _compare(self, loaded: _Loaded, operator: str, raw: bytes) -> None:
        """One comparison with a constant."""
        if has_unknown([loaded.json]):
            self._out.append(_match(loaded.json, operator, unknown("constant")))
            return
        equal = operator in ("==", "!=")
        if loaded.whole and loaded.mask is None and equal and len(raw) == loaded.size:
            right: Json = {
                "prefix": {"addr": data_types.value(loaded.kind, raw.ljust(loaded.whole, b"\0")), "len": 8 * len(raw)}
            }
            self._out.append(_match(loaded.json, operator, right))
            return
        if loaded.mask is not None and loaded.masked is not None and equal and not loaded.whole:
            prefix = _prefix_length(loaded.mask)
            if loaded.kind in (IPV4, IPV6) and prefix is not None:
                right = {"prefix": {"addr": data_types.value(loaded.kind, raw), "len": prefix}}
                self._out.append(_match(loaded.masked.json, operator, right))
                return
            if loaded.kind in BIT_TYPES and operator == "!=" and not any(raw):
                self._out.append(_match(loaded.masked.json, "in", data_types.value(loaded.kind, loaded.mask)))
                return
        if loaded.whole or (loaded.kind != IFNAME and len(raw) > loaded.size):
            self._out.append(_match(loaded.json, operator, unknown("constant")))
            return
        right = data_types.value(loaded.kind, raw)
        before = self._out[-1].get("match") if self._out else None
        if operator == "<=" and isinstance(before, dict) and before.get("op") == ">=" and before.get("left") == loaded.json:
            self._out[-1] = _match(loaded.json, "==", {"range": [before["right"], right]})
            return
        match = _match(loaded.json, operator, right)
        self._out.append(match)
        if operator == "==" and loaded.mask is None:
            self._learn(loaded, raw, match)

    def _learn(self, loaded: _Loaded, raw: bytes, match: JsonObject) -> None:
        """Keeps which protocol a match says the packet has."""
        value = data_types.as_integer(loaded.kind, raw)
        if loaded.json in ({"meta": {"key": "l4proto"}}, _HEADERS["ip"], _HEADERS["ip6"]):
            self._transport = _LAYER4.get(value, "")
            if self._transport and loaded.json == {"meta": {"key": "l4proto"}}:
                self._tests["th"] = match
        elif loaded.json == {"meta": {"key": "nfproto"}} and self._family == "inet":
            self._network = _FAMILIES.get(value, "")
            self._tests["nh"] = match
        elif loaded.json == {"meta": {"key": "iiftype"}} and value == _ETHERNET:
            self._tests["ll"] = match
        elif loaded.json in ({"meta": {"key": "protocol"}}, _HEADERS["ether"]) and self._family in ("bridge", "netdev", "inet"):
            self._network = _ETHERTYPES.get(value, "")
            if self._network:
                self._tests["nh"] = match

    def _range(self, data: Mapping[int, bytes]) -> None:
        loaded, operation = self._at(number(data.get(1))), number(data.get(2))
        ends = [attributes(data.get(kind, b"")).get(1, b"") for kind in (3, 4)]
        self._use(loaded)
        right: Json = {"range": [data_types.value(loaded.kind, end) for end in ends]}
        if loaded.fields or loaded.whole or operation > 1:
            right = unknown("range")
        self._out.append(_match(loaded.json, "!=" if operation == 1 else "==", right))

    def _lookup(self, data: Mapping[int, bytes]) -> None:
        name, flags = text(data.get(1)), number(data.get(5))
        found = self._find_set(name)
        key, kinds = self._operand(number(data.get(2)), found.key_length) if found else (unknown("register"), [])
        given = self._data(name, found, kinds)
        if flags & ~1:
            given = unknown("lookup")
        if 3 not in data:
            self._out.append(_match(key, "!=" if flags & 1 else "==", given))
        elif number(data[3]) == _VERDICT_REGISTER:
            self._out.append({"vmap": {"key": key, "data": given}})
        elif found:
            types = found.data_types
            size = found.data_length
            self._store(
                number(data[3]), _Loaded({"map": {"key": key, "data": given}}, types[0] if len(types) == 1 else NUMBER, size)
            )
        else:
            self._give_up("lookup")

    def _data(self, name: str, found: SetDefinition | None, kinds: list[int]) -> Json:
        """A set or map as nft writes it in a rule: its name, or the elements of an unnamed one."""
        if found is None:
            return unknown(f"set {name}")
        if not found.is_anonymous or self._read_elements is None:
            return f"@{name}"
        try:
            return {"set": found.elements(self._read_elements(name), kinds)}
        except UnreadElements as e:
            return unknown(f"elements ({e})")

    # Statements

    def _typed(self, register: int, size: int, kind: int, otherwise: Json) -> Json:
        """The value of a register that is written to a field of this type: a constant gets the type of the field."""
        loaded = self._at(register)
        if loaded.raw is None:
            return otherwise
        return data_types.value(kind, loaded.raw[:size] if len(loaded.raw) > size else loaded.raw)

    def _dynset(self, data: Mapping[int, bytes]) -> None:
        name = text(data.get(1))
        found = self._find_set(name)
        operation = {0: "add", 1: "update", 2: "delete"}.get(number(data.get(3)))
        if operation is None or found is None or number(data.get(9)) & 1:
            self._out.append(unknown("dynset"))
            return
        key, _ = self._operand(number(data.get(4)), found.key_length)
        if number(data.get(6)) not in (0, found.timeout):
            key = {"elem": {"val": key, "timeout": number(data.get(6)) // 1000}}
        body: JsonObject = {"op": operation, "elem": key, "set": f"@{name}"}
        if 5 in data:
            value, _ = self._operand(number(data[5]), found.data_length)
            self._out.append({"map": {"op": operation, "elem": key, "data": value, "map": f"@{name}"}})
            return
        inner = [data[7]] if 7 in data else [each for _, each in items(data.get(10, b""))]
        names = [text(attributes(each).get(1)) for each in inner]
        # `add @set { ip saddr limit rate 5/second }` goes on or not by what the inner expression says.
        if any(each not in ("counter", "last") for each in names):
            self._out.append(unknown("dynset with " + ", ".join(names)))
            return
        if names:
            body["stmt"] = [{each: None} for each in names]
        self._out.append({"set": body})

    def _nat(self, data: Mapping[int, bytes]) -> None:
        kind = {0: "snat", 1: "dnat"}.get(number(data.get(1)))
        family = number(data.get(2))
        body: JsonObject = {}
        flags = number(data.get(7))
        if kind is None or (family not in _FAMILIES and 3 in data) or flags & ~_NAT_KNOWN:
            self._out.append(unknown("nat"))
            return
        type_of = IPV4 if family == 2 else IPV6
        address = self._at(number(data.get(3))) if 3 in data else None
        if address is not None and (self._family == "inet" or address.raw is None):
            body["family"] = _FAMILIES[family]
        if address is not None:
            size = data_types.SIZES[type_of]
            low = self._typed(number(data[3]), size, type_of, _json_of(address))
            high = self._typed(number(data[4]), size, type_of, low) if 4 in data else low
            body["addr"] = low if low == high else {"range": [low, high]}
            if data.get(4, data[3]) != data[3] and address.raw is None:
                body["addr"] = unknown("range of addresses")
        # A map of addresses and ports gives both: its value is one concatenation.
        if 5 in data and not (address is not None and address.raw is None and self._is_inside(number(data[5]), address)):
            low = self._typed(number(data[5]), 2, PORT, _json_of(self._at(number(data[5]))))
            high = self._typed(number(data[6]), 2, PORT, low) if 6 in data else low
            body["port"] = low if low == high else {"range": [low, high]}
        self._out.append({kind: self._with_flags(body, flags)})

    def _is_inside(self, register: int, loaded: _Loaded) -> bool:
        """Whether a register is a part of this value, as those of a map's value are."""
        first = next((slot for slot, each in self._slots.items() if each is loaded), -1)
        return first < _slot(register) < first + (loaded.size + 3) // 4

    def _with_flags(self, body: JsonObject, flags: int) -> JsonObject | None:
        names: list[Json] = [name for bit, name in _NAT_FLAGS if flags & bit]
        if names:
            body["flags"] = names[0] if len(names) == 1 else names
        return body or None

    def _masq(self, data: Mapping[int, bytes]) -> None:
        self._translation("masquerade", number(data.get(1)), data.get(2), data.get(3))

    def _redir(self, data: Mapping[int, bytes]) -> None:
        self._translation("redirect", number(data.get(3)), data.get(1), data.get(2))

    def _translation(self, name: str, flags: int, first: bytes | None, last: bytes | None) -> None:
        if flags & ~_NAT_KNOWN:
            self._out.append(unknown(name))
            return
        body: JsonObject = {}
        if first is not None:
            low = self._typed(number(first), 2, PORT, _json_of(self._at(number(first))))
            high = self._typed(number(last), 2, PORT, low) if last is not None else low
            body["port"] = low if low == high else {"range": [low, high]}
        self._out.append({name: self._with_flags(body, flags)})

    def _reject(self, data: Mapping[int, bytes]) -> None:
        kind, code = number(data.get(1)), number(data.get(2))
        if kind == 1:
            self._out.append({"reject": {"type": "tcp reset"}})
            return
        is_ip6 = self._network == "ip6"
        type_of = {0: ICMPV6_CODE if is_ip6 else ICMP_CODE, 2: ICMPX_CODE}.get(kind)
        if type_of is None:
            self._out.append(unknown("reject"))
            return
        name = "icmpx" if kind == 2 else "icmpv6" if is_ip6 else "icmp"
        self._out.append({"reject": {"type": name, "expr": data_types.value(type_of, bytes([code & 0xFF]))}})

    def _counter(self, data: Mapping[int, bytes]) -> None:
        self._out.append({"counter": {"packets": number(data.get(2)), "bytes": number(data.get(1))}})

    def _last(self, data: Mapping[int, bytes]) -> None:
        self._out.append({"last": None})

    def _limit(self, data: Mapping[int, bytes]) -> None:
        rate, unit = number(data.get(1)), number(data.get(2))
        is_over, is_bytes = number(data.get(5)) & 1, number(data.get(4)) == 1
        body: JsonObject = {"rate": rate, "burst": number(data.get(3)), "per": _SECONDS.get(unit, f"{unit} seconds")}
        body |= {"inv": True} if is_over else {}
        if is_bytes:
            (body["rate"], body["rate_unit"]), (body["burst"], body["burst_unit"]) = _bytes(rate), _bytes(number(data.get(3)))
        self._out.append({"limit": body})

    def _log(self, data: Mapping[int, bytes]) -> None:
        body: JsonObject = {}
        if 2 in data:
            body["prefix"] = text(data[2])
        if 5 in data:
            level = number(data[5])
            body |= {"level": _LEVELS[level] if level < len(_LEVELS) else str(level)} if level != 4 else {}
        for kind, name in ((1, "group"), (3, "snaplen"), (4, "queue-threshold")):
            if kind in data:
                body[name] = number(data[kind])
        self._out.append({"log": body or None})

    def _queue(self, data: Mapping[int, bytes]) -> None:
        first, total, flags = number(data.get(1)), number(data.get(2)) or 1, number(data.get(3))
        body: JsonObject = {"num": first if total == 1 else {"range": [first, first + total - 1]}}
        if 4 in data:
            body = {"num": self._at(number(data[4])).json}
        names: list[Json] = [name for bit, name in ((1, "bypass"), (2, "fanout")) if flags & bit]
        if names:
            body["flags"] = names[0] if len(names) == 1 else names
        self._out.append({"queue": body} if not flags & ~3 else unknown("queue"))

    def _quota(self, data: Mapping[int, bytes]) -> None:
        body: JsonObject = {"val": number(data.get(1)), "val_unit": "bytes", "used": number(data.get(4)), "used_unit": "bytes"}
        self._out.append({"quota": {**body, "inv": True} if number(data.get(2)) & 1 else body})

    def _objref(self, data: Mapping[int, bytes]) -> None:
        name = _OBJECTS.get(number(data.get(1))) if 2 in data else None
        self._out.append({name: text(data[2])} if name else unknown("objref"))

    def _notrack(self, data: Mapping[int, bytes]) -> None:
        self._out.append({"notrack": None})

    def _dup(self, data: Mapping[int, bytes]) -> None:
        address = self._at(number(data.get(1)))
        size = address.size if address.raw is not None else 0
        kind = {4: IPV4, 16: IPV6}.get(size)
        if kind is None or 2 in data:
            self._out.append(unknown("dup"))
        else:
            self._out.append({"dup": {"addr": data_types.value(kind, address.raw or b"")}})

    def _tproxy(self, data: Mapping[int, bytes]) -> None:
        body: JsonObject = {}
        for attribute, name, kind, size in ((2, "addr", IPV6 if number(data.get(1)) == 10 else IPV4, 0), (3, "port", PORT, 2)):
            if attribute in data:
                register = number(data[attribute])
                body[name] = self._typed(register, size or data_types.SIZES[kind], kind, _json_of(self._at(register)))
        self._out.append({"tproxy": body})

    def _match_of_iptables(self, data: Mapping[int, bytes]) -> None:
        self._out.append({"xt": {"type": "match", "name": text(data.get(1))}})

    def _target_of_iptables(self, data: Mapping[int, bytes]) -> None:
        self._out.append({"xt": {"type": "target", "name": text(data.get(1))}})


_STEPS: dict[str, Callable[[RuleDecoder, Mapping[int, bytes]], None]] = {
    "immediate": RuleDecoder._immediate, "bitwise": RuleDecoder._bitwise, "byteorder": RuleDecoder._byteorder,
    "cmp": RuleDecoder._cmp, "range": RuleDecoder._range, "lookup": RuleDecoder._lookup, "dynset": RuleDecoder._dynset,
    "payload": RuleDecoder._payload, "meta": RuleDecoder._meta, "rt": RuleDecoder._rt, "ct": RuleDecoder._ct,
    "limit": RuleDecoder._limit, "counter": RuleDecoder._counter, "last": RuleDecoder._last, "log": RuleDecoder._log,
    "queue": RuleDecoder._queue, "quota": RuleDecoder._quota, "reject": RuleDecoder._reject, "nat": RuleDecoder._nat,
    "masq": RuleDecoder._masq, "redir": RuleDecoder._redir, "numgen": RuleDecoder._numgen, "hash": RuleDecoder._hash,
    "fib": RuleDecoder._fib, "objref": RuleDecoder._objref, "notrack": RuleDecoder._notrack,
    "dup": RuleDecoder._dup, "tproxy": RuleDecoder._tproxy,
    "match": RuleDecoder._match_of_iptables, "target": RuleDecoder._target_of_iptables,
}  # fmt: skip
_HEADERS: dict[str, Json] = {
    "ip": {"payload": {"protocol": "ip", "field": "protocol"}},
    "ip6": {"payload": {"protocol": "ip6", "field": "nexthdr"}},
    "ether": {"payload": {"protocol": "ether", "field": "type"}},
}
"""The fields that say which protocol follows."""


def _slot(register: int) -> int:
    """The first of the 4-byte registers: four names for 16 bytes each (1-4), or one for each (8-23)."""
    return (register - 1) * 4 if register < 8 else register - 8


def _match(left: Json, operator: str, right: Json) -> JsonObject:
    return {"match": {"op": operator, "left": left, "right": right}}


def _json_of(loaded: _Loaded) -> Json:
    """A value as nft writes it; a part of a field has no text."""
    return unknown("part of a field") if loaded.whole else loaded.json


def _bytes(count: int) -> tuple[int, str]:
    """A number of bytes in the largest unit without a rest."""
    for unit in ("bytes", "kbytes"):
        if not count or count % 1024:
            return count, unit
        count //= 1024
    return count, "mbytes"


def _prefix_length(mask: bytes) -> int | None:
    """Length of the prefix that a mask keeps, bits; None = it keeps something else."""
    bits = int.from_bytes(mask, "big")
    whole = 8 * len(mask)
    length = bits.bit_count()
    return length if bits == ((1 << length) - 1) << (whole - length) else None


def _masked(source: _Loaded, mask: bytes) -> Json:
    right = data_types.value(source.kind, mask)
    return {"&": [_json_of(source), data_types.as_integer(source.kind, mask) if source.kind in (IPV4, IPV6) else right]}


def _bits(source: _Loaded, mask: bytes, xor: bytes) -> Json:
    """`and`, `xor` and `or` from the kernel's one operation (value & mask) ^ xor."""
    whole = (1 << 8 * len(mask)) - 1
    kept, changed = data_types.as_integer(source.kind, mask), data_types.as_integer(source.kind, xor)
    always = changed & ~kept & whole
    kept |= always
    changed &= ~always
    json = _json_of(source)
    if kept != whole:
        json = {"&": [json, kept]}
    if changed:
        json = {"^": [json, changed]}
    if always:
        json = {"|": [json, always]}
    return json


def decode(raw: bytes, family: str, find_set: FindSet, read_elements: ReadElements | None) -> tuple[JsonObject, ...]:
    """The expressions of a rule.

    Args:
        raw: NFTA_RULE_EXPRESSIONS.
        family: Family of the rule's table.
        find_set: Gives the definitions of the table's sets.
        read_elements: As for RuleDecoder.
    """
    return RuleDecoder(family, find_set, read_elements).decode(raw)


def has_unknown(expressions: Iterable[Json]) -> bool:
    """Whether something in the expressions could not be decoded."""
    pending: list[Json] = list(expressions)
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if "unknown" in each:
                return True
            pending += each.values()
        elif isinstance(each, list):
            pending += each
    return False
