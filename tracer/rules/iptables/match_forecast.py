# SPDX-License-Identifier: Apache-2.0
"""Matches of iptables that tracing observes, and that can be told in advance for the first packet of a connection.

A match is one function, found by its name: it gets the options as iptables-save writes them, and says with which share of all
connections it is true, or why that cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from ipaddress import IPv6Address

from tracer.model.condition import MatchResult
from tracer.rules.iptables.rule_parser import Option, format_options
from tracer.rules.match_context import MatchContext, address_text
from tracer.rules.packet_view import PacketView

YES, NO = MatchResult(), MatchResult(Fraction(0))


def forecast(name: str, options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult:
    """Whether a match is true."""
    function = _KNOWN.get(name)
    told = function(options, packet, world) if function else None
    return told if told is not None else MatchResult(doubt=f"-m {name} {format_options(options)}".strip())


def _is(true: bool) -> MatchResult:
    return YES if true else NO


def _addrtype(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
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


def _conntrack(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
    for name, negated, values in options:
        if name not in ("--ctstate", "--ctstatus", "--ctdir"):
            return None
        wanted = frozenset(values[0].split(","))
        # A first packet has no status yet, and goes in the original direction.
        met = {"--ctstate": bool(wanted & world.states), "--ctdir": "ORIGINAL" in wanted, "--ctstatus": "NONE" in wanted}[name]
        if met == negated:
            return NO
    return YES


def _state(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
    return _is(all(bool(set(values[0].split(",")) & world.states) != negated for _, negated, values in options))


def _statistic(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
    given = {name: (negated, values[0]) for name, negated, values in options}
    if "--probability" in given:
        negated, value = given["--probability"]
        share = Fraction(value).limit_denominator(10_000)
    elif "--every" in given:
        negated, value = given["--every"]
        share = Fraction(1, int(value))
    else:
        return None
    return MatchResult(1 - share if negated else share)


def _set(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
    if len(options) != 1 or options[0][0] != "--match-set":
        return None  # it counts, or asks for an element's counters
    _, negated, (name, flags) = options[0]
    told = world.in_set(name, tuple(flags.split(",")), packet)
    return None if told is None else _is(told != negated)


def _recent(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
    given = {name: (negated, values) for name, negated, values in options}
    if "--set" in given:
        # It writes the address down and is true; the kernel gives no other answer (recent_mt in xt_recent.c).
        return _is(not given["--set"][0])
    check = next((c for c in ("--rcheck", "--update") if c in given), "")
    if not check:
        return None
    name = given["--name"][1][0] if "--name" in given else "DEFAULT"
    end = packet.dst if "--rdest" in given else packet.src
    whole = given["--mask"][1][0] in ("255.255.255.255", str(IPv6Address(2**128 - 1))) if "--mask" in given else True
    if whole and world.in_recent(name, address_text(end, packet.family)) is False:
        return _is(given[check][0])
    negated = "! " if given[check][0] else ""
    more = "".join(f" {o} {given[o][1][0]}" for o in ("--seconds", "--hitcount") if o in given)
    return MatchResult(doubt=f"-m recent {negated}{check} --name {name}{more}")


def _physdev(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
    """Decided by the interface that the packet came in by. It came by a port if that is a bridge; it goes out by one only where
    it goes back into that bridge, and whether it does so as a bridged packet is not computed (docs/kernel-facts.md).
    """
    came = world.by_bridge(packet.in_face.to_bytes(16, "big").rstrip(b"\0").decode())
    leaves = None if came is not False and packet.in_face == packet.out_face else False
    told = {"--physdev-is-in": came, "--physdev-in": False if came is False else None,
            "--physdev-is-out": leaves, "--physdev-out": leaves, "--physdev-is-bridged": leaves}  # fmt: skip
    answers = [(told.get(name), negated) for name, negated, _ in options]
    if any(answer is not None and answer == negated for answer, negated in answers):
        return NO
    return None if any(answer is None for answer, _ in answers) else YES


def _counts(options: Sequence[Option], packet: PacketView, world: MatchContext) -> MatchResult | None:
    return YES


_KNOWN: dict[str, Callable[[Sequence[Option], PacketView, MatchContext], MatchResult | None]] = {
    "addrtype": _addrtype, "conntrack": _conntrack, "state": _state, "statistic": _statistic, "nfacct": _counts, "set": _set,
    "recent": _recent, "physdev": _physdev,
}  # fmt: skip
"""nfacct only counts, unless it has a quota, which iptables-save does not show."""
