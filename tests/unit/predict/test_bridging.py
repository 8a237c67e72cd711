# SPDX-License-Identifier: Apache-2.0
"""A packet between two pods of one bridge: iptables sees it only if the bridge passes its packets to the IP hooks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import audits
from tests.support.audits import LINKS, FakeRoutes
from tracer.model.prediction import PredictedPath
from tracer.predict.query import PathQuery

POD, OTHER, FAR = "10.244.0.11", "10.244.0.12", "10.244.3.7"
NO_RULES = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"
DROPS = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.244.0.11/32 -j DROP\nCOMMIT\n"
CALLED = tuple(replace(link, bridge_nf=frozenset({"ip"})) if link.kind == "bridge" else link for link in LINKS)


def paths(
    text: str, to: str = OTHER, setting: str = "0", routes: FakeRoutes | None = None, forwarding: str = "1"
) -> list[PredictedPath]:
    state = audits.of_text(text)
    predictor = audits.path_predictor(replace(state, routes=routes or state.routes))
    predictor.node.settings["net/bridge/bridge-nf-call-iptables"] = setting  # type: ignore[attr-defined]
    predictor.node.settings["net/ipv4/ip_forward"] = forwarding  # type: ignore[attr-defined]
    return predictor.predict(PathQuery(POD, 0, to, 80))


def outcomes(found: list[PredictedPath]) -> dict[str, tuple[str, ...]]:
    return {p.packet.outcome: p.conditions for p in found}


def test_a_rule_is_a_condition_where_iptables_does_not_see_the_packet() -> None:
    found = outcomes(paths(DROPS))
    assert found == {
        "forwarded": ("the sender reaches 10.244.0.12 directly over bridge cni0",),
        "dropped": ("the sender routes it through this node",),
    }


def test_both_paths_are_one_where_no_rule_decides() -> None:
    (only,) = paths(NO_RULES)
    assert only.packet.outcome == "forwarded" and not only.conditions


@pytest.mark.parametrize(
    ("to", "setting", "routes"),
    [
        (OTHER, "1", None),
        (OTHER, "0", FakeRoutes(connected=CALLED)),
        (FAR, "0", None),
    ],
    ids=["all bridges", "this bridge", "behind another device"],
)
def test_a_rule_decides_where_the_ip_hooks_see_the_packet(to: str, setting: str, routes: FakeRoutes | None) -> None:
    assert outcomes(paths(DROPS, to, setting, routes)) == {"dropped": ()}


def test_a_bridges_own_setting_counts_only_with_br_netfilter() -> None:
    assert len(paths(DROPS, setting="", routes=FakeRoutes(connected=CALLED))) == 2, "the module is not loaded"


@pytest.mark.parametrize("setting", ["0", "1"])
def test_a_bridge_needs_no_forwarding(setting: str) -> None:
    """With net.ipv4.ip_forward 0 a bridge still passes its packets on; only a routed packet is dropped for it."""
    assert outcomes(paths(NO_RULES, setting=setting, forwarding="0")) == {
        "forwarded": ("the sender reaches 10.244.0.12 directly over bridge cni0",),
        "dropped": ("the sender routes it through this node",),
    }


def test_a_bridged_packet_that_the_ip_hooks_see_meets_their_rules_without_forwarding() -> None:
    assert {p.packet.outcome for p in paths(DROPS, setting="1", forwarding="0")} == {"dropped"}


def test_an_interface_that_could_not_be_listed_may_be_a_bridge() -> None:
    rule = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m physdev --physdev-is-in -j DROP\nCOMMIT\n"
    assert {p.packet.outcome for p in paths(rule, FAR, "1", FakeRoutes(connected=()))} == {"dropped", "forwarded"}
