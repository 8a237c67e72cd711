# SPDX-License-Identifier: Apache-2.0
"""The expressions that are statements: what a rule does with a packet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracer.node.nfnetlink import attributes, items, number, text
from tracer.rules.nftables import data_types
from tracer.rules.nftables.data_types import ICMP_CODE, ICMPV6_CODE, ICMPX_CODE, IPV4, IPV6, PORT
from tracer.rules.nftables.expressions.decoded_rule import FAMILIES, DecodedRule, Row
from tracer.rules.nftables.expressions.registers import json_of, unknown
from tracer.rules.xt_options import match_options, target_options
from tracer.util.json_value import Json, JsonObject

_NAT_FLAGS = ((0x4, "random"), (0x8, "persistent"), (0x10, "fully-random"))
_NAT_KNOWN = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20
"""Flags of a translation: a given address (0x1), a given port (0x2), those of _NAT_FLAGS, given by hand (0x20)."""
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit")
_OBJECTS = {1: "counter", 2: "quota", 3: "ct helper", 4: "limit", 5: "ct count", 7: "ct timeout", 9: "ct expectation",
            10: "synproxy"}  # fmt: skip
_SECONDS = {1: "second", 60: "minute", 3600: "hour", 86400: "day", 604800: "week"}


def dynset(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    name = text(data.get(1))
    found = rule.find_set(name)
    operation = {0: "add", 1: "update", 2: "delete"}.get(number(data.get(3)))
    if operation is None or found is None or number(data.get(9)) & 1:
        rule.add(unknown("dynset"))
        return
    key, _ = rule.operand(number(data.get(4)), found.key_length)
    if number(data.get(6)) not in (0, found.timeout):
        key = {"elem": {"val": key, "timeout": number(data.get(6)) // 1000}}
    body: JsonObject = {"op": operation, "elem": key, "set": f"@{name}"}
    if 5 in data:
        value, _ = rule.operand(number(data[5]), found.data_length)
        rule.add({"map": {"op": operation, "elem": key, "data": value, "map": f"@{name}"}})
        return
    inner = [data[7]] if 7 in data else [each for _, each in items(data.get(10, b""))]
    names = [text(attributes(each).get(1)) for each in inner]
    # `add @set { ip saddr limit rate 5/second }` goes on or not by what the inner expression says.
    if any(each not in ("counter", "last") for each in names):
        rule.add(unknown("dynset with " + ", ".join(names)))
        return
    if names:
        body["stmt"] = [{each: None} for each in names]
    rule.add({"set": body})


def nat(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    kind = {0: "snat", 1: "dnat"}.get(number(data.get(1)))
    family = number(data.get(2))
    body: JsonObject = {}
    flags = number(data.get(7))
    if kind is None or (family not in FAMILIES and 3 in data) or flags & ~_NAT_KNOWN:
        rule.add(unknown("nat"))
        return
    type_of = IPV4 if family == 2 else IPV6
    address = rule.registers.at(number(data.get(3))) if 3 in data else None
    if address is not None and (rule.family == "inet" or address.raw is None):
        body["family"] = FAMILIES[family]
    if address is not None:
        size = data_types.SIZES[type_of]
        low = rule.typed(number(data[3]), size, type_of, json_of(address))
        high = rule.typed(number(data[4]), size, type_of, low) if 4 in data else low
        body["addr"] = low if low == high else {"range": [low, high]}
        if data.get(4, data[3]) != data[3] and address.raw is None:
            body["addr"] = unknown("range of addresses")
    # A map of addresses and ports gives both: its value is one concatenation.
    if 5 in data and not (address is not None and address.raw is None and rule.registers.is_inside(number(data[5]), address)):
        low = rule.typed(number(data[5]), 2, PORT, json_of(rule.registers.at(number(data[5]))))
        high = rule.typed(number(data[6]), 2, PORT, low) if 6 in data else low
        body["port"] = low if low == high else {"range": [low, high]}
    rule.add({kind: _with_flags(body, flags)})


def _with_flags(body: JsonObject, flags: int) -> JsonObject | None:
    names: list[Json] = [name for bit, name in _NAT_FLAGS if flags & bit]
    if names:
        body["flags"] = names[0] if len(names) == 1 else names
    return body or None


def masq(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    _translation(rule, "masquerade", number(data.get(1)), data.get(2), data.get(3))


def redir(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    _translation(rule, "redirect", number(data.get(3)), data.get(1), data.get(2))


def _translation(rule: DecodedRule, name: str, flags: int, first: bytes | None, last: bytes | None) -> None:
    if flags & ~_NAT_KNOWN:
        rule.add(unknown(name))
        return
    body: JsonObject = {}
    if first is not None:
        low = rule.typed(number(first), 2, PORT, json_of(rule.registers.at(number(first))))
        high = rule.typed(number(last), 2, PORT, low) if last is not None else low
        body["port"] = low if low == high else {"range": [low, high]}
    rule.add({name: _with_flags(body, flags)})


def reject(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    kind, code = number(data.get(1)), number(data.get(2))
    if kind == 1:
        rule.add({"reject": {"type": "tcp reset"}})
        return
    is_ip6 = rule.network == "ip6"
    type_of = {0: ICMPV6_CODE if is_ip6 else ICMP_CODE, 2: ICMPX_CODE}.get(kind)
    if type_of is None:
        rule.add(unknown("reject"))
        return
    name = "icmpx" if kind == 2 else "icmpv6" if is_ip6 else "icmp"
    rule.add({"reject": {"type": name, "expr": data_types.value(type_of, bytes([code & 0xFF]))}})


def counter(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    rule.add({"counter": {"packets": number(data.get(2)), "bytes": number(data.get(1))}})


def last(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    rule.add({"last": None})


def limit(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    rate, unit = number(data.get(1)), number(data.get(2))
    is_over, is_bytes = number(data.get(5)) & 1, number(data.get(4)) == 1
    body: JsonObject = {"rate": rate, "burst": number(data.get(3)), "per": _SECONDS.get(unit, f"{unit} seconds")}
    body |= {"inv": True} if is_over else {}
    if is_bytes:
        (body["rate"], body["rate_unit"]), (body["burst"], body["burst_unit"]) = _bytes(rate), _bytes(number(data.get(3)))
    rule.add({"limit": body})


def log(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    body: JsonObject = {}
    if 2 in data:
        body["prefix"] = text(data[2])
    if 5 in data:
        level = number(data[5])
        body |= {"level": _LEVELS[level] if level < len(_LEVELS) else str(level)} if level != 4 else {}
    for kind, name in ((1, "group"), (3, "snaplen"), (4, "queue-threshold")):
        if kind in data:
            body[name] = number(data[kind])
    rule.add({"log": body or None})


def queue(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    first, total, flags = number(data.get(1)), number(data.get(2)) or 1, number(data.get(3))
    body: JsonObject = {"num": first if total == 1 else {"range": [first, first + total - 1]}}
    if 4 in data:
        body = {"num": rule.registers.at(number(data[4])).json}
    names: list[Json] = [name for bit, name in ((1, "bypass"), (2, "fanout")) if flags & bit]
    if names:
        body["flags"] = names[0] if len(names) == 1 else names
    rule.add({"queue": body} if not flags & ~3 else unknown("queue"))


def quota(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    body: JsonObject = {"val": number(data.get(1)), "val_unit": "bytes", "used": number(data.get(4)), "used_unit": "bytes"}
    rule.add({"quota": {**body, "inv": True} if number(data.get(2)) & 1 else body})


def objref(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    name = _OBJECTS.get(number(data.get(1))) if 2 in data else None
    rule.add({name: text(data[2])} if name else unknown("objref"))


def notrack(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    rule.add({"notrack": None})


def dup(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    address = rule.registers.at(number(data.get(1)))
    size = address.size if address.raw is not None else 0
    kind = {4: IPV4, 16: IPV6}.get(size)
    if kind is None or 2 in data:
        rule.add(unknown("dup"))
    else:
        rule.add({"dup": {"addr": data_types.value(kind, address.raw or b"")}})


def tproxy(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    body: JsonObject = {}
    for attribute, name, kind, size in ((2, "addr", IPV6 if number(data.get(1)) == 10 else IPV4, 0), (3, "port", PORT, 2)):
        if attribute in data:
            register = number(data[attribute])
            body[name] = rule.typed(register, size or data_types.SIZES[kind], kind, json_of(rule.registers.at(register)))
    rule.add({"tproxy": body})


def match_of_iptables(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    _add_of_iptables(rule, "match", data, match_options)


def target_of_iptables(rule: DecodedRule, data: Mapping[int, bytes]) -> None:
    _add_of_iptables(rule, "target", data, target_options)


def _add_of_iptables(
    rule: DecodedRule, kind: str, data: Mapping[int, bytes], options_of: Callable[[str, int, bytes, str], str | None]
) -> None:
    """Adds a match or target of iptables-nft. nft does not print its options; of a comment it prints the text."""
    name = text(data.get(1))
    body: JsonObject = {"type": kind, "name": name}
    options = options_of(name, number(data.get(2)), data.get(3, b""), rule.family) if rule.family in FAMILIES.values() else None
    if options and name != "comment":
        body["options"] = options
    rule.add({"xt": body})


def _bytes(count: int) -> tuple[int, str]:
    """A number of bytes in the largest unit without a rest."""
    for unit in ("bytes", "kbytes"):
        if not count or count % 1024:
            return count, unit
        count //= 1024
    return count, "mbytes"


STEPS: Mapping[str, Row] = {
    "dynset": (dynset, 10),
    "nat": (nat, 7),
    "masq": (masq, 3),
    "redir": (redir, 3),
    "reject": (reject, 2),
    "counter": (counter, 3),
    "last": (last, 3),
    "limit": (limit, 6),
    "log": (log, 6),
    "queue": (queue, 4),
    "quota": (quota, 5),
    "objref": (objref, 5),
    "notrack": (notrack, 0),
    "dup": (dup, 2),
    "tproxy": (tproxy, 3),
    "match": (match_of_iptables, 3),
    "target": (target_of_iptables, 3),
}
