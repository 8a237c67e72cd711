# SPDX-License-Identifier: Apache-2.0
"""Rules from netlink messages; the tests build the kernel's answers by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tracer.node.nfnetlink import Message, Nfnetlink, TooManyMessages, attribute, attributes, items, number, text
from tracer.rules.nftables import netlink_dump
from tracer.rules.nftables.netlink_dump import DumpedRule, dumped_rule
from tracer.rules.nftables.netlink_sets import VERDICT_TYPE, SetDefinition


def expression(name: str, *data: bytes) -> bytes:
    return attribute(1, [attribute(1, name), attribute(2, data)])


def rule(*expressions: bytes, comment: str = "", handle: int = 7) -> DumpedRule:
    raw = attribute(3, handle.to_bytes(8, "big")) + attribute(4, expressions)
    if comment:
        raw += attribute(7, bytes([2, 1, 0, 0, len(comment) + 1]) + comment.encode() + b"\0")
    return dumped_rule(attributes(raw))


def verdict(code: int, chain: str = "") -> bytes:
    inner = [attribute(1, code & 0xFFFFFFFF), *([attribute(2, chain)] if chain else [])]
    return expression("immediate", attribute(1, 0), attribute(2, [attribute(2, inner)]))


@pytest.mark.parametrize(
    ("expressions", "target"),
    [
        ([verdict(1)], "ACCEPT"), ([verdict(0)], "DROP"), ([verdict(-5)], "RETURN"), ([verdict(-3, "next")], "next"),
        ([expression("counter")], ""), ([expression("masq")], "MASQUERADE"), ([expression("reject")], "REJECT"),
        ([expression("target", attribute(1, "DNAT"))], "DNAT"),
        ([expression("nat", attribute(1, 1))], "DNAT"), ([expression("nat", attribute(1, 0))], "SNAT"),
        ([expression("meta", attribute(2, 3), attribute(3, 1))], "MARK"),
        ([expression("meta", attribute(1, 1), attribute(2, 3))], ""),
        ([expression("counter"), verdict(-4, "other")], "other"),
    ],
)  # fmt: skip
def test_targets(expressions: list[bytes], target: str) -> None:
    assert rule(*expressions) == DumpedRule(7, "", target)


def test_comments_of_both_kinds() -> None:
    assert rule(verdict(1), comment="hello").comment == "hello"
    match = expression("match", attribute(1, "comment"), attribute(2, 0), attribute(3, b"default/x:http\0\0\0junk"))
    assert rule(match, verdict(1)).comment == "default/x:http"
    second = expression("match", attribute(1, "comment"), attribute(2, 0), attribute(3, b"another\0"))
    assert rule(match, second, verdict(1)).comment == "default/x:http", "the one that iptables-nft-save shows first"


def test_matches_that_may_hotdrop_a_packet() -> None:
    matches = [expression("match", attribute(1, name)) for name in ("comment", "multiport", "addrtype")]
    assert rule(*matches, verdict(1)).matches == ("multiport",)


@pytest.mark.parametrize(("register", "offset"), [(1, 0), (2, 16), (8, 0), (9, 4), (12, 16)])
def test_the_register_of_a_verdict_maps_key(register: int, offset: int) -> None:
    lookup = expression("lookup", attribute(1, "services"), attribute(2, register), attribute(3, 0))
    assert rule(lookup).lookup == ("services", offset)
    assert rule(expression("lookup", attribute(1, "a-set"), attribute(2, 1))).lookup is None
    assert rule(expression("lookup", attribute(1, "a-map"), attribute(2, 1), attribute(3, 1))).lookup is None


def test_a_key_that_may_be_gone_from_the_registers() -> None:
    """After "continue" the rule goes on: it may overwrite the register, or look up another verdict."""
    lookup = expression("lookup", attribute(1, "services"), attribute(2, 1), attribute(3, 0))
    mark = expression("meta", attribute(2, 3), attribute(3, 1))
    assert rule(lookup, expression("counter"), expression("log")).lookup == ("services", 0)
    assert rule(lookup, expression("immediate", attribute(1, 1)), mark).lookup is None
    assert rule(lookup, verdict(1)).lookup is None
    assert rule(lookup, lookup).lookup is None


def test_attributes_are_read_as_they_are_written() -> None:
    raw = attribute(1, 5) + attribute(2, "abc") + attribute(3, [attribute(1, b"x"), attribute(1, b"yz")])
    found = attributes(raw)
    assert (number(found[1]), text(found[2])) == (5, "abc")
    assert [value for _, value in items(found[3])] == [b"x", b"yz"]
    assert attributes(b"\0\0\0\0") == {} and attributes(b"") == {}
    assert number(None) == 0 and text(None) == ""


def test_a_socket_is_closed_at_the_end_of_its_block() -> None:
    try:
        with Nfnetlink() as nfnetlink:
            pass
    except OSError:
        pytest.skip("this kernel has no nfnetlink")
    with pytest.raises(OSError):
        nfnetlink.dump(1)


class Endless:
    """A kernel with two verdict maps; the second one never ends.

    Attributes:
        sent: Elements sent so far.
    """

    def __init__(self) -> None:
        self.sent = 0

    def sets(self) -> list[tuple[str, bytes]]:
        return [(name, attribute(1, "t") + attribute(2, name) + attribute(6, VERDICT_TYPE)) for name in ("few", "many")]

    def iter_dump(self, kind: int, family: int, attrs: bytes) -> Iterator[Message]:
        for number_ in count() if b"many" in attrs else range(3):
            self.sent += 1
            elements = attribute(3, [attribute(1, [attribute(1, [attribute(1, number_)])])])
            yield kind, family, elements


def test_verdict_maps_are_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink_dump, "MOST", 50)
    kernel: Any = Endless()
    with pytest.raises(TooManyMessages, match="verdict maps have more than 50 elements"):
        netlink_dump._maps(kernel, {("ip", "t", name): SetDefinition(raw) for name, raw in kernel.sets()})
    assert kernel.sent == 51
