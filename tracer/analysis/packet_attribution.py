# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes objects of a packet: the Service that was asked for, the pod that serves, the pod of the client.

Only an owner of the kind Service becomes a service, and only one of the kind Pod a workload: a node, a program or an unknown
owner has texts for a reader, which are no names of objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.model.evidence import Evidence
from tracer.model.hop import Hop, HopBase, IpvsNatHop, IpvsRefusalHop, decision_of, nat_of, owner_of, trace_of
from tracer.model.kube import Owner, pod_of_text
from tracer.model.packet import Packet

OBSERVED, DERIVED = Evidence.OBSERVED.value, Evidence.DERIVED.value


@dataclass(frozen=True, slots=True)
class Attribution:
    """The objects of a packet or of a connection; "" = not known.

    Attributes:
        service: Name of the Service.
        service_namespace: Its namespace.
        service_port: Name of its port.
        service_evidence: "observed" = a rule or a virtual server of the Service acted, "derived" = from an address.
        workload: Name of the pod that serves.
        workload_namespace: Its namespace.
        client: Name of the client's pod.
        client_namespace: Its namespace.
    """

    service: str = ""
    service_namespace: str = ""
    service_port: str = ""
    service_evidence: str = ""
    workload: str = ""
    workload_namespace: str = ""
    client: str = ""
    client_namespace: str = ""

    @property
    def namespace(self) -> str:
        """The namespace of the Service, without a Service that of the pod."""
        return self.service_namespace or self.workload_namespace

    def completed_by(self, other: Attribution) -> Attribution:
        """This attribution; where it does not know an object, the object of the other one."""
        service = self if self.service and (self.service_evidence == OBSERVED or other.service_evidence != OBSERVED) else other
        workload, client = (self if self.workload else other), (self if self.client else other)
        return Attribution(
            service.service, service.service_namespace, service.service_port, service.service_evidence,
            workload.workload, workload.workload_namespace, client.client, client.client_namespace,
        )  # fmt: skip


NOBODY = Attribution()


def attribution_of(packet: Packet) -> Attribution:
    """The objects of a packet, from its owners. In the reply direction the source serves, and the destination is the client."""
    is_reply = packet.flow.is_reply if packet.flow else packet.tcp_flags == "SYN ACK"
    server, client = packet.dst_owner, packet.src_owner
    if is_reply:
        server, client = client, server
    service, evidence = _service(packet, server)
    pod, client_pod = _pod(packet, server), _pod_of_owner(client)
    return Attribution(
        service.name if service else "", service.namespace if service else "", service.port if service else "", evidence,
        pod[1], pod[0], client_pod[1], client_pod[0],
    )  # fmt: skip


def _own(packet: Packet) -> Iterator[tuple[Hop, Owner]]:
    for hop in packet.hops:
        owner = owner_of(hop)
        if owner and not hop.clone:
            yield hop, owner


def _service(packet: Packet, server: Owner | None) -> tuple[Owner | None, str]:
    """The Service, and how it is known: a rule that acted before an address, observed before derived."""
    found = [(owner, _evidence(hop)) for hop, owner in _own(packet) if owner.kind == "Service" and owner.name]
    seen = next((each for each in found if each[1] == OBSERVED), None) or (found[0] if found else None)
    if seen:
        return seen
    return (server, DERIVED) if server and server.kind == "Service" and server.name else (None, "")


def _evidence(hop: HopBase) -> str:
    """Whether the acting rule or virtual server was observed. A rewrite without a rule has its owner from its addresses."""
    decision = decision_of(hop)
    if decision:
        return decision.evidence.value
    is_ipvs = isinstance(hop, IpvsNatHop | IpvsRefusalHop)
    return hop.evidence.value if is_ipvs and trace_of(hop) is None else DERIVED


def _pod(packet: Packet, server: Owner | None) -> tuple[str, str]:
    """(namespace, name) of the pod that serves: the target of the last DNAT, without one the pod at the server's address."""
    for hop, owner in reversed(list(_own(packet))):
        nat = nat_of(hop)
        if nat and nat.kind == "DNAT":
            return _pod_of_owner(owner) if owner.kind == "Pod" else pod_of_text(owner.target)
    return _pod_of_owner(server)


def _pod_of_owner(owner: Owner | None) -> tuple[str, str]:
    return (owner.namespace, owner.name) if owner and owner.kind == "Pod" and owner.name else ("", "")
