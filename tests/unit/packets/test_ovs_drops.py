# SPDX-License-Identifier: Apache-2.0
"""Drops of Open vSwitch: by the reason, of which the module may give only a number, or by the function."""

from __future__ import annotations

import pytest

from tests.support import findings as f
from tracer.model.endpoints import Endpoints
from tracer.model.hop import Drop, DropHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Verdict
from tracer.model.packet import Outcome
from tracer.packets.hop_builder import reason_name
from tracer.packets.ovs_drops import OF_FLOWS, REASONS, ovs_clause, ovs_sentence

NAMES = {2: "NO_SOCKET", 3 << 16: "OPENVSWITCH", (3 << 16) + 1: "OVS_DROP_LAST_ACTION"}


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, ""),
        (2, "NO_SOCKET"),
        (9, "9"),
        (196609, "OVS_DROP_LAST_ACTION"),
        (196610, "OPENVSWITCH 2"),
        (65537, "65537"),
        (0xFFFFFFFF, "4294967295"),
    ],
)
def test_names_of_reasons(number: int, name: str) -> None:
    assert reason_name(number, NAMES) == name


@pytest.mark.parametrize(
    ("drop", "sentence"),
    [
        (Drop("OVS_DROP_EXPLICIT", "f"), "in the Open vSwitch datapath: OVS_DROP_EXPLICIT, the flow that it matched drops it"),
        (Drop("OVS_DROP_NEW", "f"), "in the Open vSwitch datapath: OVS_DROP_NEW, the kernel gives this reason"),
        (Drop("OPENVSWITCH 2", "f"), "in the Open vSwitch datapath: OPENVSWITCH 2, the name of this reason is not known"),
        (Drop("", "ovs_dp_process_packet"), "in the Open vSwitch datapath: no flow matched it, and ovs-vswitchd could not be"
         " asked for one"),
        (Drop("", "do_execute_actions.constprop.0"), "in the Open vSwitch datapath: an action of the flow that it matched"
         " failed"),
        (Drop("NOT_SPECIFIED", "ovs_vport_receive"), ""),
        (Drop("TC_INGRESS", "ovs_dp_process_packet"), ""),
        (Drop("", ""), ""),
    ],
)  # fmt: skip
def test_sentences(drop: Drop, sentence: str) -> None:
    assert ovs_sentence(drop) == sentence and bool(ovs_clause(drop)) == bool(sentence)


def test_reasons_of_flows_have_words() -> None:
    assert set(REASONS) >= OF_FLOWS


def test_the_verdict_of_a_packet() -> None:
    hop = DropHop(0, HOST, in_iface="web-1a2b3c", verdict=Verdict.DROP, drop=Drop("OVS_DROP_LAST_ACTION", "do_execute_actions"))
    packet = f.packet([hop], Endpoints("10.0.0.2", 1, "10.0.0.1", 80))
    assert (packet.outcome, packet.verdict) == (
        Outcome.DROPPED,
        "DROPPED in the Open vSwitch datapath: OVS_DROP_LAST_ACTION, the flow that it matched does not forward it",
    )
