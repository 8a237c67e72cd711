# SPDX-License-Identifier: Apache-2.0
"""The look-ups of one packet: asked each time until they are settled, then answered alike."""

from __future__ import annotations

from tests.support.builders import NODE, POD
from tests.support.shared_paths import CountingNames, CountingOwners
from tracer.packets.lookups import Lookups


def test_answers_that_are_settled_are_not_asked_again() -> None:
    names, owners, functions = CountingNames(), CountingOwners(), list[int]()

    def function(address: int) -> str:
        functions.append(address)
        return hex(address)

    lookups = Lookups(names, owners, function)
    for _ in range(2):
        assert (lookups.name(POD), lookups.owner(48213), lookups.function(16)) == ("pod-a", (4242, "nginx"), "0x10")
    assert names.requests == {POD: 2} and owners.requests == {48213: 2} and functions == [16, 16]
    lookups.settle()
    assert (lookups.name(POD), lookups.owner(48213), lookups.function(16)) == ("pod-a", (4242, "nginx"), "0x10")
    assert (lookups.name(NODE, 5), lookups.owner(48300), lookups.function(17)) == ("node", (4343, "dnsmasq"), "0x11")
    assert names.requests == {POD: 2, NODE: 5} and owners.requests == {48213: 2, 48300: 1} and functions == [16, 16, 17]
    lookups.begin()
    assert (lookups.name(POD), lookups.owner(48213), lookups.function(16)) == ("pod-a", (4242, "nginx"), "0x10")
    assert names.requests[POD] == 3 and owners.requests[48213] == 3 and len(functions) == 4 and lookups.is_consistent


def test_two_answers_to_one_question() -> None:
    lookups = Lookups(CountingNames(after=1), CountingOwners(after=1), str)
    assert [lookups.name(POD), lookups.is_consistent] == ["pod-a", True]
    assert [lookups.name(POD), lookups.is_consistent] == ["pod-b", False]
    lookups.begin()
    assert lookups.is_consistent and lookups.owner(48213) == (0, "")
    assert lookups.owner(48213) == (4242, "nginx") and not lookups.is_consistent
