# SPDX-License-Identifier: Apache-2.0
"""The kernel's table blobs become chains with numbered rules."""

from __future__ import annotations

import struct

import pytest

from tests.support.blobs import R, build
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.entry import MalformedTable

CHAINS = {
    "INPUT": [R("KUBE-A", src="10.0.0.0/8"), R("ACCEPT")],
    "FORWARD": [R("DROP", in_face="eth+")],
    "KUBE-A": [R("", matches=(("comment", 0, b"why\0".ljust(256, b"\0")),)), R("KUBE-B", goto=True), R("RETURN")],
    "KUBE-B": [],
    "KUBE-C": [R("DNAT", data=bytes(40), revision=2)],
}


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_chains_and_numbers(family: str) -> None:
    chains = {c: [R(**{**vars(r), "src": ""}) for r in rules] for c, rules in CHAINS.items()}
    table = build(chains, family, policies={"FORWARD": "DROP"}).table()
    assert {c: [(e.chain, e.number, table.target_name(e.at)) for e in table.rules(c)] for c in table.chains} == {
        "INPUT": [("INPUT", 1, "KUBE-A"), ("INPUT", 2, "ACCEPT")],
        "FORWARD": [("FORWARD", 1, "DROP")],
        "KUBE-A": [("KUBE-A", 1, ""), ("KUBE-A", 2, "KUBE-B"), ("KUBE-A", 3, "RETURN")],
        "KUBE-B": [],
        "KUBE-C": [("KUBE-C", 1, "DNAT")],
    }
    assert (table.policy(1), table.policy(2)) == ("ACCEPT", "DROP")
    assert [e.goto for e in table.rules("KUBE-A")] == [False, True, False]
    assert table.rules("KUBE-A")[0].comment == "why"


def test_the_position_of_a_targets_data() -> None:
    blob = build(CHAINS, policies={})
    target = blob.table().rules("KUBE-C")[0].target
    assert (target.name, target.revision, len(target.data)) == ("DNAT", 2, 40)
    assert blob.data[target.at - 32 + 2 : target.at - 32 + 6] == b"DNAT"


def test_the_header_of_a_rule() -> None:
    rule = build(CHAINS).table().rules("INPUT")[0].header
    assert (rule.src, rule.src_mask, rule.is_empty) == (10 << 24, 0xFF000000, False)
    assert build(CHAINS).table().rules("INPUT")[1].header.is_empty


def test_counters_make_no_difference() -> None:
    blob = build(CHAINS)
    counted = bytearray(blob.data)
    struct.pack_into("<QQ", counted, 96, 7, 420)
    assert blob.table().is_same(counted)
    struct.pack_into("<I", counted, 0, 7)
    assert not blob.table().is_same(counted)
    assert not blob.table().is_same(bytearray(build({"INPUT": [R("DROP")]}).data))


@pytest.mark.parametrize("cut", [1, 50, 113, 200])
def test_malformed_blobs_are_refused(cut: int) -> None:
    blob = build(CHAINS)
    with pytest.raises(MalformedTable):
        BlobTable("ip", "filter", blob.data[:-cut], blob.hooks, blob.underflows)
    with pytest.raises(MalformedTable):
        BlobTable("ip", "filter", bytes(300), {}, {})


def test_names_are_bytes_and_not_always_text() -> None:
    """A container chooses them; its choice must not stop the reading of the node's rules."""
    blob = build({"INPUT": [R("x" * 5), R("ACCEPT")], "x" * 5: [R("DROP")]})
    blob.data = blob.data.replace(b"x" * 5, b"\xffa\nb\x0b")
    table = blob.table()
    assert list(table.chains) == ["INPUT", "\udcffa\nb\x0b"]
    assert table.target_name(table.rules("INPUT")[0].at) == "\udcffa\nb\x0b"


def test_two_chains_of_one_name() -> None:
    """The kernel allows it; a rule of the wrong chain might be shown."""
    blob = build({"INPUT": [R("AAAA")], "AAAA": [R("DROP")], "BBBB": [R("ACCEPT")]})
    blob.data = blob.data.replace(b"BBBB", b"AAAA")
    with pytest.raises(MalformedTable, match="two chains of filter have the same name"):
        blob.table()
