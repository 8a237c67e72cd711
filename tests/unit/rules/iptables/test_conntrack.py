# SPDX-License-Identifier: Apache-2.0
"""Match conntrack: computed from the connection that a TABLE event shows, compared with net/netfilter/xt_conntrack.c."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import BtfBuilder
from tests.unit.rules.iptables.test_path_search import PACKET
from tracer.events import cstruct, record
from tracer.events.record import DTYPE, Event
from tracer.events.table_trace import SHAPE_AT, STATUS_CHANGED, WATCHED, Shape
from tracer.kernel import xt_extensions
from tracer.kernel.attach_plan import KernelAbilities
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import Symbols
from tracer.rules.iptables.conntrack import connection_of
from tracer.rules.iptables.entry import Extension
from tracer.rules.iptables.matches import PortTest, compute, port_tests
from tracer.rules.packet_view import ConnectionEnds, ConnectionView

INVALID, ESTABLISHED, RELATED, NEW, SNAT, DNAT, UNTRACKED = 1, 2, 4, 8, 64, 128, 256
"""XT_CONNTRACK_STATE_*."""
STATE, PROTO, ORIGSRC, ORIGDST, REPLSRC, REPLDST, STATUS, EXPIRES = (1 << bit for bit in range(8))
ORIGSRC_PORT, ORIGDST_PORT, REPLSRC_PORT, REPLDST_PORT, DIRECTION, ALIAS = (1 << bit for bit in range(8, 14))
"""XT_CONNTRACK_*."""
EXPECTED, SEEN_REPLY, ASSURED, CONFIRMED = 1, 2, 4, 8
"""IPS_*."""
IS_SNAT, IS_DNAT, CT, KNOWN = (cstruct.define("records/event.h", f"TABLE_{n}") for n in ("SNAT", "DNAT", "CT", "CT_KNOWN"))
STATUS_AT = cstruct.define("records/event.h", "TABLE_STATUS")
PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = range(5)
ENDS4 = ("192.168.56.1", 40001, "10.96.0.10", 80), ("10.244.0.11", 8080, "10.244.0.1", 50393)
ENDS6 = ("fd00:56::1", 40001, "fd00:96::10", 80), ("fd00:10:244::b", 8080, "fd00:10:244::1", 50393)


def octets(address: str) -> bytes:
    """16 bytes, as in an event."""
    made = ip_address(address)
    return made.packed if made.version == 6 else b"\0" * 10 + b"\xff\xff" + made.packed


def ends(src: str, sport: int, dst: str, dport: int) -> ConnectionEnds:
    return ConnectionEnds(octets(src), sport, octets(dst), dport)


def connection(state: int = NEW, reply: bool = False, status: int | None = CONFIRMED, v6: bool = False) -> ConnectionView:
    original, answer = ENDS6 if v6 else ENDS4
    return ConnectionView(state, reply, status, 6, ends(*original), ends(*answer))


def rule(
    states: int = 0, options: int = STATE, inverted: int = 0, revision: int = 3, *, statuses: int = 0, protocol: int = 0,
    networks: tuple[str, ...] = ("", "", "", ""), ports: tuple[tuple[int, int], ...] = ((0, 0),) * 4,
) -> Extension:  # fmt: skip
    """struct xt_conntrack_mtinfo1 to 3."""
    data = b""
    for text in networks:
        net = ip_network(text or "0.0.0.0/0")
        data += net.network_address.packed.ljust(16, b"\0") + net.netmask.packed.ljust(16, b"\0")
    data += struct.pack("<IIH", 0, 0, protocol)
    data += struct.pack("<4H" if revision == 3 else ">4H", *(low for low, _ in ports))
    data += struct.pack("<HH" + ("BB" if revision == 1 else "HH"), options, inverted, states, statuses)
    if revision == 3:
        data += struct.pack("<4H", *(high for _, high in ports))
    return Extension("conntrack", revision, 0, data)


def made(match: Extension, view: ConnectionView | None, family: str = "ip") -> bool | None:
    return compute(match, replace(PACKET, connection=view, family=family), 0)


def event(ct_info: int, bits: int, hook: int = FORWARD, state: int = WATCHED, protocol: int = 6) -> Event:
    (made,) = record.events(np.zeros(1, DTYPE))
    assert isinstance(made, Event)
    (src, sport, dst, dport), (reply_src, reply_sport, reply_dst, reply_dport) = ENDS4
    return made._replace(
        kind=record.Kind.EVENT_TABLE, ct_info=ct_info, manip=bits, hook=hook, state=state, protocol=protocol,
        orig_src=octets(src), orig_sport=sport, orig_dst=octets(dst), orig_dport=dport,
        reply_src=octets(reply_src), reply_sport=reply_sport, reply_dst=octets(reply_dst), reply_dport=reply_dport,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ct_info", "bits", "table", "hook", "state"),
    [
        (0, KNOWN | CT, "filter", FORWARD, ESTABLISHED), (3, KNOWN | CT, "filter", FORWARD, ESTABLISHED),
        (1, KNOWN | CT, "filter", INPUT, RELATED), (4, KNOWN | CT, "filter", INPUT, RELATED),
        (2, KNOWN | CT, "mangle", PREROUTING, NEW), (0, KNOWN, "filter", FORWARD, INVALID),
        (7, KNOWN, "filter", FORWARD, UNTRACKED),
        (2, KNOWN | CT | IS_DNAT, "filter", FORWARD, NEW | DNAT),
        (0, KNOWN | CT | IS_SNAT, "filter", INPUT, ESTABLISHED | SNAT),
        # The bit that this run of the nat table may have set was not set when its rules were asked.
        (2, KNOWN | CT | IS_DNAT, "nat", PREROUTING, NEW), (2, KNOWN | CT | IS_DNAT, "nat", OUTPUT, NEW),
        (2, KNOWN | CT | IS_DNAT | IS_SNAT, "nat", POSTROUTING, NEW | DNAT), (2, KNOWN | CT | IS_SNAT, "nat", INPUT, NEW),
        (2, KNOWN | CT | IS_SNAT, "nat", OUTPUT, NEW | SNAT),
        # Records of older versions and kernels without types do not show it.
        (0, KNOWN, "raw", PREROUTING, INVALID), (2, 0, "filter", FORWARD, None),
        (0, CT | IS_SNAT, "filter", FORWARD, None),
    ],
)  # fmt: skip
def test_state(ct_info: int, bits: int, table: str, hook: int, state: int | None) -> None:
    found = connection_of(event(ct_info, bits, hook), table)
    assert (found.state if found else None) == state


def test_direction() -> None:
    found = [connection_of(event(info, KNOWN | CT), "filter") for info in range(5)]
    assert [view and view.is_reply for view in found] == [False, False, False, True, True]
    assert connection_of(event(7, KNOWN), "filter") == ConnectionView(UNTRACKED), "no connection: no direction, no tuples"


def test_tuples_and_protocol() -> None:
    found = connection_of(event(0, KNOWN | CT), "filter")
    assert found and found.ends == (ends(*ENDS4[0]), ends(*ENDS4[1])) and found.protocol == 6
    for info, protocol, known in ((1, 1, None), (4, 58, None), (1, 6, 6), (0, 1, 1)):
        found = connection_of(event(info, KNOWN | CT, protocol=protocol), "filter")
        assert found and found.protocol == known, "an ICMP error about a connection has another protocol than the connection"
    for shape, known in ((Shape.SHAPE_WHOLE, 6), (Shape.SHAPE_UNKNOWN, None), (Shape.SHAPE_BROKEN, None)):
        found = connection_of(event(0, KNOWN | CT, state=WATCHED | shape << SHAPE_AT), "filter")
        assert found and found.protocol == known, "not all extension headers were read"


@pytest.mark.parametrize(
    ("table", "hook", "bits", "known"),
    [
        ("nat", PREROUTING, IS_DNAT, False), ("nat", PREROUTING, 0, True), ("nat", PREROUTING, IS_SNAT, True),
        ("nat", POSTROUTING, IS_SNAT, False), ("nat", POSTROUTING, IS_DNAT, True), ("nat", INPUT, IS_SNAT, False),
        ("nat", OUTPUT, IS_DNAT, False), ("filter", OUTPUT, IS_DNAT | IS_SNAT, True),
    ],
)  # fmt: skip
def test_the_reply_tuple_that_this_run_may_have_changed_is_not_known(table: str, hook: int, bits: int, known: bool) -> None:
    found = connection_of(event(2, KNOWN | CT | bits, hook), table)
    assert found and (found.reply is not None) == known and found.original


def test_status() -> None:
    bits = KNOWN | CT | (SEEN_REPLY | CONFIRMED) << STATUS_AT
    states = (WATCHED, WATCHED | STATUS_CHANGED, 0)
    known, changed, unwatched = (connection_of(event(0, bits, state=state), "filter") for state in states)
    assert known and known.status == SEEN_REPLY | CONFIRMED
    assert changed and changed.status is None and unwatched and unwatched.status is None


@pytest.mark.parametrize("revision", [1, 2, 3])
@pytest.mark.parametrize(
    ("states", "inverted", "state", "answer"),
    [
        (NEW, 0, NEW, True), (NEW, 0, ESTABLISHED, False), (NEW, STATE, NEW, False), (NEW, STATE, ESTABLISHED, True),
        (ESTABLISHED | RELATED, 0, RELATED, True), (INVALID, 0, INVALID, True), (INVALID, 0, UNTRACKED, False),
        (INVALID, STATE, INVALID, False), (INVALID, STATE, UNTRACKED, True), (DNAT, 0, NEW | DNAT, True),
        (DNAT, 0, NEW | SNAT, False), (SNAT | ESTABLISHED, 0, NEW | SNAT, True),
    ],
)  # fmt: skip
def test_states(states: int, inverted: int, state: int, answer: bool, revision: int) -> None:
    assert made(rule(states, inverted=inverted, revision=revision), connection(state)) is answer


def test_untracked_has_no_bit_in_the_first_revision() -> None:
    assert made(rule(UNTRACKED), ConnectionView(UNTRACKED)) is True
    assert made(rule(255, revision=1), ConnectionView(UNTRACKED)) is False


@pytest.mark.parametrize(
    ("options", "inverted", "reply", "state", "answer"),
    [
        (DIRECTION, 0, False, NEW, True), (DIRECTION, 0, True, ESTABLISHED, False),
        (DIRECTION, DIRECTION, False, NEW, False), (DIRECTION, DIRECTION, True, ESTABLISHED, True),
        # Without a connection the answer is that of --ctstate alone; without --ctstate it is no.
        (DIRECTION, 0, False, INVALID, False), (DIRECTION | STATE, STATE, False, INVALID, True),
        (STATUS | STATE, STATE, False, UNTRACKED, True), (STATUS, 0, False, INVALID, False),
        (EXPIRES, 0, False, INVALID, False),
        # The time until the connection expires is not known, unless another option has decided.
        (EXPIRES, 0, False, NEW, None), (EXPIRES | STATE, STATE, False, NEW, None), (EXPIRES | STATE, 0, False, NEW, False),
        (EXPIRES | DIRECTION, 0, True, ESTABLISHED, False), (EXPIRES | STATUS, 0, False, NEW, False),
        (STATE | ALIAS, STATE, False, NEW, True), (0, 0, False, NEW, True), (1 << 14, 0, False, NEW, None),
    ],
)  # fmt: skip
def test_options(options: int, inverted: int, reply: bool, state: int, answer: bool | None) -> None:
    assert made(rule(0, options, inverted), connection(state, reply)) is answer


@pytest.mark.parametrize("revision", [1, 2, 3])
@pytest.mark.parametrize(
    ("option", "matching", "other"),
    [
        (ORIGSRC, "192.168.56.0/24", "192.168.57.0/24"), (ORIGDST, "10.96.0.10/32", "10.96.0.11/32"),
        (REPLSRC, "10.244.0.8/29", "10.244.0.0/29"), (REPLDST, "10.244.0.1/32", "10.244.0.11/32"),
    ],
)  # fmt: skip
def test_addresses(option: int, matching: str, other: str, revision: int) -> None:
    place = (ORIGSRC, ORIGDST, REPLSRC, REPLDST).index(option)
    for network, answer in ((matching, True), (other, False)):
        networks = tuple(network if n == place else "" for n in range(4))
        assert made(rule(0, option, revision=revision, networks=networks), connection()) is answer
        assert made(rule(0, option, option, revision, networks=networks), connection()) is not answer


@pytest.mark.parametrize(
    ("place", "network", "answer"),
    [
        (0, "fd00:56::/64", True), (0, "fd00:57::/64", False), (1, "fd00:96::10/128", True), (1, "::/1", False),
        (3, "fd00:10:244::/64", True), (3, "fd00:10:244::b/128", False),
    ],
)  # fmt: skip
def test_addresses_of_ipv6(place: int, network: str, answer: bool) -> None:
    match = rule(0, ORIGSRC << place, networks=tuple(network if n == place else "::/0" for n in range(4)))
    assert made(match, connection(v6=True), "ip6") is answer


@pytest.mark.parametrize("place", range(4))
def test_ports(place: int) -> None:
    port = (40001, 80, 8080, 50393)[place]
    option = ORIGSRC_PORT << place
    for low, high, answer in ((port, port, True), (port - 1, port + 1, True), (port + 1, 65535, False), (0, port - 1, False)):
        match = rule(0, option, ports=tuple((low, high) if n == place else (0, 0) for n in range(4)))
        assert made(match, connection()) is answer
        assert port_tests(match) == (PortTest(2 + place, low, high),)
        assert replace(PACKET, connection=connection()).ports[2 + place] == port
    for revision in (1, 2):
        for low, answer in ((port, True), (port + 1, False)):
            match = rule(0, option, revision=revision, ports=tuple((low, 0) if n == place else (0, 0) for n in range(4)))
            assert made(match, connection()) is answer
            assert port_tests(match) == (PortTest(2 + place, low, low),)


def test_protocol() -> None:
    assert [made(rule(0, PROTO, protocol=p), connection()) for p in (6, 17)] == [True, False]
    assert [made(rule(0, PROTO, PROTO, protocol=p), connection()) for p in (6, 17)] == [False, True]
    assert made(rule(0, PROTO, protocol=6), connection()._replace(protocol=None)) is None


@pytest.mark.parametrize(
    ("asked", "status", "answer"),
    [
        (ASSURED, CONFIRMED, False), (ASSURED | CONFIRMED, CONFIRMED, True), (0, CONFIRMED, False), (SEEN_REPLY, None, None),
        # Other bits of the status can be named by other programs than iptables.
        (1 << 4, CONFIRMED, None), (1 << 4 | CONFIRMED, CONFIRMED, True),
    ],
)  # fmt: skip
def test_statuses(asked: int, status: int | None, answer: bool | None) -> None:
    for inverted in (0, STATUS):
        expected = answer if answer is None or not inverted else not answer
        assert made(rule(0, STATUS, inverted, statuses=asked), connection(status=status)) is expected


def test_a_tuple_that_is_not_known() -> None:
    view = connection()._replace(reply=None)
    assert made(rule(0, REPLSRC), view) is None and made(rule(0, REPLDST_PORT), view) is None
    assert made(rule(0, REPLSRC | ORIGDST, networks=("", "1.1.1.1/32", "", "")), view) is False, "another option decides"
    assert replace(PACKET, connection=view).ports == (4000, 80, 40001, 80, 0, 0)


def test_a_revision_that_is_not_known() -> None:
    assert made(Extension("conntrack", 0, 0, bytes(200)), connection()) is None


@pytest.mark.parametrize("described", [True, False])
def test_it_is_watched_only_where_it_cannot_be_computed(tmp_path: Path, described: bool) -> None:
    vmlinux = BtfBuilder()
    skb, par = (vmlinux.pointer(vmlinux.struct(n, 8, {})) for n in ("sk_buff", "xt_action_param"))
    if described:
        vmlinux.struct("nf_conn", 8, {})
    (tmp_path / "vmlinux").write_bytes(vmlinux.blob())
    module = BtfBuilder(vmlinux)
    module.function("conntrack_mt_v3", {"skb": skb, "par": par})
    (tmp_path / "xt_conntrack").write_bytes(module.blob())
    symbols = Symbols(["0000000000000000 t conntrack_mt_v3\t[xt_conntrack]"])
    found = xt_extensions.plan(KernelTypes(tmp_path), symbols, KernelAbilities(True, True))
    assert [row.symbol for row in found] == ([] if described else ["conntrack_mt_v3"])
