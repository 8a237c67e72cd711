# SPDX-License-Identifier: Apache-2.0
"""A run's conditions in its capture: what user space evaluated, so that a replay shows the packets that the run showed.

A pcap-filter expression is stored as the program that libpcap made of it: a reader needs no libpcap, and a hostile capture
cannot make it ask name servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracer.errors import BadOption
from tracer.model.filter import parse_host
from tracer.selection import cbpf
from tracer.selection.display_filter import DisplayFilter
from tracer.selection.pcap_expression import PcapExpression

Stored = Mapping[str, Any]
MOST_TEXT = 10_000
"""Maximum length of an expression in a capture, characters."""


def encoded(conditions: DisplayFilter) -> dict[str, Any]:
    """The conditions of `FilterOptions.live_filter` as values of a capture; {} = there is none."""
    expression = conditions.expression
    found: dict[str, Any] = {
        "excluded_ports": tuple(sorted(conditions.excluded_ports)),
        "excluded_hosts": tuple(map(str, conditions.excluded_hosts)),
        "pids": tuple(sorted(conditions.pids)),
        "commands": tuple(sorted(conditions.commands)),
        "expression": expression.text if expression else "",
        "program": tuple(map(tuple, expression.program)) if expression else (),
    }
    return {name: value for name, value in found.items() if value}


def decoded(found: Stored) -> DisplayFilter:
    """The conditions of a recorded run.

    Raises:
        ValueError: They have another form. The capture may be hostile.
    """
    unknown = found.keys() - {"excluded_ports", "excluded_hosts", "pids", "commands", "expression", "program"}
    if unknown:
        raise ValueError("unknown conditions")
    try:
        hosts = tuple(parse_host(_text(each)) for each in _values(found, "excluded_hosts"))
    except BadOption as e:
        raise ValueError("no network") from e
    text, program = _text(found.get("expression", "")), _values(found, "program")
    return DisplayFilter(
        excluded_ports=frozenset(map(_number, _values(found, "excluded_ports"))),
        excluded_hosts=hosts,
        pids=frozenset(map(_number, _values(found, "pids"))),
        commands=frozenset(map(_text, _values(found, "commands"))),
        expression=PcapExpression(text, cbpf.checked(program)) if program else None,
    )


def _values(found: Stored, name: str) -> tuple[object, ...]:
    values = found.get(name, ())
    if not isinstance(values, tuple):
        raise ValueError(f"{name} is no list")
    return values


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise ValueError("no text")
    return value
