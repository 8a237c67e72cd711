# SPDX-License-Identifier: Apache-2.0
"""The Service has no endpoints, or none on this node: kube-proxy's REJECT or DROP rule for this case, or IPVS without a real
server.

Observed: the rule acted, and its comment names the reason, or the comment of the rule that marked the packet does. Derived:
IPVS refused it, and the API objects show the reason.
"""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.kube.missing_endpoints import NONE, NONE_HERE, fate_in
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import DecidingHop, IpvsRefusalHop, decision_of
from tracer.model.netfilter import REFUSALS, Verdict
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    for hop in _cause_helpers.own_hops(attempt):
        if not isinstance(hop, DecidingHop) or hop.verdict not in REFUSALS:
            continue
        fate = _fate(hop)
        if fate:
            what = "no local endpoint" if fate == NONE_HERE else "no endpoint"
            done = "rejected" if hop.verdict is Verdict.REJECT else "dropped"
            evidence = Evidence.DERIVED if isinstance(hop, IpvsRefusalHop) else Evidence.OBSERVED
            return Cause(
                "no endpoints",
                f"{what}: {done} {_cause_helpers.formatted_actor(attempt.syn, hop)}{_cause_helpers.formatted_owner(hop)}",
                evidence,
            )
    return None


def _fate(hop: DecidingHop) -> str:
    """The reason from the rule's comment, or from its owner, whose text includes the comments of earlier rules."""
    if isinstance(hop, IpvsRefusalHop):
        return fate_in(hop.owner)
    decision = decision_of(hop)
    if not decision or not decision.rule or decision.hotdrop:
        return ""
    says = f"{decision.rule.comment} {decision.rule.text}"
    by_comment = next((fate for fate in (NONE_HERE, NONE) if f"has {fate}" in says), "")
    return by_comment or fate_in(hop.owner)
