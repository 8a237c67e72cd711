# SPDX-License-Identifier: Apache-2.0
"""IPVS's virtual servers and their real servers, over netlink.

Only asked where the kernel has IPVS loaded: the question itself would load it. Distributions' pyroute2 (0.7) has no class for
IPVS, so its messages are declared beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET
from typing import Any

from tracer.events.record import PROTOCOLS

GET_SERVICE, GET_DEST = 4, 8
PERSISTENT = 1
LOADED = Path("/proc/net/ip_vs")


@dataclass(frozen=True)
class RealServer:
    """weight 0: it gets no new connections."""

    address: str
    port: int
    weight: int = 1


@dataclass(frozen=True)
class VirtualServer:
    """fwmark: of one that goes by mark, which has neither address ("") nor port (0) nor protocol ("")."""

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
    """A socket to IPVS in this thread's network namespace; a context manager.

    Raises OSError, or pyroute2's errors, which are of many kinds.
    """

    def __init__(self) -> None:
        from pyroute2.netlink.generic import GenericNetlinkSocket

        from tracer.rules.ipvs import _messages as messages

        self._message = messages.IpvsMessage
        self._socket: Any = GenericNetlinkSocket()
        try:
            self._socket.bind("IPVS", self._message)
        except BaseException:
            self._socket.close()
            raise

    def virtual_servers(self) -> list[VirtualServer]:
        return [_virtual(dict(m.get_attr("IPVS_CMD_ATTR_SERVICE")["attrs"])) for m in self._dump(GET_SERVICE)]

    def real_servers(self, of: VirtualServer) -> list[RealServer]:
        """Those behind one virtual server; empty also when it is gone."""
        asked: list[tuple[str, Any]] = [("IPVS_SVC_ATTR_AF", of.family)]
        if of.fwmark:
            asked.append(("IPVS_SVC_ATTR_FWMARK", of.fwmark))
        else:
            number = next(n for n, name in PROTOCOLS.items() if name.lower() == of.protocol)
            address = ip_address(of.address).packed.ljust(16, b"\0")
            asked += [("IPVS_SVC_ATTR_PROTOCOL", number), ("IPVS_SVC_ATTR_ADDR", address), ("IPVS_SVC_ATTR_PORT", of.port)]
        found = self._dump(GET_DEST, [("IPVS_CMD_ATTR_SERVICE", {"attrs": asked})])
        return [_real(dict(m.get_attr("IPVS_CMD_ATTR_DEST")["attrs"]), of.family) for m in found]

    def _dump(self, command: int, attributes: list[tuple[str, Any]] | None = None) -> Iterator[Any]:
        from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST

        request = self._message()
        request["cmd"], request["version"], request["attrs"] = command, 1, attributes or []
        yield from self._socket.nlm_request(request, msg_type=self._socket.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP)

    def __enter__(self) -> IpvsSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _virtual(told: dict[str, Any]) -> VirtualServer:
    family, mark = told["IPVS_SVC_ATTR_AF"], told.get("IPVS_SVC_ATTR_FWMARK", 0)
    flags = int.from_bytes(told.get("IPVS_SVC_ATTR_FLAGS", b"")[:4], "little")
    more = {"scheduler": told.get("IPVS_SVC_ATTR_SCHED_NAME", ""), "persistent": bool(flags & PERSISTENT), "family": family}
    if mark:
        return VirtualServer("", 0, "", fwmark=mark, **more)
    number = told["IPVS_SVC_ATTR_PROTOCOL"]
    protocol = PROTOCOLS.get(number, str(number)).lower()
    return VirtualServer(_address(told["IPVS_SVC_ATTR_ADDR"], family), told["IPVS_SVC_ATTR_PORT"], protocol, **more)


def _real(told: dict[str, Any], family: int) -> RealServer:
    family = told.get("IPVS_DEST_ATTR_ADDR_FAMILY", family)
    address = _address(told["IPVS_DEST_ATTR_ADDR"], family)
    return RealServer(address, told["IPVS_DEST_ATTR_PORT"], told["IPVS_DEST_ATTR_WEIGHT"])


def _address(raw: bytes, family: int) -> str:
    """An address as IPVS writes it: in 16 bytes, also an IPv4 one."""
    return str(ip_address(bytes(raw[:4] if family == AF_INET else raw[:16])))
