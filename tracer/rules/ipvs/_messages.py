# SPDX-License-Identifier: Apache-2.0
"""Messages of IPVS's generic netlink, as include/uapi/linux/ip_vs.h numbers them. Imported only when IPVS is read.

Each attribute is described twice: for pyroute2, which decodes it, and for the type checker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypedDict

from pyroute2.netlink import genlmsg, nla

AttributeValue = int | str | bytes
"""A decoded attribute: uint and be are int, asciiz is str, cdata is bytes."""
Request = list[tuple[str, dict[str, list[tuple[str, AttributeValue]]]]]
"""Attributes of a request: the name of a nested attribute, and {"attrs": its attributes}."""


class Answer(Protocol):
    """A decoded message."""

    def get_attr(self, name: str) -> dict[str, Iterable[tuple[str, AttributeValue]]]:
        """The nested attribute of this name: its own attributes, in order, are in "attrs"."""


class ServiceAttributes(TypedDict, total=False):
    """Decoded attributes of a virtual server."""

    IPVS_SVC_ATTR_AF: int
    IPVS_SVC_ATTR_PROTOCOL: int
    IPVS_SVC_ATTR_ADDR: bytes
    IPVS_SVC_ATTR_PORT: int
    IPVS_SVC_ATTR_FWMARK: int
    IPVS_SVC_ATTR_SCHED_NAME: str
    IPVS_SVC_ATTR_FLAGS: bytes


class DestAttributes(TypedDict, total=False):
    """Decoded attributes of a real server."""

    IPVS_DEST_ATTR_ADDR: bytes
    IPVS_DEST_ATTR_PORT: int
    IPVS_DEST_ATTR_WEIGHT: int
    IPVS_DEST_ATTR_ADDR_FAMILY: int


class IpvsMessage(genlmsg):  # type: ignore[misc]
    prefix = "IPVS_CMD_ATTR_"
    nla_map = (
        ("IPVS_CMD_ATTR_UNSPEC", "none"),
        ("IPVS_CMD_ATTR_SERVICE", "service"),
        ("IPVS_CMD_ATTR_DEST", "dest"),
    )

    class service(nla):  # type: ignore[misc]
        nla_map = (
            ("IPVS_SVC_ATTR_UNSPEC", "none"),
            ("IPVS_SVC_ATTR_AF", "uint16"),
            ("IPVS_SVC_ATTR_PROTOCOL", "uint16"),
            ("IPVS_SVC_ATTR_ADDR", "cdata"),
            ("IPVS_SVC_ATTR_PORT", "be16"),
            ("IPVS_SVC_ATTR_FWMARK", "uint32"),
            ("IPVS_SVC_ATTR_SCHED_NAME", "asciiz"),
            ("IPVS_SVC_ATTR_FLAGS", "cdata"),
        )

    class dest(nla):  # type: ignore[misc]
        nla_map = (
            ("IPVS_DEST_ATTR_UNSPEC", "none"),
            ("IPVS_DEST_ATTR_ADDR", "cdata"),
            ("IPVS_DEST_ATTR_PORT", "be16"),
            ("IPVS_DEST_ATTR_FWD_METHOD", "uint32"),
            ("IPVS_DEST_ATTR_WEIGHT", "uint32"),
            ("IPVS_DEST_ATTR_U_THRESH", "uint32"),
            ("IPVS_DEST_ATTR_L_THRESH", "uint32"),
            ("IPVS_DEST_ATTR_ACTIVE_CONNS", "uint32"),
            ("IPVS_DEST_ATTR_INACT_CONNS", "uint32"),
            ("IPVS_DEST_ATTR_PERSIST_CONNS", "uint32"),
            ("IPVS_DEST_ATTR_STATS", "cdata"),
            ("IPVS_DEST_ATTR_ADDR_FAMILY", "uint16"),
        )
