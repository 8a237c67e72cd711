# SPDX-License-Identifier: Apache-2.0
"""What is asked of ipsets, and what is not."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tracer.predict.ipsets import IpSetReader
from tracer.rules.packet_view import PacketView

PACKET = PacketView("ip", 0x0A000001, 0xC0A8380A, 0, 0, 6, sport=0, dport=80)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The questions put to a kernel that has sets of the kinds that their names say, and everything in them."""
    found: list[Any] = []

    class IPSet:
        def __init__(self, nfgen_family: int) -> None:
            pass

        def __enter__(self) -> IPSet:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def headers(self, name: str) -> list[dict[str, Any]]:
            return [{"attrs": [("IPSET_ATTR_TYPENAME", name)]}]

        def test(self, name: str, entry: Any, family: int, etype: str) -> bool:
            found.append((etype, entry))
            return True

    port_entry = lambda port, protocol: ("port", port, protocol)  # noqa: E731
    monkeypatch.setitem(sys.modules, "pyroute2.ipset", SimpleNamespace(IPSet=IPSet, PortEntry=port_entry))
    return found


@pytest.mark.parametrize(
    ("kind", "flags", "entry"),
    [
        ("hash:ip", ("src",), "10.0.0.1"), ("hash:net", ("dst",), "192.168.56.10"), ("bitmap:port", ("dst",), 80),
        ("hash:ip,port", ("dst", "dst"), ("192.168.56.10", ("port", 80, 6))),
        ("hash:ip,port,ip", ("dst", "dst", "src"), ("192.168.56.10", ("port", 80, 6), "10.0.0.1")),
    ],
)  # fmt: skip
def test_asked_by_its_kind(asked: list[Any], kind: str, flags: tuple[str, ...], entry: Any) -> None:
    sets = IpSetReader()
    assert sets.has(kind, flags, PACKET) is True and sets.has(kind, flags, PACKET) is True
    assert asked == [(kind.partition(":")[2], entry)], "once"


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("hash:net,iface", ("src", "src")),
        ("list:set", ("src",)),
        ("hash:ip,port", ("src",)),
        ("bitmap:port", ("src",)),
    ],
)
def test_what_cannot_be_told(asked: list[Any], kind: str, flags: tuple[str, ...]) -> None:
    assert IpSetReader().has(kind, flags, PACKET) is None and asked == []
