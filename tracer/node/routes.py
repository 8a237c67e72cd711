# SPDX-License-Identifier: Apache-2.0
"""Route look-ups and network devices, read through netlink. Nothing is changed."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from socket import AF_INET, AF_INET6
from typing import Any

KINDS = {
    1: "unicast",
    2: "local",
    3: "broadcast",
    4: "anycast",
    5: "multicast",
    6: "blackhole",
    7: "unreachable",
    8: "prohibit",
}
_REFUSED = {
    errno.ENETUNREACH: "unreachable", errno.EHOSTUNREACH: "unreachable", errno.EACCES: "prohibit", errno.EINVAL: "blackhole",
    errno.EXDEV: "martian",
}  # fmt: skip


@dataclass(frozen=True)
class Route:
    """The result of one route look-up.

    Attributes:
        kind: As in `ip route` ("unicast", "local" ...); "martian" = the source is not accepted on that interface
            (rp_filter, or an address that no machine may have); "" = not known.
        out: The outgoing interface.
        gateway: The gateway, "" = none.
        source: The preferred source address, "" = none.
    """

    kind: str
    out: str = ""
    gateway: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        """The route as text: "via 192.168.66.0 dev flannel.1"."""
        via = f"via {self.gateway} dev {self.out}" if self.gateway else f"dev {self.out}"
        return f"local dev {self.out}" if self.kind == "local" else via if self.kind == "unicast" else self.kind


@dataclass(frozen=True)
class NetworkDevice:
    """A network interface.

    Attributes:
        name: Its name.
        kind: "bridge", "veth", "vxlan", "dummy" ...; "" = physical.
        networks: Networks of its addresses.
        ports: Number of interfaces in a bridge.
        bridge_nf: Families ("ip", "ip6") of the packets that this bridge passes to the IP hooks by a setting of its own
            (nf_call_iptables, nf_call_ip6tables).
    """

    name: str
    kind: str = ""
    networks: tuple[str, ...] = ()
    ports: int = 0
    bridge_nf: frozenset[str] = frozenset()


class Routes:
    """Routes and devices of this process's network namespace. Results are cached for the life of the object."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str, str, int], Route] = {}
        self._links: tuple[NetworkDevice, ...] | None = None

    def to(self, address: str, source: str = "", arrives: str = "", mark: int = 0) -> Route:
        """Looks up the route of a packet.

        Args:
            address: Destination address.
            source: Source address, "" = not given.
            arrives: Incoming interface, "" = sent by this machine.
            mark: Packet mark.
        """
        key = address, source, arrives, mark
        if key not in self._routes:
            self._routes[key] = _ask(*key)
        return self._routes[key]

    def is_local(self, address: str) -> bool:
        """Whether the address is local for the kernel, as in addrtype and fib."""
        return self.to(address).kind == "local"

    def links(self) -> tuple[NetworkDevice, ...]:
        """All interfaces; () = they cannot be listed."""
        if self._links is None:
            self._links = tuple(_links())
        return self._links


def _ask(address: str, source: str, arrives: str, mark: int) -> Route:
    from pyroute2 import IPRoute, NetlinkError

    more: dict[str, Any] = {"mark": mark} if mark else {}
    if source:
        more["src"] = source
    with IPRoute() as route:
        try:
            if arrives:
                more["iif"] = route.link_lookup(ifname=arrives)[0]
            family = AF_INET6 if ip_address(address).version == 6 else AF_INET
            answer = next(iter(route.route("get", family=family, dst=address, **more)))
            attrs = dict(answer["attrs"])
            link = next(iter(route.get_links(attrs["RTA_OIF"])), None) if "RTA_OIF" in attrs else None
            name = str(dict(link["attrs"]).get("IFLA_IFNAME")) if link else ""
        except NetlinkError as e:
            return Route(_REFUSED.get(e.code, ""))
        except (IndexError, StopIteration):
            return Route("")
    return Route(KINDS.get(answer["type"], ""), name, attrs.get("RTA_GATEWAY", ""), attrs.get("RTA_PREFSRC", ""))


def _links() -> list[NetworkDevice]:
    from pyroute2 import IPRoute

    with suppress(Exception), IPRoute() as route:  # pyroute2 raises many kinds
        found = [(link["index"], dict(link["attrs"])) for link in route.get_links()]
        networks: dict[int, list[str]] = {}
        for each in route.get_addr():
            attrs = dict(each["attrs"])
            address = f"{attrs.get('IFA_LOCAL') or attrs.get('IFA_ADDRESS')}/{each['prefixlen']}"
            networks.setdefault(each["index"], []).append(str(ip_interface(address).network))
        masters = [attrs.get("IFLA_MASTER") for _, attrs in found]
        return [
            NetworkDevice(
                str(attrs.get("IFLA_IFNAME")),
                _kind(attrs),
                tuple(networks.get(index, ())),
                masters.count(index),
                _bridge_nf(attrs),
            )
            for index, attrs in found
        ]
    return []


def _kind(attrs: dict[str, Any]) -> str:
    info = attrs.get("IFLA_LINKINFO")
    return str(dict(info["attrs"]).get("IFLA_INFO_KIND", "")) if info else ""


def _bridge_nf(attrs: dict[str, Any]) -> frozenset[str]:
    """The families of NetworkDevice.bridge_nf."""
    info = dict(attrs["IFLA_LINKINFO"]["attrs"]) if attrs.get("IFLA_LINKINFO") else {}
    if info.get("IFLA_INFO_KIND") != "bridge" or not info.get("IFLA_INFO_DATA"):
        return frozenset()
    own = dict(info["IFLA_INFO_DATA"]["attrs"])
    names = {"ip": "IFLA_BR_NF_CALL_IPTABLES", "ip6": "IFLA_BR_NF_CALL_IP6TABLES"}
    return frozenset(family for family, name in names.items() if own.get(name))
