# SPDX-License-Identifier: Apache-2.0
"""A table assembled from text equals the kernel's table: its headers, its matches, its jumps."""

from __future__ import annotations

import struct

import pytest

from tests.support.blobs import R, build
from tests.support.nodes import MODES, nodes
from tracer.model.rule import Rule
from tracer.rules import save_parser
from tracer.rules.iptables.assemble import UnknownOption, assemble
from tracer.rules.iptables.encode import TEXT_REVISION
from tracer.rules.iptables.entry import Entry
from tracer.rules.iptables.rule_parser import format_options, options_of
from tracer.rules.iptables.table import Table

TCP_80 = struct.pack("<HHHHBBBB", 0, 65535, 80, 80, 0, 0, 0, 0)
MARKED = struct.pack("<IIB", 0x4000, 0x4000, 1)


def table(*rules: str, family: str = "ip") -> tuple[Table, dict[int, Rule]]:
    text = "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:MINE - [0:0]\n"
    return assemble(save_parser.parse(text + "".join(f"-A {r}\n" for r in rules), family), family, "filter")


def one(rule: str, family: str = "ip") -> Entry:
    return table(f"MINE {rule}", family=family)[0].rules("MINE")[0]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("-s 10.0.0.0/8 ! -d 10.1.0.0/16 -j ACCEPT", R("ACCEPT", src="10.0.0.0/8", dst="10.1.0.0/16", inverted=16)),
        ("! -i eth0 -o cni+ -j DROP", R("DROP", in_face="eth0", out_face="cni+", inverted=1)),
        ("-p tcp -m tcp --dport 80 -j RETURN", R("RETURN", (("tcp", 0, TCP_80),), protocol=6)),
        ("-m mark ! --mark 0x4000/0x4000 -j ACCEPT", R("ACCEPT", (("mark", 1, MARKED),))),
        ("-p ipencap -j DROP", R("DROP", protocol=4)),
        ("! -p udp -g MINE", R("MINE", protocol=17, inverted=64, goto=True)),
        ("-j MARK --set-xmark 0x4000/0x4000", R("MARK", data=struct.pack("<II", 0x4000, 0x4000), revision=2)),
        ("-m comment --comment \"-j \\\"no\\\" target\"", R("", (("comment", 0, b'-j "no" target\0'),))),
        ("-f -j DROP", R("DROP", fragment=True)),
    ],
)  # fmt: skip
def test_a_rule_is_assembled_as_the_kernel_has_it(text: str, rule: R) -> None:
    """Compared with the blob that iptables would give to the kernel."""
    expected = build({"MINE": [rule]}).table().rules("MINE")[0]
    made = one(text)
    assert made.header == expected.header and made.goto == expected.goto
    for match, expected_match in zip(made.matches, expected.matches, strict=True):
        assert (match.name, match.revision) == (expected_match.name, expected_match.revision)
        assert expected_match.data.startswith(match.data) and not expected_match.data[len(match.data) :].strip(b"\0")
    if rule.target == "MARK":
        assert (made.target.name, made.target.revision, made.target.data) == ("MARK", 2, expected.target.data[:8])
    elif rule.target in ("ACCEPT", "DROP", "RETURN"):
        assert made.verdict == expected.verdict


def test_ipv6_interfaces_and_protocols() -> None:
    made = one("-s fd00::/8 -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT", "ip6")
    expected = build({"MINE": [R("ACCEPT", src="fd00::/8", protocol=58)]}, "ip6").table().rules("MINE")[0]
    assert made.header == expected.header and made.matches[0].data == bytes([128, 0, 255, 0])


def test_jumps_numbers_and_policies() -> None:
    made, rules = table("INPUT -j MINE", "INPUT -p tcp -m multiport --dports 80,8000:8010 -j ACCEPT", "MINE -j DROP")
    first, second = made.rules("INPUT")
    assert made.starts[first.verdict or 0] == "MINE" and (second.chain, second.number) == ("INPUT", 2)
    assert made.policy(1) == "DROP" and made.policy(2) == "ACCEPT"
    assert rules[second.at].text.startswith("-p tcp -m multiport")
    assert second.matches[0].data[:2] == bytes([1, 3]) and struct.unpack_from("<3H", second.matches[0].data, 2) == (
        80,
        8000,
        8010,
    )


def test_options_that_are_not_computed_are_kept_as_text() -> None:
    made = one(
        "-m set ! --match-set KUBE-X dst,dst -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.0.1:80"
    )
    assert [(m.name, m.revision) for m in made.matches] == [("set", TEXT_REVISION), ("statistic", TEXT_REVISION)]
    assert format_options(options_of(made.matches[0])) == "! --match-set KUBE-X dst,dst"
    assert options_of(made.target) == [("--to-destination", False, ["10.0.0.1:80"])]


@pytest.mark.parametrize(
    "text", ["-p nonsense -j DROP", "--what -j DROP", "-s 10.0.0.0/99 -j DROP", '-m comment --comment "open']
)
def test_a_rule_that_is_not_understood_is_reported(text: str) -> None:
    with pytest.raises(UnknownOption, match="MINE 1: "):
        one(text)


@pytest.mark.parametrize("mode", [m for m in MODES if "iptables" in m or "ipvs" in m])
def test_every_rule_of_recorded_nodes_is_understood(mode: str) -> None:
    count = 0
    for each in nodes(mode):
        for name, ruleset in each.rulesets():
            if name.startswith("nft"):
                continue
            for family, table_name in dict.fromkeys((f, t) for f, t, _ in ruleset.chains):
                made, rules = assemble(ruleset, family, table_name)
                count += len(rules)
                assert len(rules) == sum(len(r) for (_, t, _), r in ruleset.chains.items() if t == table_name)
                for chain in made.chains:
                    assert all(made.target_name(at) == rules[at].target for at in made.offsets(chain))
    assert count > 100
