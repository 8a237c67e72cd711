# SPDX-License-Identifier: Apache-2.0
"""Events in Python: names for numbers, addresses, the three tuples."""

from __future__ import annotations

import ipaddress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import Ends, event, raw
from tracer.events import record
from tracer.events.nft_trace import HIT_DTYPE, NftHit
from tracer.events.record import Event
from tracer.model.endpoints import Endpoints

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
ANSWER: Ends = ("10.244.0.11", 8080, "10.244.0.1", 23711)
V6: Ends = ("fd00:56::1", 40812, "fd00:56::10", 30285)


def one(kind: str = "HOOK", **fields: object) -> Event:
    return record.event(event(kind, **fields)[0])


def test_rows_keep_their_fields() -> None:
    e = one("TABLE", time=1 << 50, hop=3, table="filter", header=CLIENT, object=0xFFFFFFFF81000000)
    assert (e.time, e.hop, e.table, e.object) == (1 << 50, 3, b"filter", 0xFFFFFFFF81000000)
    assert e.src == raw("192.168.56.1")
    assert e.dst == raw("192.168.56.10")
    assert e._fields == record.DTYPE.names


def test_rows_come_in_the_order_of_the_batch() -> None:
    batch = np.concatenate([event("HOOK", hop=n) for n in (2, 0, 1)])
    assert [e.hop for e in record.events(batch)] == [2, 0, 1]
    assert list(record.events(batch[:0])) == []


@pytest.mark.parametrize("text", ["10.0.0.0", "255.255.255.255", "0.0.0.0", "fd00::1", "::1", "::", "fe80::1:0"])
def test_address(text: str) -> None:
    assert record.address(raw(text)) == text


@given(st.ip_addresses())
def test_any_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    read = ipaddress.ip_address(record.address(raw(str(address))))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    assert read == (mapped or address)


def test_addresses_that_end_in_zero_are_whole() -> None:
    """A numpy byte string would lose the last bytes of 10.0.0.0."""
    assert record.header(one(header=("10.0.0.0", 1, "fd00::", 2), protocol=17)) == Endpoints("10.0.0.0", 1, "fd00::", 2)


def test_three_tuples() -> None:
    e = one(header=("192.168.56.1", 40812, "10.244.0.11", 8080), orig=CLIENT, reply=ANSWER, protocol=6)
    assert record.header(e) == Endpoints("192.168.56.1", 40812, "10.244.0.11", 8080)
    assert record.original(e) == Endpoints(*CLIENT)
    assert record.reply(e) == Endpoints(*ANSWER)
    assert record.reply(e).reversed == Endpoints("10.244.0.1", 23711, "10.244.0.11", 8080)


def test_icmp_has_no_ports() -> None:
    echo = one(header=("10.0.0.1", 77, "10.0.0.2", 8 << 8), orig=("10.0.0.1", 77, "10.0.0.2", 8 << 8), protocol=1)
    assert record.header(echo) == Endpoints("10.0.0.1", 0, "10.0.0.2", 0)
    assert record.original(echo) == Endpoints("10.0.0.1", 0, "10.0.0.2", 0)


@pytest.mark.parametrize("ct_info", [1, 4])
def test_an_icmp_error_about_a_connection_has_the_connections_ports(ct_info: int) -> None:
    error = one(header=("10.0.0.2", 0, "10.0.0.1", 0x303), orig=CLIENT, reply=ANSWER, protocol=1, ct_info=ct_info)
    assert record.header(error) == Endpoints("10.0.0.2", 0, "10.0.0.1", 0)
    assert record.original(error) == Endpoints(*CLIENT)
    assert record.reply(error) == Endpoints(*ANSWER)


def test_family() -> None:
    assert record.family(one(header=CLIENT)) == "IPv4"
    assert record.family(one(header=V6)) == "IPv6"


@pytest.mark.parametrize(("number", "name"), [(6, "TCP"), (17, "UDP"), (1, "ICMP"), (58, "ICMPv6"), (132, "SCTP"), (99, "99")])
def test_protocol(number: int, name: str) -> None:
    assert record.protocol(one(protocol=number)) == name


@pytest.mark.parametrize(
    ("flags", "text"),
    [(2, "SYN"), (18, "SYN ACK"), (16, "ACK"), (17, "FIN ACK"), (4, "RST"), (24, "PSH ACK"), (0, ""), (0xC2, "SYN")],
)
def test_tcp_flags(flags: int, text: str) -> None:
    assert record.tcp_flags(one(protocol=6, tcp_flags=flags)) == text
    assert record.tcp_flags(one(protocol=17, tcp_flags=flags)) == ""


def test_hooks_and_verdicts() -> None:
    names = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]
    assert [record.hook(one(hook=name)) for name in names] == names
    assert record.hook(one("DROP")) == ""
    around = [(5, 0), (5, 1), (5, 2), (7, 0), (7, 5), (2, 5)]
    hooks = [record.hook(one(hook="INPUT", pf=pf)._replace(hook=hook)) for pf, hook in around]
    assert hooks == ["INGRESS", "EGRESS", "", "PREROUTING", "BROUTING", "INGRESS"]
    verdicts = [record.verdict(one(verdict=n)) for n in (0, 1, 2, 3, 4, 99, 255)]
    assert verdicts == ["DROP", "ACCEPT", "STOLEN", "QUEUE", "REPEAT", "99", ""]


def test_rows_have_the_fields_of_their_record_type() -> None:
    batch = np.concatenate([event("HOOK", hop=1), event("DROP", hop=2), event("CHAIN", hop=3)])
    hit = np.zeros(1, HIT_DTYPE)
    hit[0]["kind"], hit[0]["handle"], hit[0]["to"] = record.Kind.EVENT_NFT_RULE, 42, b"next"
    batch[1:2] = hit.view(record.DTYPE)
    first, second, third = record.events(batch)
    assert isinstance(second, NftHit)
    assert (first.hop, third.hop, third.kind) == (1, 3, record.Kind.EVENT_CHAIN)
    assert (second.kind, second.handle, second.to) == (record.Kind.EVENT_NFT_RULE, 42, b"next")
    assert not hasattr(second, "src") and not hasattr(first, "handle")


@pytest.mark.parametrize("manip", [0, 1, 2, 3])
def test_a_rewrite_does_not_change_the_icmp_type(manip: int) -> None:
    orig: Ends = ("192.168.56.1", 77, "192.168.56.10", 8 << 8)
    reply: Ends = ("10.244.0.11", 99, "10.244.0.1", 0)
    header = orig if manip < 2 else reply
    e = one("NAT", protocol=1, header=header, orig=orig, reply=reply, manip=manip)
    after = record.rewritten(e)
    assert (after.sport, after.dport) == (99 if manip < 2 else 77, header[3])
    new = {0: ("src", "10.244.0.1"), 1: ("dst", "10.244.0.11"), 2: ("src", "192.168.56.10"), 3: ("dst", "192.168.56.1")}[manip]
    assert record.address(getattr(after, new[0])) == new[1]
