# SPDX-License-Identifier: Apache-2.0
"""Formats nft's JSON expressions in nft's syntax: `ip daddr 172.30.0.1 tcp dport 443 jump KUBE-SVC-...`. Omits counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def operand(value: Any) -> str:
    """Formats a value or a packet field: an address, @set, `meta mark`, `ip daddr . th dport`, { 0 : goto x }."""
    if not isinstance(value, dict):
        return ", ".join(operand(v) for v in value) if isinstance(value, list) else str(value)
    ((kind, body),) = value.items()
    make = _OPERANDS.get(kind)
    return make(body) if make else kind


def expression(value: dict[str, Any]) -> str:
    """Formats one expression of a rule, or a verdict. An unknown expression is named by its kind."""
    ((kind, body),) = value.items()
    make = _EXPRESSIONS.get(kind)
    return make(body) if make else kind


def _payload(body: dict[str, Any]) -> str:
    return f"{body['protocol']} {body['field']}" if "protocol" in body else "payload"


def _numgen(body: dict[str, Any]) -> str:
    return f"numgen {body['mode']} mod {body['mod']}"


def _set(body: Any) -> str:
    entries = body if isinstance(body, list) else [body]
    pairs = (
        f"{operand(e[0])} : {expression(e[1]) if isinstance(e[1], dict) and 'concat' not in e[1] else operand(e[1])}"
        if isinstance(e, list) and len(e) == 2
        else operand(e)
        for e in entries
    )
    return f"{{ {', '.join(pairs)} }}"


def _fib(body: dict[str, Any]) -> str:
    flags = body["flags"]
    return f"fib {' . '.join([flags] if isinstance(flags, str) else flags)} {body['result']}"


def _bits(sign: str) -> Callable[[Any], str]:
    def text(body: Any) -> str:
        sides = [f"{side:#010x}" if isinstance(side, int) else operand(side) for side in body]
        return f" {sign} ".join(sides)

    return text


_OPERANDS: dict[str, Callable[[Any], str]] = {
    "payload": _payload,
    "meta": lambda body: f"meta {body['key']}",
    "ct": lambda body: f"ct {body['key']}",
    "fib": _fib,
    "prefix": lambda body: f"{operand(body['addr'])}/{body['len']}",
    "range": lambda body: "-".join(operand(v) for v in body),
    "concat": lambda body: " . ".join(operand(v) for v in body),
    "set": _set,
    "numgen": _numgen,
    "map": lambda body: f"{operand(body['key'])} map {operand(body['data'])}",
    "elem": lambda body: operand(body["val"]),
    "&": _bits("&"),
    "|": _bits("|"),
    "^": _bits("^"),
}


def _match(body: dict[str, Any]) -> str:
    left, right = operand(body["left"]), operand(body["right"])
    if "meta mark" in left and isinstance(body["right"], int):
        right = f"{body['right']:#010x}"
        return f"{left} {body['op']} {right}"
    return f"{left} {right}" if body["op"] in ("==", "in") else f"{left} {body['op']} {right}"


def _nat(kind: str) -> Callable[[Any], str]:
    def text(body: Any) -> str:
        if not body or "addr" not in body:
            return kind
        address = operand(body["addr"])
        port = f":{operand(body['port'])}" if "port" in body else ""
        family = f" {body['family']}" if "family" in body and "map" in address else ""
        return f"{kind}{family} to {f'[{address}]' if ':' in address and port else address}{port}"

    return text


def _flagged(kind: str) -> Callable[[Any], str]:
    def text(body: Any) -> str:
        flags = (body or {}).get("flags", [])
        return " ".join([kind, *([flags] if isinstance(flags, str) else flags)])

    return text


def _reject(body: Any) -> str:
    return f"reject with {body['type']} {body['expr']}" if body and "expr" in body else "reject"


_EXPRESSIONS: dict[str, Callable[[Any], str]] = {
    "match": _match,
    "counter": lambda body: "",
    "jump": lambda body: f"jump {body['target']}",
    "goto": lambda body: f"goto {body['target']}",
    "vmap": lambda body: f"{operand(body['key'])} vmap {operand(body['data'])}",
    "mangle": lambda body: f"{operand(body['key'])} set {operand(body['value'])}",
    "xt": lambda body: f'xt {body["type"]} "{body["name"]}"',
    "dnat": _nat("dnat"),
    "snat": _nat("snat"),
    "masquerade": _flagged("masquerade"),
    "redirect": _flagged("redirect"),
    "set": lambda body: f"{body['op']} {body['set']} {{ {operand(body['elem'])} }}",
    "text": str,
    "reject": _reject,
}
