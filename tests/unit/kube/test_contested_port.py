# SPDX-License-Identifier: Apache-2.0
"""A port that is a pod's hostPort and a Service's NodePort: the header names the owner of the packet, also without the API."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits, hop_fields
from tests.support.audits import CLIENT, NODE
from tests.support.nodes import MODES, node
from tracer.kube.attribution import attribute
from tracer.model.hop import NatHop, RewriteHop, owner_of
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.predict.query import PathQuery

IPTABLES = [m for m in MODES if "-iptables-" in m]
PORT = 30306


def predicted_owner(mode: str, scenario: str, port: int, folder: Path, with_api: bool = False) -> tuple[Packet, Owner]:
    this_node = node(mode, scenario)
    state = audits.state(this_node, folder, with_api=with_api)
    predicted = audits.path_predictor(state, this_node, state.virtual).predict(PathQuery(CLIENT, 0, NODE, port))[0]
    packet = attribute(predicted.packet, state.cluster)
    assert packet.dst_owner
    return packet, packet.dst_owner


@pytest.mark.parametrize("mode", IPTABLES)
def test_a_packet_to_the_service_is_not_attributed_to_the_pod(mode: str, tmp_path: Path) -> None:
    packet, owner = predicted_owner(mode, "S5-nodeport", PORT, tmp_path)
    assert [h.nat.after.dst for h in packet.hops if isinstance(h, RewriteHop) and h.nat.kind == "DNAT"] == ["10.244.0.11"]
    (service,) = {hop_fields.owner(h).label for h in packet.hops if owner_of(h) and hop_fields.owner(h).kind == "Service"}
    assert owner.kind == "Node" and owner.detail.startswith(f"NodePort {PORT} of {service} and hostPort {PORT} of ")
    assert owner.evidence == "rule that acted"
    assert predicted_owner(mode, "S5-nodeport", PORT, tmp_path, with_api=True)[1].detail == owner.detail, (
        "as with the API's objects"
    )


@pytest.mark.parametrize("mode", IPTABLES)
def test_a_hostport_alone_is_attributed_to_the_pod(mode: str, tmp_path: Path) -> None:
    _, owner = predicted_owner(mode, "S5", 3306, tmp_path)
    assert owner.kind == "Pod" and owner.detail == "hostPort 3306"


def test_a_translation_by_an_unknown_rule_is_not_attributed_to_the_pod(tmp_path: Path) -> None:
    """Without the rule traces: the packet went to another address, so the pod did not get it."""
    packet, _ = predicted_owner(IPTABLES[0], "S5-nodeport", PORT, tmp_path)
    known = audits.state(node(IPTABLES[0], "S5-nodeport"), tmp_path, with_api=False).cluster
    hops = tuple(NatHop(h.time, h.netns, h.hook, nat=h.nat) for h in packet.hops if isinstance(h, RewriteHop))
    packet = attribute(replace(packet, hops=hops), known)
    assert packet.dst_owner and packet.dst_owner.kind == "unknown" and packet.dst_owner.target == "10.244.0.11:8080"
