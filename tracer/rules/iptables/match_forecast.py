# SPDX-License-Identifier: Apache-2.0
"""Forecasts matches of iptables for the first packet of a connection. During tracing these matches are observed instead.

A match is one function, found by its name. It gets the options as iptables-save writes them, and returns the share of all
connections for which the match is true, or None if that is not known.
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


def forecast(name: str, options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult:
    """Forecasts a match.

    Args:
        name: Name of the match.
        options: Its options as iptables-save writes them.
        packet: The packet.
        context: The state beside the packet that matches test.

    Returns:
        The share of connections for which it is true, or the match as text if that is not known.
    """
    function = _FORECASTS.get(name)
    result = function(options, packet, context) if function else None
    return result if result is not None else MatchResult(doubt=f"-m {name} {format_options(options)}".strip())


def _result(true: bool) -> MatchResult:
    return YES if true else NO


def _addrtype(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
    for name, negated, values in options:
        end = {"--dst-type": packet.dst, "--src-type": packet.src}.get(name)
        if end is None:
            return None
        kind = context.type_of(address_text(end, packet.family))
        if not kind:
            return None
        if (kind in values[0].split(",")) == negated:
            return NO
    return YES


def _conntrack(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
    for name, negated, values in options:
        if name not in ("--ctstate", "--ctstatus", "--ctdir"):
            return None
        accepted = frozenset(values[0].split(","))
        # A first packet has no status yet, and goes in the original direction.
        is_met = {
            "--ctstate": bool(accepted & context.states),
            "--ctdir": "ORIGINAL" in accepted,
            "--ctstatus": "NONE" in accepted,
        }[name]
        if is_met == negated:
            return NO
    return YES


def _state(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
    return _result(all(bool(set(values[0].split(",")) & context.states) != negated for _, negated, values in options))


def _statistic(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
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


def _set(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
    if len(options) != 1 or options[0][0] != "--match-set":
        return None  # it counts, or tests the counters of an element
    _, negated, (name, flags) = options[0]
    is_member = context.in_set(name, tuple(flags.split(",")), packet)
    return None if is_member is None else _result(is_member != negated)


def _recent(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
    given = {name: (negated, values) for name, negated, values in options}
    if "--set" in given:
        # It stores the address and is always true (recent_mt in xt_recent.c).
        return _result(not given["--set"][0])
    check = next((c for c in ("--rcheck", "--update") if c in given), "")
    if not check:
        return None
    name = given["--name"][1][0] if "--name" in given else "DEFAULT"
    end = packet.dst if "--rdest" in given else packet.src
    is_whole_address = given["--mask"][1][0] in ("255.255.255.255", str(IPv6Address(2**128 - 1))) if "--mask" in given else True
    if is_whole_address and context.in_recent(name, address_text(end, packet.family)) is False:
        return _result(given[check][0])
    negated = "! " if given[check][0] else ""
    limits = "".join(f" {o} {given[o][1][0]}" for o in ("--seconds", "--hitcount") if o in given)
    return MatchResult(doubt=f"-m recent {negated}{check} --name {name}{limits}")


def _physdev(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
    """Forecasts -m physdev from the packet's input interface.

    The packet came in by a bridge port if that interface is a bridge. It leaves by a bridge port only if it goes back into the
    same bridge; whether it does so as a bridged packet is not computed (docs/kernel-facts.md).
    """
    came = context.by_bridge(packet.in_face.to_bytes(16, "big").rstrip(b"\0").decode())
    leaves = None if came is not False and packet.in_face == packet.out_face else False
    results = {"--physdev-is-in": came, "--physdev-in": False if came is False else None,
            "--physdev-is-out": leaves, "--physdev-out": leaves, "--physdev-is-bridged": leaves}  # fmt: skip
    answers = [(results.get(name), negated) for name, negated, _ in options]
    if any(answer is not None and answer == negated for answer, negated in answers):
        return NO
    return None if any(answer is None for answer, _ in answers) else YES


def _nfacct(options: Sequence[Option], packet: PacketView, context: MatchContext) -> MatchResult | None:
    return YES


_FORECASTS: dict[str, Callable[[Sequence[Option], PacketView, MatchContext], MatchResult | None]] = {
    "addrtype": _addrtype, "conntrack": _conntrack, "state": _state, "statistic": _statistic, "nfacct": _nfacct, "set": _set,
    "recent": _recent, "physdev": _physdev,
}  # fmt: skip
"""Forecast by name of the match. nfacct only counts, unless it has a quota, which iptables-save does not show."""
