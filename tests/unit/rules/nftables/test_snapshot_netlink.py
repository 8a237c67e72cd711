# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a running trace where nft cannot be used: the texts come from netlink, also after the reading has ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.nft_recordings import RecordedNfnetlink, recording
from tracer.node import tools
from tracer.node.nfnetlink import DumpInterrupted
from tracer.rules.nftables import json_parser, listing, netlink_dump, snapshot
from tracer.rules.nftables.nft_tool import NftTool
from tracer.rules.nftables.snapshot import RulesetChanging
from tracer.util.worker import Warnings

SERVICE = ("ip", "kube-proxy", "service-2QRHZV4L-default/kubernetes/tcp/https")


class Printed:
    """A tool that prints "printed" for each rule."""

    def __init__(self, sets: int) -> None:
        self.why_unused = ""

    def __call__(self, family: str, table: str) -> Mapping[int, str]:
        return dict.fromkeys(range(1000), "printed")


def without_counter(text: str) -> str:
    """The text as it is made of nft's JSON, which has counters with their counts."""
    return " ".join(word for word in text.split(" ") if word != "counter")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Warnings:
    warnings = Warnings()
    monkeypatch.setattr(snapshot, "user_warnings", warnings)
    return warnings


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Warnings) -> RecordedNfnetlink:
    found = RecordedNfnetlink(recording("kube-proxy-1.36"))
    monkeypatch.setattr(snapshot, "Nfnetlink", lambda: found)
    monkeypatch.setattr(netlink_dump, "Nfnetlink", lambda: found)
    monkeypatch.setattr(tools, "DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(listing, "nft_tool", NftTool())
    return found


def test_texts_without_nft(kernel: RecordedNfnetlink, said: Warnings) -> None:
    number, found = snapshot.read_here(0, ())
    assert found and found.number == number
    before = len(kernel.elements_read)
    of_nft = json_parser.parse(recording("kube-proxy-1.36").listed).ruleset
    for key, rules in of_nft.chains.items():
        texts = [without_counter(rule.text) for rule in found.ruleset.chains[key]]
        assert texts == [rule.text for rule in rules]
    assert len(kernel.elements_read) == before, "a text is decoded in another network namespace"
    assert said.read() == ["The rules of nftables are read through netlink alone, without nft: nft is not installed."]
    snapshot.read_here(0, ())
    assert said.read() == [], "once"


def test_the_rules_of_a_large_node(kernel: RecordedNfnetlink, said: Warnings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink_dump, "MOST_SETS_READ", 5)
    monkeypatch.setattr("tracer.rules.nftables.nft_tool.MOST_SETS_READ", 5)
    _, found = snapshot.read_here(0, ())
    assert found and not any(name.startswith("__") for name in kernel.elements_read)
    (rule,) = found.ruleset.chains[SERVICE]
    assert rule.text == "meta l4proto tcp dnat ip to numgen random mod 1 map @__map0" and rule.target == "DNAT"
    (sentence,) = said.read()
    assert "there are 18 sets and maps, and nft takes time by the square of their number" in sentence
    lookups = {found.rules[handles].text for handles in found.lookups}
    assert "ip daddr . meta l4proto . th dport vmap @service-ips" in lookups, "named verdict maps have their elements"


def test_rules_that_change_are_read_again_a_few_times(kernel: RecordedNfnetlink) -> None:
    kernel.faults = [DumpInterrupted(), DumpInterrupted()]
    _, found = snapshot.read_here(0, ())
    assert found and not kernel.faults
    kernel.faults = [DumpInterrupted()] * 50
    with pytest.raises(RulesetChanging):
        snapshot.read_here(0, ())
    assert len(kernel.faults) == 50 - snapshot.TRIES


def test_rules_that_change_while_the_tools_print_them(kernel: RecordedNfnetlink, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tool printed may be of the later rules, so the rules that were dumped have the kernel's description."""
    monkeypatch.setattr(listing, "Listings", Printed)
    now, printed = snapshot.read_here(0, ())
    kernel.generations = [now] * 3 + [now + 1]
    number, changed = snapshot.read_here(0, ())
    assert printed and changed and (number, changed.number) == (now, now) and not kernel.generations
    before, after = ({rule.text for rule in found.rules.values()} for found in (printed, changed))
    assert before == {"printed"} and not printed.is_unprinted
    assert "ip daddr . meta l4proto . th dport vmap @service-ips" in after and changed.is_unprinted


def test_rules_are_dumped_again_if_they_change_during_the_dump(kernel: RecordedNfnetlink) -> None:
    """Each part of a dump is consistent, but the rules may change between two parts."""
    now, _ = snapshot.read_here(0, ())
    kernel.generations = [now - 1, now - 1, now]
    number, found = snapshot.read_here(0, ())
    assert found and number == now and not kernel.generations


def test_without_tools_nothing_is_printed(kernel: RecordedNfnetlink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "Listings", Printed)
    _, found = snapshot.read_here(0, (), prints=False)
    of_nft = json_parser.parse(recording("kube-proxy-1.36").listed).ruleset
    assert found and found.is_unprinted
    for key, rules in of_nft.chains.items():
        texts = [without_counter(rule.text) for rule in found.ruleset.chains[key]]
        assert texts == [rule.text for rule in rules]
