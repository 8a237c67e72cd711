# SPDX-License-Identifier: Apache-2.0
"""A NodePort on a port that a process listens on, found from rules or map elements of real nodes and the node's sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import audits
from tests.support.findings import FakeNode
from tests.support.nodes import MODES, node
from tracer.audit.nodeport_host_process import check
from tracer.model.finding import Finding
from tracer.node.node import ListeningSocket

NGINX = ListeningSocket("0.0.0.0", 30584, 812, "nginx")


def found(mode: str, scenario: str, folder: Path, on: FakeNode) -> list[Finding]:
    return list(check(audits.state(node(mode, scenario), folder, on)))


@pytest.mark.parametrize("mode", MODES)
def test_a_nodeport_without_endpoints(mode: str, tmp_path: Path) -> None:
    (finding,) = found(mode, "S1", tmp_path, FakeNode(listeners={(30584, "tcp"): NGINX}))
    assert finding.certain and finding.cause.startswith(
        "nginx (pid 812) listens on port 30584 of this node, but tcp 30584 is also the NodePort of Service"
        " default/lonely-web:http, which has no endpoints"
        + (" here: IPVS refuses" if "ipvs" in mode else ": the Service's rule")
    )
    shown, process = finding.proofs
    assert (shown.evidence, process.evidence) == (
        {"1.20.2-ipvs-nft": "Kubernetes API"}.get(mode) or
        ("iptables-save" if "legacy" in mode else "nft" if "nftables" in mode else "iptables-nft-save"), "/proc/net",
    )  # fmt: skip
    if "iptables-" in mode:
        assert shown.text.startswith("KUBE-EXTERNAL-SERVICES 1: ") and "--dport 30584" in shown.text
    elif "nftables" in mode:
        assert shown.text.startswith("element of map ip kube-proxy no-endpoint-nodeports: tcp . 30584")


@pytest.mark.parametrize("mode", MODES)
def test_a_nodeport_with_endpoints(mode: str, tmp_path: Path) -> None:
    on = FakeNode(listeners={(30285, "tcp"): ListeningSocket("::", 30285, 9, "java")})
    (finding,) = found(mode, "S2-three", tmp_path, on)
    assert "sends every request to one of the Service's pods" in finding.cause and finding.certain


def test_kube_proxys_own_socket_and_other_ports_are_no_finding(tmp_path: Path) -> None:
    mode = "1.20.2-iptables-legacy"
    held = FakeNode(listeners={(30285, "tcp"): ListeningSocket("0.0.0.0", 30285, 9, "kube-proxy")}, proxies=frozenset({9}))
    assert found(mode, "S2-three", tmp_path, held) == []
    assert found(mode, "S2-three", tmp_path, FakeNode(listeners={(30286, "tcp"): NGINX, (30285, "udp"): NGINX})) == []


def test_a_socket_of_an_unseen_process_is_only_likely(tmp_path: Path) -> None:
    on = FakeNode(listeners={(30584, "tcp"): ListeningSocket("0.0.0.0", 30584, 0, "")})
    (finding,) = found("1.36.2-iptables-legacy", "S1", tmp_path, on)
    assert not finding.certain
