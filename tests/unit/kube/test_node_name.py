# SPDX-License-Identifier: Apache-2.0
"""The node's own addresses, and the Services' addresses on kube-ipvs0."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pyroute2
import pytest

from tracer.kube.catalog import ClusterView
from tracer.kube.selected_ends import LOCAL, kernel_filter
from tracer.model.filter import Filter
from tracer.node import addresses

TRIE = """Local:
  +-- 0.0.0.0/0 3 0 5
        |-- 172.30.0.1
           /32 host LOCAL
        |-- 192.168.56.10
           /32 host LOCAL
        |-- 192.168.56.255
           /32 link BROADCAST
"""


class Route:
    """A machine with kube-ipvs0 as interface 7."""

    def __enter__(self) -> Route:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_addr(self, index: int) -> list[Any]:
        assert index == 7

        class Message(str):
            def get_attr(self, name: str) -> str:
                assert name == "IFA_ADDRESS"
                return str(self)

        return [Message("172.30.0.1"), Message("fd00:30::1"), Message("fe80::1")]


def test_local_addresses_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "1/net").mkdir(parents=True)
    (tmp_path / "1/net/fib_trie").write_text(TRIE)
    (tmp_path / "1/net/if_inet6").write_text("fd000056000000000000000000000010 02 40 00 80 eth0\n")
    assert addresses.local_addresses(tmp_path) == {"172.30.0.1", "192.168.56.10", "fd00:56::10"}
    assert addresses.local_addresses(tmp_path / "nowhere") == frozenset()


def test_addresses_of_kube_ipvs0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses.ipvs_addresses() == frozenset(), "there is no such interface here"
    monkeypatch.setattr(socket, "if_nametoindex", {"kube-ipvs0": 7}.__getitem__)
    monkeypatch.setattr(pyroute2, "IPRoute", Route)
    assert addresses.ipvs_addresses() == {"172.30.0.1", "fd00:30::1"}


def test_a_node_port_is_not_traced_at_a_services_address() -> None:
    """Otherwise a node with many Services would have too many hosts for the kernel's filter."""
    known = ClusterView(local=frozenset({"192.168.56.10", "172.30.0.1"}), ipvs=frozenset({"172.30.0.1"}))
    found = kernel_filter(Filter(), frozenset({(LOCAL, 30285, "")}), known)
    assert [str(h) for h in found.hosts] == ["192.168.56.10/32"] and found.ports == (30285,)
