# SPDX-License-Identifier: Apache-2.0
"""The expressions that compare what a register holds: with a constant, a range, a set or a map."""

from __future__ import annotations

from collections.abc import Mapping

from tracer.node.nfnetlink import attributes, number, text
from tracer.rules.nftables import data_types
from tracer.rules.nftables.data_types import BIT_TYPES, IFNAME, IPV4, IPV6, NUMBER
from tracer.rules.nftables.expressions.decoded_rule import DecodedRule, Row
from tracer.rules.nftables.expressions.registers import VERDICT_REGISTER, Loaded, has_unknown, json_of, unknown
from tracer.rules.nftables.netlink_sets import SetDefinition, UnreadElements
from tracer.util.json_value import Json, JsonObject

_OPERATORS = ("==", "!=", "<", "<=", ">", ">=")


def cmp(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    raw = attributes(data.get(3, b"")).get(1, b"")
    operation = number(data.get(2))
    operator = _OPERATORS[operation] if operation < len(_OPERATORS) else "?"
    loaded = rule.registers.at(number(data.get(1)))
    parts = rule.registers.span(number(data.get(1)), len(raw))
    rule.use(loaded)
    if operator == "?":
        rule.add(match(unknown("comparison"), "==", unknown("constant")))
    elif loaded.fields and operator == "==" and sum(size for *_, size in loaded.fields) == len(raw):
        at = 0
        for json, kind, size in loaded.fields:
            rule.add(match(json, "==", data_types.value(kind, raw[at : at + size])))
            at += size
    elif len(parts) > 1:
        rule.add(_concatenated(parts, operator, raw))
    else:
        _compare(rule, loaded, operator, raw)


def _concatenated(parts: list[Loaded], operator: str, raw: bytes) -> JsonObject:
    split = data_types.split([p.kind for p in parts], raw, [p.size for p in parts]) or []
    left = data_types.concatenation(json_of(p) for p in parts)
    return match(left, operator, data_types.concatenation(data_types.value(*each) for each in split))


def _compare(rule: DecodedRule, loaded: Loaded, operator: str, raw: bytes) -> None:
    """One comparison with a constant."""
    if has_unknown([loaded.json]):
        rule.add(match(loaded.json, operator, unknown("constant")))
        return
    equal = operator in ("==", "!=")
    if loaded.whole and loaded.mask is None and equal and len(raw) == loaded.size:
        right: Json = {"prefix": {"addr": data_types.value(loaded.kind, raw.ljust(loaded.whole, b"\0")), "len": 8 * len(raw)}}
        rule.add(match(loaded.json, operator, right))
        return
    if loaded.mask is not None and loaded.masked is not None and equal and not loaded.whole:
        prefix = _prefix_length(loaded.mask)
        is_network = not any(byte & ~bits for byte, bits in zip(raw, loaded.mask, strict=False))
        if loaded.kind in (IPV4, IPV6) and prefix is not None and is_network:
            right = {"prefix": {"addr": data_types.value(loaded.kind, raw), "len": prefix}}
            rule.add(match(loaded.masked.json, operator, right))
            return
        if loaded.kind in BIT_TYPES and operator == "!=" and not any(raw):
            rule.add(match(loaded.masked.json, "in", data_types.value(loaded.kind, loaded.mask)))
            return
    if loaded.whole or (loaded.kind != IFNAME and len(raw) > loaded.size):
        rule.add(match(loaded.json, operator, unknown("constant")))
        return
    right = data_types.value(loaded.kind, raw)
    before = rule.expressions[-1].get("match") if rule.expressions else None
    if operator == "<=" and isinstance(before, dict) and before.get("op") == ">=" and before.get("left") == loaded.json:
        rule.expressions[-1] = match(loaded.json, "==", {"range": [before["right"], right]})
        return
    comparison = match(loaded.json, operator, right)
    rule.add(comparison)
    if operator == "==" and loaded.mask is None:
        rule.learn(loaded, raw, comparison)


def value_range(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    loaded, operation = rule.registers.at(number(data.get(1))), number(data.get(2))
    ends = [attributes(data.get(kind, b"")).get(1, b"") for kind in (3, 4)]
    rule.use(loaded)
    right: Json = {"range": [data_types.value(loaded.kind, end) for end in ends]}
    if loaded.fields or loaded.whole or operation > 1:
        right = unknown("range")
    rule.add(match(loaded.json, "!=" if operation == 1 else "==", right))


def lookup(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    name, flags = text(data.get(1)), number(data.get(5))
    found = rule.find_set(name)
    key, kinds = rule.operand(number(data.get(2)), found.key_length) if found else (unknown("register"), [])
    given = _data(rule, name, found, kinds)
    if flags & ~1:
        given = unknown("lookup")
    if 3 not in data:
        rule.add(match(key, "!=" if flags & 1 else "==", given))
    elif number(data[3]) == VERDICT_REGISTER:
        rule.add({"vmap": {"key": key, "data": given}})
    elif found:
        types = found.data_types
        size = found.data_length
        rule.store(number(data[3]), Loaded({"map": {"key": key, "data": given}}, types[0] if len(types) == 1 else NUMBER, size))
    else:
        rule.give_up("lookup")


def _data(rule: DecodedRule, name: str, found: SetDefinition | None, kinds: list[int]) -> Json:
    """A set or map as nft writes it in a rule: its name, or the elements of an unnamed one."""
    if found is None:
        return unknown(f"set {name}")
    if not found.is_anonymous or rule.read_elements is None:
        return f"@{name}"
    try:
        return {"set": found.elements(rule.read_elements(name), kinds)}
    except UnreadElements as e:
        return unknown(f"elements ({e})")


def match(left: Json, operator: str, right: Json) -> JsonObject:
    return {"match": {"op": operator, "left": left, "right": right}}


def _prefix_length(mask: bytes) -> int | None:
    """Length of the prefix that a mask keeps, bits; None = it keeps something else."""
    bits = int.from_bytes(mask, "big")
    whole = 8 * len(mask)
    length = bits.bit_count()
    return length if bits == ((1 << length) - 1) << (whole - length) else None


STEPS: Mapping[str, Row] = {
    "cmp": (cmp, 3),
    "range": (value_range, 4),
    "lookup": (lookup, 5),
}
