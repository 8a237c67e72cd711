# SPDX-License-Identifier: Apache-2.0
"""Reads IPVS's virtual servers and their real servers over netlink.

Must be used only where the kernel has IPVS loaded: the request itself would load it. The pyroute2 of distributions (0.7) has no
class for IPVS, so its messages are declared beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET
from typing import TYPE_CHECKING, cast

from tracer.events.record import PROTOCOLS

if TYPE_CHECKING:
    from tracer.rules.ipvs._messages import Answer, AttributeValue, DestAttributes, Request, ServiceAttributes

GET_SERVICE, GET_DEST = 4, 8
PERSISTENT = 1
LOADED = Path("/proc/net/ip_vs")


@dataclass(frozen=True)
class RealServer:
    """A real server. `weight` 0: it gets no new connections."""

    address: str
    port: int
    weight: int = 1


@dataclass(frozen=True)
class VirtualServer:
    """A virtual server.

    Attributes:
        address: Its address, "" = selected by mark.
        port: Its port, 0 = selected by mark.
        protocol: "tcp", "udp", "sctp"; "" = selected by mark.
        scheduler: Its scheduler, "" = not known.
        fwmark: Mark of the packets it takes, 0 = selected by address.
        persistent: Whether a client keeps its real server.
        family: Address family.
    """

    address: str
    port: int
    protocol: str
    scheduler: str = ""
    fwmark: int = 0
    persistent: bool = False
    family: int = AF_INET


def loaded() -> bool:
    """Whether the kernel has IPVS, and shows it to this process."""
    return LOADED.exists()


class IpvsSocket:
    """A socket to IPVS in this thread's network namespace; a context manager. Raises OSError or errors of pyroute2."""

    def __init__(self) -> None:
        from pyroute2.netlink.generic import GenericNetlinkSocket

        from tracer.rules.ipvs import _messages as messages

        self._message = messages.IpvsMessage
        self._socket = GenericNetlinkSocket()
        try:
            self._socket.bind("IPVS", self._message)
        except BaseException:
            self._socket.close()
            raise

    def virtual_servers(self) -> list[VirtualServer]:
        """All virtual servers."""
        found = (dict(m.get_attr("IPVS_CMD_ATTR_SERVICE")["attrs"]) for m in self._dump(GET_SERVICE))
        return [_virtual(cast("ServiceAttributes", attributes)) for attributes in found]

    def real_servers(self, of: VirtualServer) -> list[RealServer]:
        """The real servers of a virtual server; also empty if it does not exist any more."""
        request: list[tuple[str, AttributeValue]] = [("IPVS_SVC_ATTR_AF", of.family)]
        if of.fwmark:
            request.append(("IPVS_SVC_ATTR_FWMARK", of.fwmark))
        else:
            number = next(n for n, name in PROTOCOLS.items() if name.lower() == of.protocol)
            address = ip_address(of.address).packed.ljust(16, b"\0")
            request += [("IPVS_SVC_ATTR_PROTOCOL", number), ("IPVS_SVC_ATTR_ADDR", address), ("IPVS_SVC_ATTR_PORT", of.port)]
        answers = self._dump(GET_DEST, [("IPVS_CMD_ATTR_SERVICE", {"attrs": request})])
        found = (dict(m.get_attr("IPVS_CMD_ATTR_DEST")["attrs"]) for m in answers)
        return [_real(cast("DestAttributes", attributes), of.family) for attributes in found]

    def _dump(self, command: int, attributes: Request | None = None) -> Iterator[Answer]:
        from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST

        request = self._message()
        request["cmd"], request["version"], request["attrs"] = command, 1, attributes or []
        yield from self._socket.nlm_request(request, msg_type=self._socket.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP)

    def __enter__(self) -> IpvsSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _virtual(attributes: ServiceAttributes) -> VirtualServer:
    family, mark = attributes["IPVS_SVC_ATTR_AF"], attributes.get("IPVS_SVC_ATTR_FWMARK", 0)
    flags = int.from_bytes(attributes.get("IPVS_SVC_ATTR_FLAGS", b"")[:4], "little")
    scheduler = attributes.get("IPVS_SVC_ATTR_SCHED_NAME", "")
    is_persistent = bool(flags & PERSISTENT)
    if mark:
        return VirtualServer("", 0, "", scheduler, mark, is_persistent, family)
    number = attributes["IPVS_SVC_ATTR_PROTOCOL"]
    protocol = PROTOCOLS.get(number, str(number)).lower()
    address, port = _address(attributes["IPVS_SVC_ATTR_ADDR"], family), attributes["IPVS_SVC_ATTR_PORT"]
    return VirtualServer(address, port, protocol, scheduler, 0, is_persistent, family)


def _real(attributes: DestAttributes, family: int) -> RealServer:
    family = attributes.get("IPVS_DEST_ATTR_ADDR_FAMILY", family)
    address = _address(attributes["IPVS_DEST_ATTR_ADDR"], family)
    return RealServer(address, attributes["IPVS_DEST_ATTR_PORT"], attributes["IPVS_DEST_ATTR_WEIGHT"])


def _address(raw: bytes, family: int) -> str:
    """Decodes an address of IPVS, which has 16 bytes also for IPv4."""
    return str(ip_address(bytes(raw[:4] if family == AF_INET else raw[:16])))
