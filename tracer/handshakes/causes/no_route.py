# SPDX-License-Identifier: Apache-2.0
"""There is no usable route: none, or one of type unreachable, prohibit or blackhole. Observed: the route's errno at the drop;
for IPv6, the function that dropped it."""

from __future__ import annotations

import errno

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector

KINDS = {
    errno.EINVAL: "the route is a blackhole",
    errno.EHOSTUNREACH: "the route says unreachable",
    errno.ENETUNREACH: "there is no route",
    errno.EACCES: "the route says prohibit",
}
IPV6 = {
    "ip6_pkt_discard": "there is no route, or it says unreachable",
    "ip6_pkt_prohibit": "the route says prohibit",
    "ip6_pkt_drop": "there is no route, or it says unreachable or prohibit",
    "dst_discard": "the route is a blackhole",
    "dst_discard_out": "the route is a blackhole",
}
"""Functions that drop the packets of such a route."""
REASONS = {"IP_INNOROUTES": "there is no route", "IP_OUTNOROUTES": "there is no route", "IP_INADDRERRORS": "it is not for here"}


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    detail, drop = attempt.syn.detail("route"), attempt.syn.drop
    if detail:
        number = detail.number("errno")
        kind = KINDS.get(number, f"the route says {errno.errorcode.get(number, number)}")
    elif drop and (drop.function in IPV6 or drop.reason in REASONS):
        kind = IPV6.get(drop.function) or REASONS[drop.reason]
    else:
        return None
    return Cause("no route", f"dropped{attempt.where or ' in node'}: {kind} to {attempt.reached.dst}")
