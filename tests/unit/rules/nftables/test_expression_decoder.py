# SPDX-License-Identifier: Apache-2.0
"""Expressions from netlink: what newer kernels may send, and broken messages, are unknown and never a wrong match."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from tests.support.nft_messages import compared, expression, payload, verdict
from tracer.node.nfnetlink import attribute
from tracer.rules.nftables import expression_decoder, format
from tracer.rules.nftables.expressions.registers import has_unknown
from tracer.rules.nftables.netlink_sets import SetDefinition, UnreadElements

NETWORK, TRANSPORT = 1, 2
TCP = expression("meta", attribute(1, 1), attribute(2, 16)) + compared(1, b"\x06")
DADDR = {"payload": {"protocol": "ip", "field": "daddr"}}


def decode(*expressions: bytes, family: str = "ip") -> list[Any]:
    def unread(name: str) -> list[bytes]:
        raise UnreadElements("they were not read")

    return list(expression_decoder.decode(b"".join(expressions), family, lambda name: None, unread))


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def test_the_test_of_the_protocol_is_shown_only_where_no_field_implies_it() -> None:
    port = match({"payload": {"protocol": "tcp", "field": "dport"}}, 80)
    assert decode(TCP, payload(1, TRANSPORT, 2, 2), compared(1, b"\0\x50"), verdict(1)) == [port, {"accept": None}]
    assert decode(TCP, verdict(0)) == [match({"meta": {"key": "l4proto"}}, "tcp"), {"drop": None}]
    assert decode(payload(1, TRANSPORT, 2, 2), compared(1, b"\0\x50")) == [
        match({"payload": {"protocol": "th", "field": "dport"}}, 80)
    ]


def of_iptables(kind: str, name: str, revision: int, data: bytes) -> bytes:
    return expression(kind, attribute(1, name), attribute(2, revision), attribute(3, data))


def test_matches_and_targets_of_iptables_have_their_options() -> None:
    """nft prints their names only; a rule of kube-proxy would not show where it sends a packet."""
    local = of_iptables("match", "addrtype", 1, struct.pack("<HHI", 0, 4, 0))
    mark = of_iptables("target", "MARK", 2, struct.pack("<II", 0x4000, 0x4000))
    found = decode(local, of_iptables("match", "comment", 0, b"x\0"), mark)
    assert [format.expression(each) for each in found] == [
        'xt match "addrtype" --dst-type LOCAL', 'xt match "comment"', 'xt target "MARK" --set-xmark 0x4000/0x4000',
    ]  # fmt: skip
    unknown = decode(of_iptables("match", "addrtype", 9, bytes(8)), of_iptables("target", "MARK", 2, b""))
    assert [format.expression(each) for each in unknown] == ['xt match "addrtype"', 'xt target "MARK"']
    assert decode(local, family="inet") == [{"xt": {"type": "match", "name": "addrtype"}}]


def test_fields_that_were_loaded_at_once_are_two_matches() -> None:
    """nft joins matches of fields that follow each other."""
    found = decode(payload(1, NETWORK, 12, 8), compared(1, bytes([1, 2, 3, 4, 5, 6, 7, 8])))
    assert found == [match({"payload": {"protocol": "ip", "field": "saddr"}}, "1.2.3.4"), match(DADDR, "5.6.7.8")]
    both = {"concat": [{"payload": {"protocol": "ip", "field": "saddr"}}, DADDR]}
    assert decode(payload(1, NETWORK, 12, 8), compared(1, bytes(8), operation=1)) == [
        match(both, {"concat": ["0.0.0.0", "0.0.0.0"]}, "!=")
    ], "one of them differs: that is no match of each"


def test_a_network_is_shown_as_a_prefix() -> None:
    assert decode(payload(1, NETWORK, 16, 2), compared(1, b"\x0a\x01")) == [
        match(DADDR, {"prefix": {"addr": "10.1.0.0", "len": 16}})
    ]
    bits, xor = (attribute(kind, [attribute(1, raw)]) for kind, raw in ((4, b"\xff\xf0\0\0"), (5, bytes(4))))
    mask = expression("bitwise", attribute(1, 1), attribute(2, 1), attribute(3, 4), bits, xor)
    assert decode(payload(1, NETWORK, 16, 4), mask, compared(1, b"\xac\x10\0\0", operation=1)) == [
        match(DADDR, {"prefix": {"addr": "172.16.0.0", "len": 12}}, "!=")
    ]
    assert decode(payload(1, NETWORK, 16, 4), mask, compared(1, b"\xac\x10\0\x01")) == [
        match({"&": [DADDR, 0xFFF00000]}, "172.16.0.1")
    ], "no address is equal to it after the mask: that is no prefix"


def test_an_expression_that_is_not_known_makes_all_registers_unknown() -> None:
    found = decode(payload(1, NETWORK, 16, 4), expression("brand-new", attribute(1, 1)), compared(1, bytes(4)), verdict(0))
    assert found == [{"unknown": "brand-new"}, match({"unknown": "register"}, {"unknown": "constant"}), {"drop": None}]


@pytest.mark.parametrize(
    "known",
    [
        expression("lookup", attribute(1, "s"), attribute(2, 1), attribute(99, 1)),
        expression("nat", attribute(1, 1), attribute(2, 2), attribute(77, 1)),
        expression("cmp", attribute(1, 1), attribute(2, 0), attribute(3, [attribute(1, bytes(4))]), attribute(4, 1)),
        expression("masq", attribute(1, 0x8000)),
        expression("cmp", attribute(1, 1), attribute(2, 17), attribute(3, [attribute(1, bytes(4))])),
        expression("bitwise", attribute(1, 1), attribute(2, 1), attribute(3, 4), attribute(6, 9)) + compared(1, bytes(4)),
        expression("dynset", attribute(1, "s"), attribute(3, 0), attribute(4, 1)),
        expression("reject", attribute(1, 9)),
        expression("fib", attribute(1, 1), attribute(2, 200), attribute(3, 2)) + compared(1, bytes(4)),
    ],
    ids=["attribute of lookup", "attribute of nat", "attribute of cmp", "flag of masq", "comparison", "bitwise", "set",
         "reject", "fib"],
)  # fmt: skip
def test_what_a_newer_kernel_may_send_is_unknown(known: bytes) -> None:
    assert has_unknown(decode(payload(1, NETWORK, 16, 4), known))


def test_a_register_that_was_overwritten_in_part_is_unknown() -> None:
    """The ports are loaded over the second half of the IPv6 address."""
    address, ports = payload(1, NETWORK, 24, 16), payload(9, TRANSPORT, 0, 2)
    (found,) = decode(address, ports, compared(1, bytes(16)), family="ip6")
    assert has_unknown([found])


def test_a_header_of_an_unknown_family_is_given_by_its_place() -> None:
    (found,) = decode(payload(1, NETWORK, 16, 4), compared(1, bytes([0, 0, 0, 9])), family="netdev")
    assert found == match({"payload": {"base": "nh", "offset": 128, "len": 32}}, 9)


def test_marks_are_written_as_and_xor_and_or() -> None:
    mark = {"meta": {"key": "mark"}}

    def changed(mask: int, xor: int) -> Any:
        data = [attribute(kind, [attribute(1, value.to_bytes(4, "little"))]) for kind, value in ((4, mask), (5, xor))]
        bits = expression("bitwise", attribute(1, 1), attribute(2, 1), attribute(3, 4), *data)
        load, store = (expression("meta", attribute(kind, 1), attribute(2, 3)) for kind in (1, 3))
        (found,) = decode(load, bits, store)
        return found["mangle"]["value"]

    assert changed(0xFFFFBFFF, 0x4000) == {"|": [mark, 0x4000]}
    assert changed(0xFFFFFFFF, 0x4000) == {"^": [mark, 0x4000]}
    assert changed(0xFFF0FFFF, 0) == {"&": [mark, 0xFFF0FFFF]}
    assert changed(0xFFF0FFFF, 0x10000) == {"|": [{"&": [mark, 0xFFF1FFFF]}, 0x10000]}


def test_broken_messages_do_not_stop_the_reading() -> None:
    """Any process with CAP_NET_ADMIN in a namespace of its own writes rules: names, lengths and values are hostile."""
    chance = random.Random(5)
    good = b"".join([TCP, payload(1, TRANSPORT, 2, 2), compared(1, b"\0\x50"), payload(9, NETWORK, 12, 4), verdict(-3, "x"),
                     expression("nat", attribute(1, 1), attribute(2, 2), attribute(3, 1), attribute(5, 2)),
                     expression("ct", attribute(1, 1), attribute(2, 0), attribute(3, b"\x07")),
                     expression("limit", attribute(1, bytes(8)), attribute(2, bytes(8)))])  # fmt: skip
    for _ in range(3000):
        broken = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        decode(bytes(broken[: chance.randrange(len(broken)) + 1]), family=chance.choice(["ip", "ip6", "inet", "bridge"]))


@pytest.mark.parametrize(("types", "why"), [(0, "type of its keys"), (4, "type of its keys"), (12 << 6 | 60, "size of a part")])
def test_keys_of_unknown_type_are_not_guessed(types: int, why: str) -> None:
    definition = SetDefinition(attribute(3, 1) + attribute(4, types) + attribute(5, 8))
    with pytest.raises(UnreadElements, match=why):
        definition.elements([attribute(1, [attribute(1, bytes(8))])])
