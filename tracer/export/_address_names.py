# SPDX-License-Identifier: Apache-2.0
"""Names of addresses for other programs: of pods, of nodes, and of Services at their own addresses.

An address that had two names during the run has none here, because a reader would show one of them for all packets. So has the
address of a node, as far as a Service or a hostPort is meant with it.
"""

from __future__ import annotations

from ipaddress import ip_address

from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.util.evictions import evictions

MOST_NAMES = 65_536
_SERVICE_ADDRESSES = ("cluster IP", "external IP", "load balancer IP")
_LONGEST = 255
"""Maximum length of a name, characters, as in DNS."""


class AddressNames:
    """Names of the addresses of packets, at most MOST_NAMES."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, packet: Packet) -> None:
        """Takes the owners of the packet's source and destination."""
        for address, owner in ((packet.endpoints.src, packet.src_owner), (packet.endpoints.dst, packet.dst_owner)):
            name = _name(owner) if owner else ""
            if not name or self._names.get(address) == name:
                continue
            if address in self._names:
                self._names[address] = ""
            elif len(self._names) < MOST_NAMES:
                self._names[address] = name
            else:
                evictions.add("names of addresses")

    def by_address(self) -> dict[str, str]:
        """The names of the addresses that have exactly one."""
        return {address: name for address, name in self._names.items() if name and _is_address(address)}


def _name(owner: Owner) -> str:
    """The name that an address of this owner has; "" = the address is not the owner's own."""
    if owner.kind == "Pod" and not owner.detail.startswith("hostPort"):
        name = f"{owner.name}.{owner.namespace}.pod"
    elif owner.kind == "Service" and owner.detail in _SERVICE_ADDRESSES:
        name = f"{owner.name}.{owner.namespace}.svc"
    elif owner.kind == "Node" and owner.name:
        name = owner.name
    else:
        return ""
    return name if len(name) <= _LONGEST and name.isprintable() else ""


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
