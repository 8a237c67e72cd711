# SPDX-License-Identifier: Apache-2.0
"""The expressions that load a value into a register, or change one there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tracer.node.nfnetlink import attributes, number
from tracer.rules.nftables import data_types
from tracer.rules.nftables.data_types import BOOLEAN, FIB_TYPE, HOST_NUMBER, IFNAME, IPV4, IPV6, NUMBER
from tracer.rules.nftables.expressions.decoded_rule import DecodedRule, Row
from tracer.rules.nftables.expressions.keys_and_fields import CT, FIELDS, META, META_SIZES
from tracer.rules.nftables.expressions.registers import VERDICT_REGISTER, Loaded, json_of, unknown
from tracer.rules.nftables.netlink_sets import verdict
from tracer.util.json_value import Json, JsonObject

_DIRECTIONS = ("original", "reply")
_BASES = ("ll", "nh", "th", "ih")
_FIB_RESULTS = {1: "oif", 2: "oifname", 3: "type"}
_FIB_FLAGS = ((1, "saddr"), (2, "daddr"), (4, "mark"), (8, "iif"), (16, "oif"))


def payload(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    base, offset, size = (number(data.get(kind)) for kind in (2, 3, 4))
    layer = _BASES[base] if base < len(_BASES) else "?"
    found = _fields(rule, layer, offset, size)
    if 5 in data:
        value, _ = rule.operand(number(data[5]), size)
        if found.fields:
            value = unknown("several fields at once")
        rule.add({"mangle": {"key": found.json, "value": rule.typed(number(data[5]), size, found.kind, value)}})
        return
    rule.store(number(data.get(1)), found)


def _fields(rule: DecodedRule, layer: str, offset: int, size: int) -> Loaded:
    """The header fields at this place."""
    protocol = {"ll": "ether", "nh": rule.network, "th": rule.transport or "th"}.get(layer, "")
    fields = FIELDS.get(protocol, ())
    at, parts = offset, list[tuple[Json, int, int]]()
    named = layer if protocol not in ("th", rule.family) and (layer != "ll" or rule.family == "inet") else ""
    while at < offset + size:
        found = next((f for f in fields if f[0] == at), None)
        if found is None:
            break
        _, length, name, kind = found
        json: Json = {"payload": {"protocol": protocol, "field": name}}
        if at + length > offset + size:
            if parts or kind not in (IPV4, IPV6):
                break
            return Loaded(json, kind, size, whole=length, layer=named)
        parts.append((json, kind, length))
        at += length
    if at != offset + size or not parts:
        return Loaded({"payload": {"base": layer, "offset": 8 * offset, "len": 8 * size}}, NUMBER, size)
    if len(parts) == 1:
        return Loaded(*parts[0], layer=named)
    return Loaded(unknown("several fields at once"), NUMBER, size, fields=tuple(parts), layer=named)


def meta(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    key = number(data.get(2))
    name, kind = META.get(key, (f"key {key}", NUMBER))
    json: JsonObject = {"meta": {"key": name}} if key in META else unknown(f"meta {name}")
    size = META_SIZES.get(key, 4)
    if 3 in data:
        value, _ = rule.operand(number(data[3]), size)
        rule.add({"mangle": {"key": json, "value": rule.typed(number(data[3]), size, kind, value)}})
    else:
        rule.store(number(data.get(1)), Loaded(json, kind, size))


def ct(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    key = number(data.get(2))
    name, kind, size = CT.get(key, (f"key {key}", NUMBER, 16))
    inner: JsonObject = {"key": name}
    direction = number(data.get(3))
    if 3 in data:
        inner["dir"] = _DIRECTIONS[direction] if direction < 2 else "unknown"
    json: JsonObject = {"ct": inner} if key in CT and direction < 2 else unknown(f"ct {name}")
    if 4 in data:
        value, _ = rule.operand(number(data[4]), size)
        rule.add({"mangle": {"key": json, "value": rule.typed(number(data[4]), size, kind, value)}})
    else:
        rule.store(number(data.get(1)), Loaded(json, kind, size))


def rt(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    rule.store(number(data.get(1)), Loaded(unknown("rt"), NUMBER, 16))


def numgen(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    mode = {0: "inc", 1: "random"}.get(number(data.get(3)))
    body: JsonObject = {"mode": mode, "mod": number(data.get(2)), "offset": number(data.get(4))}
    rule.store(number(data.get(1)), Loaded({"numgen": body} if mode else unknown("numgen"), HOST_NUMBER, 4))


def packet_hash(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    body: JsonObject = {"mod": number(data.get(4))}
    kind = "symhash" if number(data.get(7)) == 1 else "jhash"
    if kind == "jhash":
        body["expr"], _ = rule.operand(number(data.get(1)), number(data.get(3)))
        body |= {"seed": number(data[5])} if 5 in data else {}
    body |= {"offset": number(data[6])} if number(data.get(6)) else {}
    rule.store(number(data.get(2)), Loaded({kind: body}, HOST_NUMBER, 4))


def fib(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    result, flags = number(data.get(2)), number(data.get(3))
    names: list[Json] = [name for bit, name in _FIB_FLAGS if flags & bit]
    kind, size = {1: (HOST_NUMBER, 4), 2: (IFNAME, 16), 3: (FIB_TYPE, 4)}.get(result, (NUMBER, 4))
    if flags & ~0x3F or result not in _FIB_RESULTS:
        json = unknown("fib")
    else:
        json = {"fib": {"result": _FIB_RESULTS[result], "flags": names}}
    if flags & 0x20:
        kind, size = BOOLEAN, 1
    rule.store(number(data.get(1)), Loaded(json, kind, size))


def immediate(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    value = attributes(data.get(2, b""))
    if number(data.get(1)) == VERDICT_REGISTER:
        rule.add(verdict(value.get(2, b"")))
    else:
        raw = value.get(1, b"")
        rule.store(number(data.get(1)), Loaded(unknown("constant"), NUMBER, len(raw), raw=raw))


def bitwise(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    source, size, operation = rule.registers.at(number(data.get(1))), number(data.get(3)), number(data.get(6))
    destination = number(data.get(2))
    if operation in (1, 2):
        sign = "<<" if operation == 1 else ">>"
        shift = int.from_bytes(attributes(data.get(7, b"")).get(1, b""), "little")
        rule.store(destination, Loaded({sign: [json_of(source), shift]}, source.kind, size))
        return
    mask, xor = (attributes(data.get(kind, b"")).get(1, b"") for kind in (4, 5))
    if operation or not len(mask) == len(xor) == size or source.raw is not None or source.fields or source.size != size:
        rule.store(destination, Loaded(unknown("bitwise"), NUMBER, size))
    elif not any(xor) and source.mask is None:
        masked = replace(source, json=_masked(source, mask), mask=mask, masked=source)
        rule.store(destination, masked)
    else:
        rule.store(destination, replace(source, json=_bits(source, mask, xor), mask=None, masked=None, whole=0))


def byteorder(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    source = rule.registers.at(number(data.get(1)))
    kind = NUMBER if number(data.get(3)) == 1 else HOST_NUMBER
    rule.store(number(data.get(2)), replace(source, kind=kind, size=number(data.get(4))))


def _masked(source: Loaded, mask: bytes) -> Json:
    right = data_types.value(source.kind, mask)
    return {"&": [json_of(source), data_types.as_integer(source.kind, mask) if source.kind in (IPV4, IPV6) else right]}


def _bits(source: Loaded, mask: bytes, xor: bytes) -> Json:
    """`and`, `xor` and `or` from the kernel's one operation (value & mask) ^ xor."""
    whole = (1 << 8 * len(mask)) - 1
    kept, changed = data_types.as_integer(source.kind, mask), data_types.as_integer(source.kind, xor)
    always = changed & ~kept & whole
    kept |= always
    changed &= ~always
    json = json_of(source)
    if kept != whole:
        json = {"&": [json, kept]}
    if changed:
        json = {"^": [json, changed]}
    if always:
        json = {"|": [json, always]}
    return json


STEPS: Mapping[str, Row] = {
    "payload": (payload, 8),
    "meta": (meta, 3),
    "ct": (ct, 4),
    "rt": (rt, 2),
    "numgen": (numgen, 4),
    "hash": (packet_hash, 9),
    "fib": (fib, 3),
    "immediate": (immediate, 2),
    "bitwise": (bitwise, 7),
    "byteorder": (byteorder, 5),
}
