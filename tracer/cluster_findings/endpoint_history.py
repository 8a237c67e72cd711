# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a Service as the API has them while the run goes on, and since when one of them is gone.

What the API had when the run began is no proof later: an endpoint may be new, or may have gone a moment ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from tracer.model.kube import Endpoint, ServicePort

EndpointName = tuple[str, str, str, int]
"""Name of the Service's port, protocol, address and port of an endpoint."""


class EndpointHistory(NamedTuple):
    """The endpoints of a Service, as the API had them in readings that follow each other without a long pause.

    Attributes:
        since: When the first reading had been answered, ns, of the reference clock.
        asked: When the newest reading was asked for, ns.
        ends: The endpoints of the newest reading, by name of the Service's port and protocol.
        gone: Endpoints that an earlier reading had and the newest has not, with the time when the first reading without
            them had been answered, ns.
    """

    since: int
    asked: int
    ends: Mapping[tuple[str, str], tuple[Endpoint, ...]]
    gone: Mapping[EndpointName, int]

    def of(self, service: ServicePort, family: str) -> tuple[Endpoint, ...]:
        """The endpoints of a Service port in one family of addresses, also those that are not ready."""
        found = self.ends.get((service.port_name, service.protocol), ())
        return tuple(end for end in found if is_of_family(end.address, family))

    def absent_since(self, service: ServicePort, address: str, port: int) -> int | None:
        """Since when all readings lack an endpoint, ns; None = the newest has it."""
        found = self.ends.get((service.port_name, service.protocol), ())
        if any((end.address, end.port) == (address, port) for end in found):
            return None
        return self.gone.get((service.port_name, service.protocol, address, port), self.since)


class EndpointReader(Protocol):
    """Reads the endpoints of single Services again while the run goes on."""

    def ask(self, namespace: str, name: str) -> None:
        """Reads the endpoints of a Service now and for some time. Does not wait for the answer."""

    def history(self, namespace: str, name: str) -> EndpointHistory | None:
        """What was read of a Service; None = nothing."""


class NoEndpointReader:
    """Reads nothing: there is no access to the API."""

    def ask(self, namespace: str, name: str) -> None:
        """Does nothing."""

    def history(self, namespace: str, name: str) -> EndpointHistory | None:
        return None


def plain_address(address: str) -> str:
    """An address as the kernel writes it: the API takes fd00:0::1 and 10.0.0.01, too."""
    try:
        parts = address.split(".")
        sure = ".".join(str(int(part)) for part in parts) if len(parts) == 4 and ":" not in address else address
        return str(ip_address(sure))
    except ValueError:
        return address


def is_of_family(address: str, family: str) -> bool:
    """Whether an address is one of this family, "IPv4" or "IPv6"."""
    return (":" in address) == (family == "IPv6")
