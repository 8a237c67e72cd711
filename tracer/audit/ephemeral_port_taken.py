# SPDX-License-Identifier: Apache-2.0
"""The kernel may give NodePorts to connections of the node: ip_local_port_range has them, and they are not reserved."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit import _needs
from tracer.audit._ports import node_ports
from tracer.audit.state import NodeState
from tracer.findings.ephemeral_port_taken import CHECK, RESERVED, cure, given, setting_proofs, subject_of
from tracer.model.finding import Finding
from tracer.util.questions import value_of

SHOWN = 5
"""Most NodePorts that are named."""
NEEDS = (_needs.node_ports,)


def check(state: NodeState) -> Iterator[Finding]:
    claims = [claim for claim in node_ports(state) if claim.protocol in ("tcp", "udp")]
    ports = given(tuple(sorted({claim.port for claim in claims})), state.context)
    if not ports:
        return
    taken = [claim for claim in claims if claim.port in ports]
    names = ", ".join(f"{claim.port} of Service {claim.owner.label}" for claim in taken[:SHOWN])
    more = f" and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
    if state.is_ipvs_mode:
        harm = "IPVS then sends the answers to a pod, and the connection is never made"
    else:
        harm = (
            "a process that listens on such a port gets nothing then, and when conntrack's entry of a connection is gone,"
            " its packets go to a pod"
        )
    yield Finding(
        name="",
        key=("range",),
        cause=(
            f"The kernel may give the NodePort{'s' * (len(taken) > 1)} {names}{more} to processes of this node as the port of"
            f" a connection: {harm}."
        ),
        proofs=(*(claim.shown for claim in taken[:SHOWN]), *setting_proofs(ports, state.context)),
        check=CHECK,
        cure=cure(ports, value_of(state.context.ask(RESERVED)) or ""),
        # Without IPVS most connections with such a port work.
        certain=state.is_ipvs_mode,
        subject=subject_of([claim.owner for claim in taken]),
    )
