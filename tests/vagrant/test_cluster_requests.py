# SPDX-License-Identifier: Apache-2.0
"""The requests of the cluster's scenes, against their own servers on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.cluster  # noqa: F401  # the path of cluster_scene
from cluster_scene import requests
from cluster_scene.requests import TrafficCount
from scenes import servers

HERE = "127.0.0.1"
SHORT = 0.2


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The ports of a server's TCP and UDP."""
    monkeypatch.setattr(servers, "STATE_DIR", tmp_path)
    tcp, udp = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)
    with servers.running([servers.Server(None, "cart-x", tcp, udp)]):
        yield tcp, udp


def answered(sent: int) -> TrafficCount:
    found = TrafficCount(sent, sent)
    found.by["cart-x"] = sent
    return found


def test_requests_that_are_answered(ports: tuple[int, int]) -> None:
    tcp, udp = ports
    assert requests.tcp(2, HERE, tcp, None, 10.0) == answered(2)
    assert requests.upload(3000, HERE, tcp, None, 10.0) == answered(1)
    assert requests.single_datagrams(3, 1300, HERE, udp, None, 10.0) == answered(3)


def test_requests_that_are_not() -> None:
    port = free_port(socket.SOCK_STREAM)
    assert requests.tcp(1, HERE, port, None, SHORT) == TrafficCount(1)
    assert requests.upload(3000, HERE, port, None, SHORT) == TrafficCount(1)
    assert requests.single_datagrams(2, 100, HERE, free_port(socket.SOCK_DGRAM), None, SHORT) == TrafficCount(2)
