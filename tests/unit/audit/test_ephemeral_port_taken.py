# SPDX-License-Identifier: Apache-2.0
"""NodePorts in the range from which the kernel gives ports to connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import audits
from tests.support.findings import FakeNode
from tests.support.nodes import MODES, node
from tracer.audit.ephemeral_port_taken import check
from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference

RANGE, RESERVED = "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports"


def found(mode: str, folder: Path, ports: str, reserved: str = "") -> list[Finding]:
    return list(check(audits.state(node(mode, "S2-three"), folder, FakeNode(settings={RANGE: ports, RESERVED: reserved}))))


@pytest.mark.parametrize("mode", MODES)
def test_the_range_has_a_node_port(mode: str, tmp_path: Path) -> None:
    (finding,) = found(mode, tmp_path, "30000 60999")
    assert "30285 of Service default/http-proxy" in finding.cause
    assert finding.certain == ("ipvs" in mode)
    assert ("IPVS then sends the answers to a pod" in finding.cause) == ("ipvs" in mode)
    assert finding.proofs[-1].text == "ip_local_port_range is 30000-60999, ip_local_reserved_ports is empty"
    assert "`sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767`" in finding.cure


@pytest.mark.parametrize(
    ("ports", "reserved"),
    [("32768 60999", ""), ("1024 65535", "8080,30000-32767"), ("1024 65535", "30000-30400,30500-32767"), ("", "")],
    ids=["the kernel's default", "all reserved", "its NodePorts reserved", "cannot be read"],
)
def test_nothing(ports: str, reserved: str, tmp_path: Path) -> None:
    one = "1.20.2-iptables-legacy"
    assert found(one, tmp_path, ports, reserved) == []


def test_what_is_left_of_a_partly_reserved_range(tmp_path: Path) -> None:
    (finding,) = found("1.20.2-iptables-legacy", tmp_path, "30285 30285", "30286")
    assert "ip_local_reserved_ports=30286,30000-32767`" in finding.cure
    assert finding.subject == ObjectReference("Service", "default", "http-proxy")
