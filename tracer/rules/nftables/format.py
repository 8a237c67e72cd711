# SPDX-License-Identifier: Apache-2.0
"""Formats nft's JSON expressions in nft's syntax: `ip daddr 172.30.0.1 tcp dport 443 jump KUBE-SVC-...`. Omits counters."""

from __future__ import annotations

from collections.abc import Callable

from tracer.util.json_value import Json, JsonObject, as_list, as_object, as_text, member, one_or_more, only_member


def operand(value: Json) -> str:
    """Formats a value or a packet field: an address, @set, `meta mark`, `ip daddr . th dport`, { 0 : goto x }."""
    if not isinstance(value, dict):
        return ", ".join(operand(v) for v in value) if isinstance(value, list) else str(value)
    kind, body = only_member(value)
    make = _OPERANDS.get(kind)
    return make(body) if make else kind


def expression(value: JsonObject) -> str:
    """Formats one expression of a rule, or a verdict. An unknown expression is named by its kind."""
    kind, body = only_member(value)
    make = _EXPRESSIONS.get(kind)
    return make(body) if make else kind


def _payload(body: Json) -> str:
    return f"{member(body, 'protocol')} {member(body, 'field')}" if "protocol" in as_object(body) else "payload"


def _numgen(body: Json) -> str:
    return f"numgen {member(body, 'mode')} mod {member(body, 'mod')}"


def _set(body: Json) -> str:
    entries = one_or_more(body)
    pairs = (
        f"{operand(e[0])} : {expression(e[1]) if isinstance(e[1], dict) and 'concat' not in e[1] else operand(e[1])}"
        if isinstance(e, list) and len(e) == 2
        else operand(e)
        for e in entries
    )
    return f"{{ {', '.join(pairs)} }}"


def _fib(body: Json) -> str:
    return f"fib {' . '.join(_flags(member(body, 'flags')))} {member(body, 'result')}"


def _flags(value: Json) -> list[str]:
    """One flag, or a list of flags."""
    return [value] if isinstance(value, str) else [as_text(flag) for flag in as_list(value)]


def _bits(sign: str) -> Callable[[Json], str]:
    def text(body: Json) -> str:
        sides = [f"{side:#010x}" if isinstance(side, int) else operand(side) for side in as_list(body)]
        return f" {sign} ".join(sides)

    return text


_OPERANDS: dict[str, Callable[[Json], str]] = {
    "payload": _payload,
    "meta": lambda body: f"meta {member(body, 'key')}",
    "ct": lambda body: f"ct {member(body, 'key')}",
    "fib": _fib,
    "prefix": lambda body: f"{operand(member(body, 'addr'))}/{member(body, 'len')}",
    "range": lambda body: "-".join(operand(v) for v in as_list(body)),
    "concat": lambda body: " . ".join(operand(v) for v in as_list(body)),
    "set": _set,
    "numgen": _numgen,
    "map": lambda body: f"{operand(member(body, 'key'))} map {operand(member(body, 'data'))}",
    "elem": lambda body: operand(member(body, "val")),
    "&": _bits("&"),
    "|": _bits("|"),
    "^": _bits("^"),
    "unknown": lambda body: f"(unknown: {body})",
}


def _match(body: Json) -> str:
    value, op = member(body, "right"), member(body, "op")
    left, right = operand(member(body, "left")), operand(value)
    if "meta mark" in left and isinstance(value, int):
        return f"{left} {op} {value:#010x}"
    return f"{left} {right}" if op in ("==", "in") else f"{left} {op} {right}"


def _nat(kind: str) -> Callable[[Json], str]:
    def text(body: Json) -> str:
        given = as_object(body or {})
        if "addr" not in given:
            return kind
        address = operand(given["addr"])
        port = f":{operand(given['port'])}" if "port" in given else ""
        family = f" {given['family']}" if "family" in given and "map" in address else ""
        return f"{kind}{family} to {f'[{address}]' if ':' in address and port else address}{port}"

    return text


def _flagged(kind: str) -> Callable[[Json], str]:
    def text(body: Json) -> str:
        return " ".join([kind, *_flags(as_object(body or {}).get("flags", []))])

    return text


def _reject(body: Json) -> str:
    given = as_object(body or {})
    return f"reject with {member(given, 'type')} {given['expr']}" if "expr" in given else "reject"


def _queue(body: Json) -> str:
    """A queue for a process; nft gives its number, or the first and the last of several."""
    given = as_object(body or {})
    flags = ",".join(_flags(given.get("flags", [])))
    words = ["queue", *([f"flags {flags}"] if flags else []), *([f"to {operand(given['num'])}"] if "num" in given else [])]
    return " ".join(words)


def _xt(body: Json) -> str:
    """A match or target of iptables-nft; nft before 1.0.6 does not say which. Its options are known where nft was not used."""
    if body is None:
        return "xt"
    options = as_object(body).get("options")
    return f'xt {member(body, "type")} "{member(body, "name")}"' + f" {options}" * bool(options)


_EXPRESSIONS: dict[str, Callable[[Json], str]] = {
    "match": _match,
    "counter": lambda body: "",
    "jump": lambda body: f"jump {member(body, 'target')}",
    "goto": lambda body: f"goto {member(body, 'target')}",
    "vmap": lambda body: f"{operand(member(body, 'key'))} vmap {operand(member(body, 'data'))}",
    "mangle": lambda body: f"{operand(member(body, 'key'))} set {operand(member(body, 'value'))}",
    "xt": _xt,
    "dnat": _nat("dnat"),
    "snat": _nat("snat"),
    "masquerade": _flagged("masquerade"),
    "redirect": _flagged("redirect"),
    "set": lambda body: f"{member(body, 'op')} {member(body, 'set')} {{ {operand(member(body, 'elem'))} }}",
    "text": str,
    "reject": _reject,
    "queue": _queue,
    "unknown": lambda body: f"(unknown: {body})",
}
