# SPDX-License-Identifier: Apache-2.0
"""Lists ipsets over netlink. Must be used only where the kernel has ip_set loaded: the request itself would load it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, overload

LOADED = Path("/sys/module/ip_set")


@dataclass(frozen=True)
class IpSet:
    """An ipset without its elements.

    Attributes:
        name: Its name.
        kind: Its type, such as "hash:ip,port".
        entries: Number of its elements.
    """

    name: str
    kind: str
    entries: int


class _Data(Protocol):
    """The nested attributes of a set."""

    def get_attr(self, name: Literal["IPSET_ATTR_ELEMENTS"]) -> int | None: ...


class _Message(Protocol):
    """A message of pyroute2 about one set."""

    @overload
    def get_attr(self, name: Literal["IPSET_ATTR_DATA"]) -> _Data | None: ...

    @overload
    def get_attr(self, name: Literal["IPSET_ATTR_SETNAME", "IPSET_ATTR_TYPENAME"]) -> str: ...


def loaded() -> bool:
    """Whether the kernel has ip_set."""
    return LOADED.exists()


def sets() -> list[IpSet]:
    """The ipsets of this thread's network namespace, by name, without their elements. Raises OSError or pyroute2's errors."""
    from pyroute2 import IPSet
    from pyroute2.netlink.nfnetlink.ipset import IPSET_FLAG_LIST_HEADER

    with IPSet() as socket:
        return sorted((_set(m) for m in socket.list(flags=IPSET_FLAG_LIST_HEADER)), key=lambda s: s.name)


def _set(message: _Message) -> IpSet:
    data = message.get_attr("IPSET_ATTR_DATA")
    kind = message.get_attr("IPSET_ATTR_TYPENAME")
    return IpSet(message.get_attr("IPSET_ATTR_SETNAME"), kind, data.get_attr("IPSET_ATTR_ELEMENTS") or 0 if data else 0)
