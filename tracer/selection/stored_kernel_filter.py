# SPDX-License-Identifier: Apache-2.0
"""The kernel's filter of a run in its capture: what a node showed of the packets that came to it can be seen from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tracer.errors import BadOption
from tracer.model.filter import PROTOCOLS, Filter, Network, parse_host
from tracer.selection.display_filter import DisplayFilter

_NETWORKS = ("hosts", "sources", "destinations", "excluded_hosts")
_PORTS = ("ports", "source_ports", "destination_ports", "excluded_ports")
_NUMBERS = ("protocol", "family", "netns", "ifindex", "if_netns")
_NAMES = {number: name for name, number in PROTOCOLS.items()}


def encoded(chosen: Filter) -> dict[str, Any]:
    """The filter as values of a capture."""
    return asdict(chosen) | {name: [str(network) for network in getattr(chosen, name)] for name in _NETWORKS}


def decoded(found: Mapping[str, Any]) -> Filter:
    """The filter of a recorded run.

    Raises:
        ValueError: It has another form. The capture may be hostile.
    """
    try:
        networks = {name: _networks(found.get(name, ())) for name in _NETWORKS}
        ports = {name: _numbers(found.get(name, ())) for name in _PORTS}
        numbers = {name: _number(found.get(name, 0)) for name in _NUMBERS}
        flags = frozenset(_numbers(found.get("tcp_flags", ())))
        return Filter(**networks, **ports, **numbers, drops_only=found.get("drops_only") is not False, tcp_flags=flags)  # type: ignore[arg-type]
    except BadOption as e:
        raise ValueError(str(e)) from e


def on_the_wire(chosen: Filter) -> DisplayFilter | None:
    """The same conditions on a packet of which only the header is known; None = it also depends on what only the node knows."""
    if chosen.netns or chosen.ifindex or chosen.drops_only or chosen.excluded_ports or chosen.excluded_hosts:
        return None
    if chosen.protocol and chosen.protocol not in _NAMES:
        return None
    return DisplayFilter(
        protocol=_NAMES.get(chosen.protocol, ""),
        family=chosen.family,
        ports=frozenset(chosen.ports),
        hosts=chosen.hosts,
        source_ports=frozenset(chosen.source_ports),
        destination_ports=frozenset(chosen.destination_ports),
        sources=chosen.sources,
        destinations=chosen.destinations,
        tcp_flags=chosen.tcp_flags,
    )


def _networks(values: object) -> tuple[Network, ...]:
    if not isinstance(values, tuple | list) or not all(isinstance(each, str) for each in values):
        raise ValueError("no networks")
    return tuple(map(parse_host, values))


def _numbers(values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple | list | frozenset | set):
        raise ValueError("no numbers")
    return tuple(map(_number, values))


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no number")
    return value
