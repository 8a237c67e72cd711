# SPDX-License-Identifier: Apache-2.0
"""Hops: a class a kind, and what is asked of a hop of any kind."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import (
    ChainHop,
    DecisionDetail,
    DetailHop,
    Drop,
    DropHop,
    Handshake,
    HandshakeHop,
    HookHop,
    Hop,
    HopKind,
    IpvsDecision,
    IpvsNatHop,
    IpvsRefusalHop,
    Nat,
    NatHookHop,
    NatHop,
    Redirect,
    RedirectHelper,
    RedirectHop,
    RouteHop,
    Socket,
    SocketHop,
    TableHop,
    decision_of,
    is_from_conntrack,
    nat_of,
    owner_of,
    trace_of,
    verdict_of,
)
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.rule import RuleHit, RuleLocation, RuleTrace

OWNER = Owner("Service", "default", "http-proxy")
HIT = RuleHit((RuleLocation("INPUT", 0),), None, "DROP", Evidence.OBSERVED)
TRACE = RuleTrace((HIT,))
NAT = Nat("DNAT", Endpoints("10.0.0.1", 5, "10.0.0.2", 80), Endpoints("10.0.0.1", 5, "10.0.0.3", 8080))
TABLE = TableHop(0, HOST, Hook.INPUT, table="filter", verdict=Verdict.DROP, rule_trace=TRACE, owner=OWNER)
CHAIN = ChainHop(0, HOST, Hook.INPUT, table="ip kube-proxy", chain="filter-input", verdict=Verdict.DROP)
TRANSLATED = NatHop(0, HOST, Hook.PREROUTING, nat=NAT, rule_trace=TRACE, owner=OWNER, from_conntrack=True)
BY_IPVS = IpvsNatHop(0, HOST, Hook.INPUT, nat=NAT, owner=OWNER, decision=IpvsDecision(real="10.0.0.3"))
REFUSED = IpvsRefusalHop(0, HOST, Hook.INPUT, verdict=Verdict.REJECT, owner=OWNER, decision=IpvsDecision())
EVERY: list[Hop] = [
    TABLE,
    CHAIN,
    TRANSLATED,
    BY_IPVS,
    REFUSED,
    HookHop(0, HOST, Hook.INPUT, verdict=Verdict.DROP),
    NatHookHop(0, HOST, Hook.INPUT, verdict=Verdict.DROP),
    SocketHop(0, HOST, socket=Socket(1, "LISTEN", 0, "")),
    HandshakeHop(0, HOST, handshake=Handshake("SYN", False, 1, 1, 1)),
    DetailHop(0, HOST, detail=DecisionDetail("route", {})),
    DropHop(0, HOST, verdict=Verdict.DROP, drop=Drop("NO_SOCKET", "tcp_v4_rcv")),
    RedirectHop(0, HOST, redirect=Redirect("eth1", RedirectHelper.PLAIN)),
    RouteHop(0, HOST, route="local"),
]


def test_each_class_is_one_kind_and_each_kind_has_a_class() -> None:
    assert {type(hop) for hop in EVERY} == set(get_args(Hop))
    assert {hop.kind for hop in EVERY} == set(HopKind)


@pytest.mark.parametrize("hop", EVERY, ids=lambda h: type(h).__name__)
def test_a_hop_never_changes_and_has_no_other_fields(hop: Hop) -> None:
    assert not hasattr(hop, "__dict__")
    for each in fields(hop):
        with pytest.raises(FrozenInstanceError):
            setattr(hop, each.name, None)


def test_the_place_of_rules_is_the_base_chain_or_the_hook() -> None:
    assert (TABLE.place, TABLE.base_chain) == ("filter/INPUT", "")
    assert (CHAIN.place, CHAIN.base_chain) == ("ip kube-proxy/filter-input", "filter-input")


def test_what_is_asked_of_a_hop_of_any_kind() -> None:
    assert [hop for hop in EVERY if nat_of(hop)] == [TRANSLATED, BY_IPVS]
    assert [hop for hop in EVERY if owner_of(hop)] == [TABLE, TRANSLATED, BY_IPVS, REFUSED]
    assert [hop for hop in EVERY if trace_of(hop)] == [hop for hop in EVERY if decision_of(hop) is HIT] == [TABLE, TRANSLATED]
    assert [hop for hop in EVERY if is_from_conntrack(hop)] == [TRANSLATED]
    without = [hop.kind for hop in EVERY if not verdict_of(hop)]
    assert without == ["nat", "ipvs", "socket", "clue", "redirect", "route"], "these kinds give no verdict"


def test_an_undecided_trace_has_no_decision() -> None:
    hop = TableHop(0, HOST, Hook.INPUT, table="filter", rule_trace=RuleTrace((HIT,), undecided="the rules were replaced"))
    assert trace_of(hop) and decision_of(hop) is None


@pytest.mark.parametrize(
    ("hop", "is_decisive"),
    [
        (HookHop(0, HOST, verdict=Verdict.ACCEPT), False),
        (HookHop(0, HOST), False),
        (HookHop(0, HOST, verdict=Verdict.STOLEN), True),
        (NatHookHop(0, HOST, verdict=Verdict.ACCEPT), False),
        (TableHop(0, HOST, table="filter", verdict=Verdict.ACCEPT), False),
        (CHAIN, True),
        (IpvsRefusalHop(0, HOST, decision=IpvsDecision()), True),
        (DropHop(0, HOST, drop=Drop("NO_SOCKET", "")), True),
        (DetailHop(0, HOST, detail=DecisionDetail("route", {})), False),
        (DetailHop(0, HOST, detail=DecisionDetail("queue-answer", {})), True),
        (DetailHop(0, HOST, detail=DecisionDetail("queue-refused", {})), True),
        (RouteHop(0, HOST, route="local"), True),
        (RedirectHop(0, HOST, redirect=Redirect("eth1", RedirectHelper.COPY)), True),
    ],
)
def test_hops_that_only_let_the_packet_pass_are_not_decisive(hop: Hop, is_decisive: bool) -> None:
    assert hop.is_decisive is is_decisive


@pytest.mark.parametrize(
    ("stage", "accepted", "verdict", "is_decisive"),
    [
        ("SYN", True, "", True),
        ("SYN", False, "DROP", True),
        ("ACK", None, "", True),
        ("request", True, "", False),
        ("request", None, "", False),
        ("request", False, "DROP", True),
    ],
)
def test_a_handshake(stage: str, accepted: bool | None, verdict: str, is_decisive: bool) -> None:
    hop = HandshakeHop(0, HOST, handshake=Handshake(stage, accepted, 0, 128, 0))
    assert (hop.verdict, hop.is_decisive) == (verdict, is_decisive)


def test_a_predicted_drop_has_no_verdict() -> None:
    assert DropHop(0, HOST, drop=Drop("NO_SOCKET", "")).verdict == ""
