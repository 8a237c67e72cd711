# SPDX-License-Identifier: Apache-2.0
"""Virtual servers, real servers and IP sets, read from netlink messages."""

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


def through_bytes(attribute: str, fields: list[tuple[str, Any]]) -> Any:
    """A message with these fields, encoded to bytes and decoded again."""
    encoded = IpvsMessage()
    encoded["cmd"], encoded["version"], encoded["attrs"] = 1, 1, [(attribute, {"attrs": fields})]
    encoded.encode()
    decoded = IpvsMessage(encoded.data)
    decoded.decode()
    return decoded


class Answers(netlink.IpvsSocket):
    """A socket that answers each dump with these messages; it keeps the requests."""

    def __init__(self, *messages: Any) -> None:
        self.messages = messages
        self.requests: list[tuple[int, Any]] = []

    def _dump(self, command: int, attributes: list[tuple[str, Any]] | None = None) -> Any:
        self.requests.append((command, attributes))
        return iter(self.messages)


def test_a_virtual_server() -> None:
    answers = Answers(through_bytes("IPVS_CMD_ATTR_SERVICE", SERVICE))
    assert answers.virtual_servers() == [VirtualServer("172.30.0.1", 443, "tcp", "rr", persistent=True)]


def test_virtual_servers_of_a_mark_and_of_ipv6() -> None:
    mark = through_bytes("IPVS_CMD_ATTR_SERVICE", [("IPVS_SVC_ATTR_AF", 2), ("IPVS_SVC_ATTR_FWMARK", 5)])
    six = [("IPVS_SVC_ATTR_AF", AF_INET6), ("IPVS_SVC_ATTR_PROTOCOL", 17), ("IPVS_SVC_ATTR_ADDR", bytes(15) + b"\1")]
    found = Answers(mark, through_bytes("IPVS_CMD_ATTR_SERVICE", [*six, ("IPVS_SVC_ATTR_PORT", 53)])).virtual_servers()
    assert found[0] == VirtualServer("", 0, "", fwmark=5)
    assert found[1] == VirtualServer("::1", 53, "udp", family=AF_INET6)


def test_real_servers_of_a_virtual_server() -> None:
    answers = Answers(through_bytes("IPVS_CMD_ATTR_DEST", DEST))
    assert answers.real_servers(VirtualServer("172.30.0.1", 443, "tcp")) == [RealServer("10.244.0.11", 6443, 0)]
    ((command, ((name, request),)),) = answers.requests
    assert (command, name) == (netlink.GET_DEST, "IPVS_CMD_ATTR_SERVICE")
    assert request["attrs"] == SERVICE[:4], "the request has family, protocol, address and port"
    answers.real_servers(VirtualServer("", 0, "", fwmark=5))
    assert answers.requests[1][1][0][1]["attrs"] == [("IPVS_SVC_ATTR_AF", 2), ("IPVS_SVC_ATTR_FWMARK", 5)]


def test_a_module_is_loaded_if_its_path_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(netlink, "LOADED", tmp_path / "ip_vs")
    monkeypatch.setattr(ipset, "LOADED", tmp_path / "ip_set")
    assert not netlink.loaded() and not ipset.loaded()
    (tmp_path / "ip_vs").touch()
    (tmp_path / "ip_set").mkdir()
    assert netlink.loaded() and ipset.loaded()


def test_a_set() -> None:
    message = nlmsg()
    data = nlmsg()
    data["attrs"] = [("IPSET_ATTR_ELEMENTS", 2)]
    message["attrs"] = [("IPSET_ATTR_SETNAME", "KUBE-CLUSTER-IP"), ("IPSET_ATTR_TYPENAME", "hash:ip,port")]
    assert ipset._set(message) == IpSet("KUBE-CLUSTER-IP", "hash:ip,port", 0), "this kernel does not count elements"
    message["attrs"] = [*message["attrs"], ("IPSET_ATTR_DATA", data)]
    assert ipset._set(message) == IpSet("KUBE-CLUSTER-IP", "hash:ip,port", 2)
