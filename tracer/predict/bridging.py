# SPDX-License-Identifier: Apache-2.0
"""Packets that a bridge forwards by itself: whether the IP hooks see them, and which packets they may be.

Such a packet needs no route and no forwarding setting of the node.

br_netfilter passes bridged packets to the IP hooks where net.bridge.bridge-nf-call-iptables (-ip6tables) is 1, or where the
bridge's own nf_call_iptables (nf_call_ip6tables) is. Without the module there is no such setting and nothing is passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracer.model.condition import Condition
from tracer.model.evidence import Evidence
from tracer.model.hop import RouteHop
from tracer.model.namespace_name import HOST
from tracer.model.prediction import PathState
from tracer.node.node import HostReader
from tracer.node.routes import NetworkDevice, Route

SETTINGS = {"ip": "net/bridge/bridge-nf-call-iptables", "ip6": "net/bridge/bridge-nf-call-ip6tables"}


def seen_bridges(node: HostReader, devices: Sequence[NetworkDevice], family: str) -> frozenset[str]:
    """Names of the bridges that pass their packets of this family ("ip", "ip6") to the IP hooks."""
    setting = node.setting(SETTINGS[family])
    if not setting:
        return frozenset()
    return frozenset(d.name for d in devices if d.kind == "bridge" and (setting == "1" or family in d.bridge_nf))


def fork(state: PathState, route: Route, devices: Sequence[NetworkDevice]) -> tuple[PathState, PathState] | None:
    """The two states of a packet that a bridge may forward by itself: bridged and routed, each with its condition.

    Args:
        state: A packet that has come in by state.in_iface and has passed no hook.
        route: This node's route to its destination.
        devices: The devices of this node.

    Returns:
        None if the packet can only be routed. Else which one it is depends on the sender's routes, which are not read.
    """
    bridge = state.in_iface
    is_bridge = any(d.name == bridge and d.kind == "bridge" for d in devices)
    if not is_bridge or route.kind != "unicast" or route.gateway or route.out != bridge:
        return None
    question = ("bridged", bridge, state.ends.dst)
    direct = Condition(f"the sender reaches {state.ends.dst} directly over bridge {bridge}", of=question)
    routed = Condition("the sender routes it through this node", of=question)
    hop = RouteHop(0, HOST, evidence=Evidence.DERIVED, in_iface=bridge, out_iface=bridge, route=f"bridged by {bridge}")
    return (
        replace(state, hops=(*state.hops, hop), out_iface=bridge, conditions=(*state.conditions, direct)),
        replace(state, conditions=(*state.conditions, routed)),
    )
