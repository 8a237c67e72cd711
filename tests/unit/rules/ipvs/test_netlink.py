# SPDX-License-Identifier: Apache-2.0
"""Virtual servers, real servers and sets, as netlink's messages tell them."""

from __future__ import annotations

from socket import AF_INET6
from typing import Any

import pytest
from pyroute2.netlink import nlmsg

from tracer.rules import ipset
from tracer.rules.ipset import IpSet
from tracer.rules.ipvs import netlink
from tracer.rules.ipvs._messages import IpvsMessage
from tracer.rules.ipvs.netlink import RealServer, VirtualServer

FLAGS = bytes([3, 0, 0, 0, 255, 255, 255, 255])
SERVICE = [
    ("IPVS_SVC_ATTR_AF", 2), ("IPVS_SVC_ATTR_PROTOCOL", 6), ("IPVS_SVC_ATTR_ADDR", bytes([172, 30, 0, 1]) + bytes(12)),
    ("IPVS_SVC_ATTR_PORT", 443), ("IPVS_SVC_ATTR_SCHED_NAME", "rr"), ("IPVS_SVC_ATTR_FLAGS", FLAGS),
]  # fmt: skip
DEST = [
    ("IPVS_DEST_ATTR_ADDR", bytes([10, 244, 0, 11]) + bytes(12)), ("IPVS_DEST_ATTR_PORT", 6443), ("IPVS_DEST_ATTR_WEIGHT", 0),
    ("IPVS_DEST_ATTR_ADDR_FAMILY", 2),
]  # fmt: skip


def through_bytes(attribute: str, told: list[tuple[str, Any]]) -> Any:
    """A message as it comes out of the kernel's bytes."""
    sent = IpvsMessage()
    sent["cmd"], sent["version"], sent["attrs"] = 1, 1, [(attribute, {"attrs": told})]
    sent.encode()
    came = IpvsMessage(sent.data)
    came.decode()
    return came


class Answers(netlink.IpvsSocket):
    """A socket that gives these messages."""

    def __init__(self, *messages: Any) -> None:
        self.messages = messages
        self.asked: list[tuple[int, Any]] = []

    def _dump(self, command: int, attributes: list[tuple[str, Any]] | None = None) -> Any:
        self.asked.append((command, attributes))
        return iter(self.messages)


def test_a_virtual_server() -> None:
    answers = Answers(through_bytes("IPVS_CMD_ATTR_SERVICE", SERVICE))
    assert answers.virtual_servers() == [VirtualServer("172.30.0.1", 443, "tcp", "rr", persistent=True)]


def test_one_by_mark_and_one_of_ipv6() -> None:
    mark = through_bytes("IPVS_CMD_ATTR_SERVICE", [("IPVS_SVC_ATTR_AF", 2), ("IPVS_SVC_ATTR_FWMARK", 5)])
    six = [("IPVS_SVC_ATTR_AF", AF_INET6), ("IPVS_SVC_ATTR_PROTOCOL", 17), ("IPVS_SVC_ATTR_ADDR", bytes(15) + b"\1")]
    found = Answers(mark, through_bytes("IPVS_CMD_ATTR_SERVICE", [*six, ("IPVS_SVC_ATTR_PORT", 53)])).virtual_servers()
    assert found[0] == VirtualServer("", 0, "", fwmark=5)
    assert found[1] == VirtualServer("::1", 53, "udp", family=AF_INET6)


def test_real_servers_of_one() -> None:
    answers = Answers(through_bytes("IPVS_CMD_ATTR_DEST", DEST))
    assert answers.real_servers(VirtualServer("172.30.0.1", 443, "tcp")) == [RealServer("10.244.0.11", 6443, 0)]
    ((command, ((name, asked),)),) = answers.asked
    assert (command, name) == (netlink.GET_DEST, "IPVS_CMD_ATTR_SERVICE")
    assert asked["attrs"] == SERVICE[:4], "it is asked for by family, protocol, address and port"
    answers.real_servers(VirtualServer("", 0, "", fwmark=5))
    assert answers.asked[1][1][0][1]["attrs"] == [("IPVS_SVC_ATTR_AF", 2), ("IPVS_SVC_ATTR_FWMARK", 5)]


def test_nothing_is_asked_where_it_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(netlink, "LOADED", tmp_path / "ip_vs")
    monkeypatch.setattr(ipset, "LOADED", tmp_path / "ip_set")
    assert not netlink.loaded() and not ipset.loaded()
    (tmp_path / "ip_vs").touch()
    (tmp_path / "ip_set").mkdir()
    assert netlink.loaded() and ipset.loaded()


def test_a_set() -> None:
    told = nlmsg()
    inside = nlmsg()
    inside["attrs"] = [("IPSET_ATTR_ELEMENTS", 2)]
    told["attrs"] = [("IPSET_ATTR_SETNAME", "KUBE-CLUSTER-IP"), ("IPSET_ATTR_TYPENAME", "hash:ip,port")]
    assert ipset._set(told) == IpSet("KUBE-CLUSTER-IP", "hash:ip,port", 0), "a kernel that does not count"
    told["attrs"] = [*told["attrs"], ("IPSET_ATTR_DATA", inside)]
    assert ipset._set(told) == IpSet("KUBE-CLUSTER-IP", "hash:ip,port", 2)
