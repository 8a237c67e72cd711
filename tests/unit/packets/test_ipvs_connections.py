# SPDX-License-Identifier: Apache-2.0
"""IPVS decisions: a choice that was seen, a choice that was not seen, and answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import NODE, SECOND, Ends, Trail, event, hops, packet, packets, raw, swapped
from tracer.events import record
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import Hop, IpvsDecision, IpvsHop, Nat, nat_of, verdict_of
from tracer.packets import ipvs_connections
from tracer.packets.ipvs_connections import PERSISTENT, Act, IpvsConnections

CLIENT: Ends = ("192.168.56.1", 40812, "172.30.253.123", 8080)
SENT: Ends = ("192.168.56.1", 40812, "10.244.0.11", 8080)
INSIDE: Ends = ("10.244.0.1", 23711, "10.244.0.11", 8080)
CONNECTION = 0xFFFF_8000_1234_0000


def ipvs_event(act: int, **fields: Any) -> Any:
    given = {"orig": CLIENT, "reply": swapped(SENT), "protocol": 6, "table": "rr", "object": CONNECTION, "netns": NODE}
    (e,) = record.events(event("IPVS", hook="INPUT", state=act, **{**given, **fields}))
    return e


def test_the_choice_is_observed_and_later_packets_refer_to_it() -> None:
    connections = IpvsConnections()
    server = IpvsDecision("172.30.253.123", 8080, "tcp", "rr", real="10.244.0.11", real_port=8080)
    assert connections.decision(ipvs_event(Act.IPVS_CHOSEN)) == replace(server, chosen="now")
    assert connections.decision(ipvs_event(Act.IPVS_KNOWN)) == replace(server, chosen="earlier")
    assert connections.decision(ipvs_event(Act.IPVS_REPLY)) == replace(server, chosen="earlier")
    elsewhere = ("10.244.0.12", 8080, *CLIENT[:2])
    unseen = connections.decision(ipvs_event(Act.IPVS_KNOWN, reply=elsewhere))
    assert (unseen.real, unseen.chosen, unseen.evidence) == ("10.244.0.12", "earlier", Evidence.DERIVED)


@pytest.mark.parametrize("other", [{"object": 1}, {"netns": 7}, {"protocol": 17}, {"orig": (*CLIENT[:1], 5, *CLIENT[2:])}])
def test_another_connection_is_not_confused_with_a_seen_one(other: dict[str, Any]) -> None:
    """The kernel uses the memory of an ended connection again."""
    connections = IpvsConnections()
    connections.decision(ipvs_event(Act.IPVS_CHOSEN))
    assert connections.decision(ipvs_event(Act.IPVS_KNOWN, **other)).evidence is Evidence.DERIVED


def test_the_number_of_remembered_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipvs_connections, "CONNECTIONS_KEPT", 2)
    connections = IpvsConnections()
    for n in (1, 2, 3):
        connections.decision(ipvs_event(Act.IPVS_CHOSEN, object=n))
    known = [connections.decision(ipvs_event(Act.IPVS_KNOWN, object=n)).evidence for n in (1, 2, 3)]
    assert known == [Evidence.DERIVED, Evidence.OBSERVED, Evidence.OBSERVED]


def test_no_real_server_and_no_reason() -> None:
    connections = IpvsConnections()
    none = connections.decision(ipvs_event(Act.IPVS_NO_SERVER, ct_info=PERSISTENT, reply=None))
    assert none == IpvsDecision("172.30.253.123", 8080, "tcp", "rr", persistent=True)
    assert connections.decision(ipvs_event(Act.IPVS_DROPPED, orig=None, reply=None, table="")) == IpvsDecision()
    by_mark = connections.decision(ipvs_event(Act.IPVS_NO_SERVER, orig=None, reply=None, mark=5, orig_dst=bytes(16)))
    assert (by_mark.virtual, by_mark.virtual_port) == ("fwmark 5", 0)


def sent_on() -> Trail:
    """A SYN to a cluster IP: IPVS takes it in INPUT and sends it by OUTPUT and POSTROUTING, where it is masqueraded."""
    t = Trail(CLIENT, in_name="eth0").hook("PREROUTING")
    given = {"orig": CLIENT, "reply": swapped(SENT), "table": "rr", "object": CONNECTION}
    t.rows.append(event("IPVS", hook="INPUT", state=1, manip=1, packet=t.packet, time=t.time, hop=t.hop, **t.fields, **given))
    t.hop, t.time = t.hop + 1, t.time + 1000
    return t.now(header=SENT, orig=CLIENT, reply=swapped(INSIDE), in_name="", out_name="cni0").hook("OUTPUT")


def test_the_rewrite_of_ipvs_is_confirmed_by_the_next_event() -> None:
    p = packet(sent_on().nat("POSTROUTING", 0, INSIDE, flags="MASQ").hook("POSTROUTING"))
    assert [h.kind for h in p.hops] == ["hook", "ipvs", "hook", "nat", "hook"]
    hop = p.hops[1]
    assert nat_of(hop) == Nat("DNAT", Endpoints(*CLIENT), Endpoints(*SENT)) and hop.evidence is Evidence.OBSERVED
    assert (hop.hook, verdict_of(hop), hop.is_decisive) == ("INPUT", "", True)
    assert (p.verdict, p.outcome) == ("forwarded to cni0", "forwarded")
    assert p.flow and p.flow.reply == Endpoints(*swapped(INSIDE)), "the connection of IPVS is not that of conntrack"


def test_a_rewrite_without_confirmation_is_derived() -> None:
    t = sent_on()
    t.rows.pop()
    assert packet(t).hops[-1].evidence is Evidence.DERIVED


def test_answers_get_the_address_of_the_virtual_server() -> None:
    back = swapped(SENT)
    answer: Any = {"orig": CLIENT, "reply": back, "header": back, "protocol": 6, "netns": NODE, "table": "rr"}
    e = record.event(event("IPVS", hook="FORWARD", state=3, manip=2, **answer)[0])
    hop: Hop = hops().make(e)
    assert nat_of(hop) == Nat("reverse DNAT", Endpoints(*back), Endpoints(*swapped(CLIENT)))
    assert isinstance(hop, IpvsHop) and (hop.decision.virtual, hop.decision.real) == (
        "172.30.253.123",
        "10.244.0.11",
    )


def test_later_packets_of_a_connection_refer_to_its_choice() -> None:
    first = sent_on()
    later = Trail(CLIENT, packet=2 << 8, start=2 * SECOND, in_name="eth0", tcp_flags=16).hook("PREROUTING")
    later.add("IPVS", hook="INPUT", state=2, manip=1, object=CONNECTION, orig=CLIENT, reply=swapped(SENT), table="rr")
    chosen = [h.decision for p in packets(first, later) for h in p.hops if isinstance(h, IpvsHop)]
    assert [(i.chosen, i.evidence.value) for i in chosen] == [("now", "observed"), ("earlier", "observed")]
    assert raw(chosen[0].real) == raw("10.244.0.11")


def test_short_events_are_not_completed_from_the_ipvs_connection() -> None:
    """When the whole event after it was lost, short events have no header, and only the IPVS connection came before them."""
    t = sent_on().hook("POSTROUTING", flags="SAME")
    del t.rows[-2]
    p = packet(t)
    assert not p.complete and p.hops[-1].hook == "POSTROUTING"
    assert not p.flow or p.flow.orig != Endpoints(*CLIENT) or p.flow.reply != Endpoints(*swapped(SENT))
