# SPDX-License-Identifier: Apache-2.0
"""The Services and hostPorts that rules are written for, and functions that all modes use.

The tracer also computes the names of chains and endpoints. Nothing is imported from it here: otherwise the tests would not
notice its mistakes.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from dataclasses import dataclass

PODS = {4: "10.244.0.0/16", 6: "fd00:10:244::/56"}
SERVICES = {4: "172.30.0.0/16", 6: "fd00:172:30::/112"}


@dataclass(frozen=True)
class Service:
    """One Service with one port. name: ns/name. ends: (address, port) of its endpoints. local: policy Local, and only the
    endpoints `near` count as local. affinity: a client keeps its endpoint. protocol: tcp, or udp, which the rules of iptables
    mode alone can have.
    """

    name: str
    address: str
    port: int
    node_port: int = 0
    ends: tuple[tuple[str, int], ...] = ()
    port_name: str = ""
    local: bool = False
    affinity: bool = False
    near: tuple[tuple[str, int], ...] = ()
    protocol: str = "tcp"

    @property
    def label(self) -> str:
        return self.name + (f":{self.port_name}" if self.port_name else "")

    @property
    def family(self) -> int:
        return 6 if ":" in self.address else 4


@dataclass(frozen=True)
class HostPort:
    """A hostPort of a pod, as portmap writes it. container: the sandbox's id."""

    port: int
    address: str
    to: int
    container: str


def digest(text: str, length: int) -> str:
    """The hash in kube-proxy's chain names."""
    return b32encode(hashlib.sha256(text.encode()).digest()).decode()[:length]


def end(address: str, port: int) -> str:
    """10.0.0.1:80, [fd00::1]:80."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
