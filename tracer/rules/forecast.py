"""Matches of iptables that tracing observes, and that can be told in advance for the first packet of a connection.

A match is one function, found by its name: it gets the options as iptables-save writes them, and says with which share of all
connections it is true, or why that cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from tracer.rules.matches import Seen
from tracer.rules.written import Option, words


@dataclass(frozen=True)
class Answer:
    """share: 0 = false, 1 = true, between: as the rule's own dice fall. doubt: the match, where it cannot be told, else ""."""

    share: Fraction = Fraction(1)
    doubt: str = ""


class World(Protocol):
    """What matches ask beside the packet. states: of conntrack, as "NEW", "DNAT"."""

    @property
    def states(self) -> frozenset[str]: ...

    def type_of(self, address: str) -> str:
        """As addrtype calls it: LOCAL, UNICAST, BROADCAST, MULTICAST ...; "" when not known."""

    def in_set(self, name: str, flags: tuple[str, ...], packet: Seen) -> bool | None:
        """Whether an ipset has the packet's address or port, by flags "src" and "dst"; None when that cannot be told."""


YES, NO = Answer(), Answer(Fraction(0))


def foretell(name: str, options: Sequence[Option], packet: Seen, world: World) -> Answer:
    """Whether a match is true."""
    function = _KNOWN.get(name)
    told = function(options, packet, world) if function else None
    return told if told is not None else Answer(doubt=f"-m {name} {words(options)}".strip())


def _is(true: bool) -> Answer:
    return YES if true else NO


def address_text(number: int, family: str) -> str:
    return str(IPv4Address(number) if family == "ip" else IPv6Address(number))


def _addrtype(options: Sequence[Option], packet: Seen, world: World) -> Answer | None:
    for name, negated, values in options:
        end = {"--dst-type": packet.dst, "--src-type": packet.src}.get(name)
        if end is None:
            return None
        kind = world.type_of(address_text(end, packet.family))
        if not kind:
            return None
        if (kind in values[0].split(",")) == negated:
            return NO
    return YES


def _conntrack(options: Sequence[Option], packet: Seen, world: World) -> Answer | None:
    for name, negated, values in options:
        if name not in ("--ctstate", "--ctstatus", "--ctdir"):
            return None
        wanted = frozenset(values[0].split(","))
        # A first packet has no status yet, and goes in the original direction.
        met = {"--ctstate": bool(wanted & world.states), "--ctdir": "ORIGINAL" in wanted, "--ctstatus": "NONE" in wanted}[name]
        if met == negated:
            return NO
    return YES


def _state(options: Sequence[Option], packet: Seen, world: World) -> Answer | None:
    return _is(all(bool(set(values[0].split(",")) & world.states) != negated for _, negated, values in options))


def _statistic(options: Sequence[Option], packet: Seen, world: World) -> Answer | None:
    given = {name: (negated, values[0]) for name, negated, values in options}
    if "--probability" in given:
        negated, value = given["--probability"]
        share = Fraction(value).limit_denominator(10_000)
    elif "--every" in given:
        negated, value = given["--every"]
        share = Fraction(1, int(value))
    else:
        return None
    return Answer(1 - share if negated else share)


def _set(options: Sequence[Option], packet: Seen, world: World) -> Answer | None:
    if len(options) != 1 or options[0][0] != "--match-set":
        return None  # it counts, or asks for an element's counters
    _, negated, (name, flags) = options[0]
    told = world.in_set(name, tuple(flags.split(",")), packet)
    return None if told is None else _is(told != negated)


def _counts(options: Sequence[Option], packet: Seen, world: World) -> Answer | None:
    return YES


_KNOWN: dict[str, Callable[[Sequence[Option], Seen, World], Answer | None]] = {
    "addrtype": _addrtype, "conntrack": _conntrack, "state": _state, "statistic": _statistic, "nfacct": _counts, "set": _set,
}  # fmt: skip
"""nfacct only counts, unless it has a quota, which iptables-save does not show."""
