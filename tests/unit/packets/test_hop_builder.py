# SPDX-License-Identifier: Apache-2.0
"""The hop builder: one event becomes one hop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import hop_fields
from tests.support.builders import NODE, PARTS, POD, Ends, event, hops, swapped
from tracer.events import record
from tracer.events.record import Kind
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import Drop, Handshake, HookHop, Hop, Nat, Socket, nat_of, verdict_of
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.packets.hop_builder import rewrite

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
HALF: Ends = ("192.168.56.1", 40812, "10.244.0.11", 8080)
INSIDE: Ends = ("10.244.0.1", 23711, "10.244.0.11", 8080)
LISTEN, ESTABLISHED = 10, 1


def make(kind: str, **fields: Any) -> Hop:
    e = record.event(event(kind, **{"netns": NODE, "header": CLIENT, "protocol": 6, **fields})[0])
    return hops().make(e)


def test_hook() -> None:
    hop = make("HOOK", hook="FORWARD", time=77, in_name="eth0", out_name="cni0", mark=0x4000)
    assert hop == HookHop(77, HOST, Hook.FORWARD, verdict=Verdict.ACCEPT, in_iface="eth0", out_iface="cni0", mark=0x4000)


def test_names_end_at_the_first_zero_byte() -> None:
    """A renamed device keeps the end of its longer old name after the zero byte of the new name."""
    assert make("HOOK", hook="INPUT", in_name=b"eth0\0\0\0\0a1b2").in_iface == "eth0"
    assert make("HOOK", hook="OUTPUT", out_name=b"lo\0h0").out_iface == "lo"
    chain = make("CHAIN", hook="INPUT", table=b"nat\0gle", chain=b"in\0put")
    assert (hop_fields.table(chain), hop_fields.chain(chain)) == ("nat", "in")


def test_names_that_are_longer_than_the_field() -> None:
    """A name that was cut is shown as cut."""
    cut = make("CHAIN", hook="INPUT", table="t" * 31, chain="c" * 31, manip=3)
    assert (hop_fields.table(cut), hop_fields.chain(cut)) == ("t" * 31 + "…", "c" * 31 + "…")
    whole = make("CHAIN", hook="INPUT", table="t" * 31, chain="c" * 31)
    assert (hop_fields.table(whole), hop_fields.chain(whole)) == ("t" * 31, "c" * 31)


def test_names_need_not_be_text() -> None:
    assert make("HOOK", hook="INPUT", in_name=b"caf\xe9").in_iface == "caf\udce9"


def test_table_and_chain() -> None:
    table = make("TABLE", hook="INPUT", table="filter", verdict="DROP")
    assert (table.kind, hop_fields.table(table), hop_fields.chain(table), table.hook, verdict_of(table)) == (
        "table",
        "filter",
        "",
        "INPUT",
        "DROP",
    )
    chain = make("CHAIN", hook="FORWARD", table="kube-proxy", chain="filter-forward")
    assert (chain.kind, hop_fields.table(chain), hop_fields.chain(chain), verdict_of(chain)) == (
        "chain",
        "kube-proxy",
        "filter-forward",
        "ACCEPT",
    )


@pytest.mark.parametrize(
    ("reason", "header", "text"),
    [
        (3, CLIENT, "icmp-port-unreachable"), (13, CLIENT, "icmp-admin-prohibited"), (200, CLIENT, "icmp code 200"),
        (4, ("fd00::1", 1, "fd00::2", 2), "icmp6-port-unreachable"), (1, ("fd00::1", 1, "fd00::2", 2), "icmp6-adm-prohibited"),
        (256, CLIENT, "tcp-reset"), (256, ("fd00::1", 1, "fd00::2", 2), "tcp-reset"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["TABLE", "CHAIN"])
def test_reject(kind: str, reason: int, header: Ends, text: str) -> None:
    hop = make(kind, hook="INPUT", verdict="DROP", flags="REJECT", reason=reason, header=header)
    assert (verdict_of(hop), hop_fields.reject(hop)) == ("REJECT", text)


# The manipulation that nf_nat_manip_pkt starts: 0 source, 1 destination, +2 in the reply direction.
@pytest.mark.parametrize(
    ("manip", "flags", "before", "after", "kind"),
    [
        (1, "", CLIENT, HALF, "DNAT"),
        (0, "", HALF, INSIDE, "SNAT"),
        (0, "MASQ", HALF, INSIDE, "MASQUERADE"),
        (3, "", swapped(INSIDE), swapped(HALF), "reverse SNAT"),
        (3, "MASQ", swapped(INSIDE), swapped(HALF), "reverse MASQUERADE"),
        (2, "", swapped(HALF), swapped(CLIENT), "reverse DNAT"),
    ],
)
def test_rewrite(manip: int, flags: str, before: Ends, after: Ends, kind: str) -> None:
    fields = {"orig": CLIENT, "reply": swapped(INSIDE), "protocol": 6}
    e = record.event(event("NAT", header=before, manip=manip, flags=flags, **fields)[0])
    assert rewrite(e) == Nat(kind, Endpoints(*before), Endpoints(*after))


def test_rewrite_of_a_ping_has_no_ports() -> None:
    ping: Ends = ("10.244.0.11", 77, "8.8.8.8", 8 << 8)
    answer: Ends = ("8.8.8.8", 77, "192.168.56.10", 0)
    hop = make("NAT", hook="POSTROUTING", header=ping, orig=ping, reply=answer, manip=0, flags="MASQ", protocol=1)
    assert nat_of(hop) == Nat(
        "MASQUERADE", Endpoints("10.244.0.11", 0, "8.8.8.8", 0), Endpoints("192.168.56.10", 0, "8.8.8.8", 0)
    )
    assert hop.evidence == Evidence.DERIVED


def test_socket() -> None:
    hop = make("SOCKET", object=48213, state=LISTEN, netns=POD)
    assert (hop.kind, hop.netns, hop_fields.socket(hop)) == ("socket", "pod-a", Socket(48213, "LISTEN", 4242, "nginx"))
    assert hop.evidence == Evidence.OBSERVED
    assert hop_fields.socket(make("SOCKET", object=48300, state=7, protocol=17)) == Socket(48300, "", 4343, "dnsmasq")
    assert hop_fields.socket(make("SOCKET", object=1, state=ESTABLISHED)) == Socket(1, "ESTABLISHED", 0, "")
    unknown = make("SOCKET", object=1, state=LISTEN)
    assert (hop_fields.socket(unknown), unknown.evidence) == (Socket(1, "LISTEN", 0, ""), Evidence.OBSERVED), (
        "no other listener's"
    )


def test_a_connection_before_accept_belongs_to_its_listener() -> None:
    maker = hops()
    listens, waits, elsewhere = (
        record.event(event("SOCKET", object=o, state=s, header=CLIENT, netns=n, protocol=6)[0])
        for o, s, n in ((48213, LISTEN, POD), (0, ESTABLISHED, POD), (0, ESTABLISHED, NODE))
    )
    maker.make(listens)
    hop = maker.make(waits)
    assert hop_fields.socket(hop) == Socket(0, "ESTABLISHED", 4242, "nginx")
    assert hop.evidence == Evidence.DERIVED
    assert hop_fields.socket(maker.make(elsewhere)) == Socket(0, "ESTABLISHED", 0, ""), "not the listener of this namespace"


@pytest.mark.parametrize(("verdict", "accepted", "word"), [(0, False, "DROP"), (1, True, ""), (255, None, "")])
@pytest.mark.parametrize(("kind", "stage"), [("SYN", "SYN"), ("ACCEPT", "ACK"), ("REQUEST", "request")])
def test_handshake(kind: str, stage: str, verdict: int, accepted: bool | None, word: str) -> None:
    hop = make(kind, verdict=verdict, accept_len=2, accept_max=128, syn_len=3, flags="NO_HEADER")
    assert (hop.kind, verdict_of(hop)) == ("handshake", word)
    assert hop_fields.handshake(hop) == Handshake(stage, accepted, 2, 128, 3)


def test_drop() -> None:
    assert hop_fields.drop(make("DROP", reason=2, object=0x20)) == Drop("NO_SOCKET", "tcp_v4_rcv")
    assert hop_fields.drop(make("DROP", reason=999, object=0x99)) == Drop("999", ""), "a reason that this kernel does not name"
    assert hop_fields.drop(make("DROP", object=0x10)) == Drop("", "nf_hook_slow"), "before 5.17"
    assert hop_fields.drop(make("DROP", reason=7, object=0x20, flags="AT_SOCKET")) == Drop(
        "TCP_RESET", "tcp_v4_rcv", after_socket=True
    )
    assert verdict_of(make("DROP")) == "DROP"
    assert make("DROP").hook == ""


def test_clone_and_unknown_namespace() -> None:
    hop = make("HOOK", hook="INPUT", flags="CLONE", netns=999)
    assert (hop.clone, hop.netns) == (True, "netns 999")
    assert not make("HOOK", hook="INPUT").clone


def test_every_kind_of_event_has_a_hop() -> None:
    hops_of = {kind.name: make(kind.name.removeprefix("EVENT_")).kind for kind in Kind if kind not in (*PARTS, Kind.EVENT_CLUE)}
    assert hops_of == {
        "EVENT_HOOK": "hook", "EVENT_TABLE": "table", "EVENT_CHAIN": "chain", "EVENT_NAT": "nat",
        "EVENT_NAT_HOOK": "nat-hook", "EVENT_SOCKET": "socket", "EVENT_SYN": "handshake", "EVENT_ACCEPT": "handshake",
        "EVENT_REQUEST": "handshake", "EVENT_DROP": "drop", "EVENT_IPVS": "ipvs", "EVENT_REDIRECT": "redirect",
        "EVENT_REWRITE": "nat",
    }  # fmt: skip
