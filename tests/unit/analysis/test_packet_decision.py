# SPDX-License-Identifier: Apache-2.0
"""What decided about a packet."""

from __future__ import annotations

from tests.support import sample_packets
from tests.support.sample_packets import with_hop
from tracer.analysis.packet_decision import decision
from tracer.model.bpf_program import AttachedProgram
from tracer.model.evidence import Evidence
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace

HIT = RuleHit(
    (RuleLocation("PREROUTING", 1), RuleLocation("KUBE-SEP-X", 2)),
    Rule("ip", "nat", "KUBE-SEP-X", 2, "-j DNAT"),
    "DNAT",
    Evidence.DERIVED,
)
NAT_TABLE, NAT = 1, 2
"""Indexes of hops in sample_packets.node_port()."""


def test_the_rule_beside_the_translation_decides_the_destination() -> None:
    found = decision(with_hop(sample_packets.node_port(), NAT_TABLE, rule_trace=RuleTrace((HIT,))))
    assert found and (found.by, found.name, found.evidence) == ("rule", "ip nat KUBE-SEP-X 2", Evidence.DERIVED)


def test_an_earlier_packet_of_the_connection_decided() -> None:
    found = decision(with_hop(sample_packets.node_port(), NAT, rule_trace=RuleTrace((HIT,)), from_conntrack=True))
    assert found and found.name == "ip nat KUBE-SEP-X 2"


def test_a_translation_whose_rule_is_not_known_has_no_decision() -> None:
    assert decision(sample_packets.node_port()) is None
    other = RuleHit(HIT.path, HIT.rule and Rule("ip", "nat", "X", 1, "", target="MARK"), "MARK", Evidence.OBSERVED)
    assert decision(with_hop(sample_packets.node_port(), NAT_TABLE, rule_trace=RuleTrace((other,)))) is None


def test_ipvs_decides_and_refuses() -> None:
    chosen, later, refused = map(decision, sample_packets.ipvs())
    for found in (chosen, later, refused):
        assert found and (found.by, found.name) == ("ipvs", "IPVS 192.168.56.10:30285")


def test_a_table_of_ipv6_whose_rule_is_not_known() -> None:
    found = decision(sample_packets.rejected())
    assert found and (found.by, found.name, found.hit) == ("table", "ip6 kube-proxy/filter-output", None)


def test_the_drop_of_a_copy_does_not_decide() -> None:
    assert decision(sample_packets.no_socket()) is None


def test_nothing_decided_about_a_packet_that_only_passed() -> None:
    assert decision(sample_packets.ping()) is None


def test_a_program_decides_only_if_it_is_the_only_one() -> None:
    program = AttachedProgram("tc", 42, "cil_x")
    found = decision(sample_packets.dropped_by_program(program))
    assert found and (found.by, found.name) == ("program", "tc ingress of eth0 eBPF program cil_x (id 42)")
    assert found.evidence is Evidence.DERIVED
    several = decision(sample_packets.dropped_by_program(program, AttachedProgram("tc", 43, "other")))
    assert several and (several.by, several.name) == ("kernel", "__netif_receive_skb_core")
