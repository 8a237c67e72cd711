# SPDX-License-Identifier: Apache-2.0
"""Drops of the Open vSwitch datapath: by the kernel's reason, or by the function that freed the packet.

The flow that decided is not seen, so neither is what ovs-vswitchd, or the program that gave it its rules, wanted.
Source: net/openvswitch/drop.h, actions.c and datapath.c. Reasons exist since Linux 6.6 ("net: openvswitch: add last-action drop
reason"); before, a flow without a forwarding action frees the packet by consume_skb, which is no drop for the kernel.
"""

from __future__ import annotations

from tracer.model.hop import Drop

DATAPATH = "the Open vSwitch datapath"
PREFIX, SUBSYSTEM = "OVS_DROP_", "OPENVSWITCH "
"""Beginnings of the reasons: with the enumerator's name, and with its number where the module does not describe it."""

REASONS = {
    "OVS_DROP_LAST_ACTION": "the flow that it matched does not forward it",
    "OVS_DROP_EXPLICIT": "the flow that it matched drops it",
    "OVS_DROP_EXPLICIT_WITH_ERROR": "the flow that it matched drops it, because of an error in ovs-vswitchd",
    "OVS_DROP_ACTION_ERROR": "an action of the flow that it matched failed",
    "OVS_DROP_METER": "a meter limits the flow that it matched",
    "OVS_DROP_RECURSION_LIMIT": "the actions of the flow that it matched are nested too deeply",
    "OVS_DROP_DEFERRED_LIMIT": "too many actions of the flow that it matched were put off",
    "OVS_DROP_FRAG_L2_TOO_LONG": "it could not be fragmented",
    "OVS_DROP_FRAG_INVALID_PROTO": "it could not be fragmented",
    "OVS_DROP_CONNTRACK": "the action ct of the flow that it matched refused it",
    "OVS_DROP_IP_TTL": "its TTL was used up",
}
"""Why, by reason."""
OF_FLOWS = frozenset({"OVS_DROP_LAST_ACTION", "OVS_DROP_EXPLICIT"})
"""Reasons of drops that a flow demands, as for a policy."""
UPCALL = "ovs_dp_process_packet"
"""The function that frees a packet without a flow if ovs-vswitchd cannot be asked for one."""
FUNCTIONS = {
    UPCALL: "no flow matched it, and ovs-vswitchd could not be asked for one",
    "do_execute_actions": "an action of the flow that it matched failed",
    "ovs_execute_actions": "the actions of the flow that it matched are nested too deeply",
    "do_output": "the port that the flow names did not take it",
    "ovs_vport_send": "the port that the flow names did not take it",
}
"""Why, by the function that frees the packet without a reason: some do since 6.6, too."""


def ovs_clause(drop: Drop) -> str:
    """Why the Open vSwitch datapath dropped a packet, as a clause; "" = it did not."""
    if drop.reason.startswith(PREFIX):
        return REASONS.get(drop.reason, "the kernel gives this reason")
    if drop.reason.startswith(SUBSYSTEM):
        return "the name of this reason is not known"
    return FUNCTIONS.get(drop.function.partition(".")[0], "") if drop.reason in ("", "NOT_SPECIFIED") else ""


def ovs_sentence(drop: Drop) -> str:
    """What the Open vSwitch datapath did: "in the Open vSwitch datapath: ..."; "" = it did not drop the packet."""
    clause = ovs_clause(drop)
    reason = drop.reason if drop.reason not in ("", "NOT_SPECIFIED") else ""
    return f"in {DATAPATH}: {f'{reason}, ' * bool(reason)}{clause}" if clause else ""
