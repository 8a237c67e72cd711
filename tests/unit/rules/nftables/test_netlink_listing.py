# SPDX-License-Identifier: Apache-2.0
"""The listing made from netlink alone is that of `nft -j` for the same rules, and what is not decoded is unknown."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from tests.support.nft_recordings import RecordedNfnetlink, Recording, recording
from tracer.model.rule import ChainKey
from tracer.node.nfnetlink import Nfnetlink
from tracer.rules.nftables import json_parser, netlink_dump, netlink_listing
from tracer.rules.nftables.expressions.registers import has_unknown
from tracer.rules.nftables.json_parser import NftListing
from tracer.rules.nftables.netlink_dump import SetElements
from tracer.rules.nftables.netlink_sets import UnreadElements


def listing(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> tuple[NftListing, RecordedNfnetlink]:
    kernel = RecordedNfnetlink(recorded)
    monkeypatch.setattr(netlink_dump, "Nfnetlink", lambda: kernel)
    dump = netlink_dump.read(cast("Nfnetlink", kernel))
    kernel.elements_read.clear()
    return netlink_listing.listing(dump, SetElements(dump.generation)), kernel


def without_counts(body: Any) -> list[Any]:
    """The expressions without the counts of counters, which went on between the two readings."""
    return [{"counter": None} if isinstance(each, dict) and isinstance(each.get("counter"), dict) else each for each in body]


@pytest.mark.parametrize("name", ["kube-proxy-1.36", "kube-proxy-1.30", "expressions"])
def test_rules_sets_and_maps_are_those_of_nft(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recording(name)
    found, _ = listing(recorded, monkeypatch)
    of_nft = json_parser.parse(recorded.listed)
    assert set(found.expressions) == set(of_nft.expressions) and len(of_nft.expressions) > 50
    for handle, body in of_nft.expressions.items():
        assert without_counts(found.expressions[handle]) == without_counts(body), handle
    for key, rules in of_nft.ruleset.chains.items():
        assert tuple(found.ruleset.chains[key]) == rules
    assert set(found.ruleset.chains) == set(of_nft.ruleset.chains)
    assert dict(found.ruleset.policies) == dict(of_nft.ruleset.policies)
    assert sorted(found.bases, key=str) == sorted(of_nft.bases, key=str)
    assert dict(found.maps) == dict(of_nft.maps)
    assert {key: set(map(json.dumps, known)) for key, known in found.sets.items()} == {
        key: set(map(json.dumps, known)) for key, known in of_nft.sets.items()
    }
    assert not any(has_unknown(body) for body in found.expressions.values())


def test_a_text_has_the_counter_that_nft_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that only counts would have no text."""
    recorded = recording("expressions")
    kernel = RecordedNfnetlink(recorded)
    monkeypatch.setattr(netlink_dump, "Nfnetlink", lambda: kernel)
    dump = netlink_dump.read(cast("Nfnetlink", kernel))
    texts = netlink_listing.RuleTexts(dump, SetElements(dump.generation))
    counted = 0
    for (*key, handle), body in json_parser.parse(recorded.listed).expressions.items():
        family, table, chain = key
        of_chain = (family, table, chain)
        text = texts.text(of_chain, list(dump.chains[of_chain].handles).index(handle))
        is_shown = any("counter" in each for each in body)
        assert ("counter" in text.split(' comment "')[0].split()) == is_shown, text
        counted += is_shown
    assert counted > 1


def test_what_is_not_decoded_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = listing(recording("undecoded"), monkeypatch)
    rules = {rule.text for key in found.ruleset.chains for rule in found.ruleset.chains[key]}
    assert rules == {
        "return",
        "(unknown: socket) (unknown: register) (unknown: constant) accept",
        "(unknown: meta key 32) >= (unknown: constant) (unknown: meta key 32) <= (unknown: constant) drop",
        "(unknown: dynset with limit) drop",
        "tcp dport 80 drop",
        "(unknown: exthdr)",
        "(unknown: rt) (unknown: constant) accept",
        "meta iifname (unknown: elements (they are beginnings of names)) jump x",
    }
    of_nft = json_parser.parse(recording("undecoded").listed)
    assert {h: known[-1] for h, known in found.expressions.items() if "verdict" not in known[-1]} == {
        h: known[-1] if len(found.expressions[h]) > 1 or known[-1] == {"return": None} else {"unknown": "exthdr"}
        for h, known in of_nft.expressions.items()
    }, "what is known after it is kept"


def test_unnamed_maps_are_read_on_demand_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them would take time by the square of their number."""
    monkeypatch.setattr(netlink_dump, "MOST_SETS_READ", 5)
    recorded = recording("kube-proxy-1.36")
    found, kernel = listing(recorded, monkeypatch)
    texts = [rule.text for key in found.ruleset.chains for rule in found.ruleset.chains[key]]
    assert "meta l4proto tcp dnat ip to numgen random mod 1 map @__map0" in texts
    assert kernel.elements_read == []
    key: ChainKey = ("ip", "kube-proxy", "__map0")
    assert [known.verdict for known in found.maps[key].elements.values()] == ["192.168.56.10 . 6443"]
    assert kernel.elements_read == ["__map0"] and found.maps[key] is found.maps[key]


def test_elements_are_not_read_after_a_change_of_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    found, kernel = listing(recording("kube-proxy-1.36"), monkeypatch)
    kernel.generations = [7777] * 100
    assert ("ip", "kube-proxy", "service-ips") not in dict.fromkeys(k for k in found.maps if found.maps.get(k))
    rule = next(r for r in found.ruleset.chain("ip", "kube-proxy", "service-2QRHZV4L-default/kubernetes/tcp/https"))
    assert rule.text.endswith("mod 1 map (unknown: elements (the rules have changed since))")


def test_elements_are_read_up_to_a_bound_and_not_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = RecordedNfnetlink(recording("kube-proxy-1.36"))
    monkeypatch.setattr(netlink_dump, "Nfnetlink", lambda: kernel)
    elements = SetElements(kernel._body["generation"])
    assert len(elements.read(("ip", "kube-proxy", "service-ips"))) == 3
    monkeypatch.setattr(netlink_dump, "MOST_ELEMENTS", 4)
    with pytest.raises(UnreadElements, match="there are more than 4 in all sets"):
        elements.read(("ip", "kube-proxy", "service-nodeports"))
    assert len(elements.read(("ip", "kube-proxy", "service-ips"))) == 3, "what was read stays"
    with pytest.raises(UnreadElements, match="they were not read"):
        elements.read(("ip", "kube-proxy", "cluster-ips"))
