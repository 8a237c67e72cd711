# SPDX-License-Identifier: Apache-2.0
"""The requests to ipsets, and the cases without a request."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tracer.predict.ipsets import IpSetReader
from tracer.rules.packet_view import PacketView

PACKET = PacketView("ip", 0x0A000001, 0xC0A8380A, 0, 0, 6, sport=0, dport=80)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests to a kernel. Each set's name is its kind, and each set contains everything."""
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
def test_a_request_fits_the_kind_of_the_set(requests: list[Any], kind: str, flags: tuple[str, ...], entry: Any) -> None:
    sets = IpSetReader()
    assert sets.has(kind, flags, PACKET) is True and sets.has(kind, flags, PACKET) is True
    assert requests == [(kind.partition(":")[2], entry)], "once"


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("hash:net,iface", ("src", "src")),
        ("list:set", ("src",)),
        ("hash:ip,port", ("src",)),
        ("bitmap:port", ("src",)),
    ],
)
def test_a_set_that_cannot_be_tested(requests: list[Any], kind: str, flags: tuple[str, ...]) -> None:
    assert IpSetReader().has(kind, flags, PACKET) is None and requests == []
