# SPDX-License-Identifier: Apache-2.0
"""A datapath of Open vSwitch in this thread's network namespace, with ports and flows, without ovs-vswitchd.

Messages of generic netlink as include/uapi/linux/openvswitch.h describes them. The test must be able to load the module.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from scenes.netns import entered

ECHO, ACK, REQUEST = 0x8, 0x4, 0x1
_ERROR, _CONTROL, _GET_FAMILY = 2, 16, 3
_NEW, _DELETE = 1, 2
NETDEV = 1
_VERSIONS = {"ovs_datapath": 2, "ovs_vport": 1, "ovs_flow": 1}
IPV4, ARP = 0x0800, 0x0806
UDP = 17
_IN_PORT, _ETHERNET, _ETHERTYPE, _IPV4, _UDP, _ARP = 3, 4, 6, 7, 10, 13
_OUTPUT, _DROP = 1, 24

MODULE = Path("/sys/module/openvswitch")
"""Exists where the module is loaded."""
PODS = {"ovs-a": "10.66.0.1", "ovs-b": "10.66.0.2"}
"""Namespaces of two pods, and their addresses."""


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def output(port: int) -> bytes:
    """The action that sends a packet to a port."""
    return attribute(_OUTPUT, struct.pack("=I", port))


def drop() -> bytes:
    """The action that drops a packet, since Linux 6.6."""
    return attribute(_DROP, struct.pack("=I", 0))


class Datapath:
    """A datapath; a context manager that removes it.

    Args:
        name: Name of its own interface.
        devices: Interfaces that become its ports, from port 1 on.

    Raises:
        OSError: The kernel refuses it, or has no Open vSwitch.
    """

    def __init__(self, name: str, devices: Sequence[str]) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self._socket.bind((0, 0))
        self._families = {family: self._family(family) for family in _VERSIONS}
        self._name, self._index = name, 0
        attrs = attribute(1, name.encode() + b"\0") + attribute(2, struct.pack("=I", 0)) + attribute(5, struct.pack("=I", 3))
        self._index = struct.unpack_from("=i", self._send("ovs_datapath", _NEW, attrs))[0]
        for number, device in enumerate(devices, 1):
            attrs = attribute(1, struct.pack("=I", number)) + attribute(2, struct.pack("=I", NETDEV))
            attrs += attribute(3, device.encode() + b"\0") + attribute(5, struct.pack("=I", 0))
            self._send("ovs_vport", _NEW, attrs)

    def arp(self, port: int, *actions: bytes) -> None:
        """Adds the flow of ARP from a port."""
        self._flow(port, ARP, attribute(_ARP, bytes(24)), attribute(_ARP, bytes(24)), actions)

    def udp(self, port: int, to: int, *actions: bytes) -> None:
        """Adds or changes the flow of UDP from a port to a UDP port; no action: the packets are not forwarded."""
        ip, mask = struct.pack(">IIBBBB", 0, 0, UDP, 0, 0, 0), struct.pack(">IIBBBB", 0, 0, 0xFF, 0, 0, 0)
        key = attribute(_IPV4, ip) + attribute(_UDP, struct.pack(">HH", 0, to))
        self._flow(port, IPV4, key, attribute(_IPV4, mask) + attribute(_UDP, struct.pack(">HH", 0, 0xFFFF)), actions)

    def _flow(self, port: int, ethertype: int, key: bytes, mask: bytes, actions: Sequence[bytes]) -> None:
        head = attribute(_IN_PORT, struct.pack("=I", port)) + attribute(_ETHERNET, bytes(12))
        head += attribute(_ETHERTYPE, struct.pack(">H", ethertype))
        head_mask = attribute(_IN_PORT, b"\xff" * 4) + attribute(_ETHERNET, bytes(12)) + attribute(_ETHERTYPE, b"\xff\xff")
        self._send(
            "ovs_flow", _NEW, attribute(1, head + key) + attribute(2, b"".join(actions)) + attribute(7, head_mask + mask)
        )

    def _family(self, name: str) -> int:
        body = struct.pack("=BBH", _GET_FAMILY, 1, 0) + attribute(2, name.encode() + b"\0")
        answer = self._exchange(_CONTROL, body, 0)[4:]
        while answer:
            length, kind = struct.unpack_from("=HH", answer)
            if kind == 1:
                return int(struct.unpack_from("=H", answer, 4)[0])
            answer = answer[(length + 3) & ~3 :]
        raise OSError(f"no number of {name}")

    def _send(self, family: str, command: int, attrs: bytes) -> bytes:
        """Sends a command; returns the answer from struct ovs_header on."""
        body = struct.pack("=BBHi", command, _VERSIONS[family], 0, self._index) + attrs
        return self._exchange(self._families[family], body, ECHO)[4:]

    def _exchange(self, kind: int, body: bytes, flags: int) -> bytes:
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | ACK | flags, 1, 0) + body)
        answer = b""
        while True:
            data = self._socket.recv(65536)
            while data:
                length, got = struct.unpack_from("=IH", data)
                if got == _ERROR:
                    code = -struct.unpack_from("=i", data, 16)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return answer
                answer = data[16:length]
                data = data[(length + 3) & ~3 :]

    def __enter__(self) -> Datapath:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        with self._socket:
            self._send("ovs_datapath", _DELETE, b"")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def two_pods() -> Iterator[Datapath]:
    """The two pods, at ports 1 and 2 of a datapath with flows for ARP alone. There is no ovs-vswitchd to ask for others."""
    with ExitStack() as stack:
        for name, address in PODS.items():
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("link", "set", f"v{name}", "up")
        datapath = stack.enter_context(Datapath("br-test", [f"v{name}" for name in PODS]))
        for port in (1, 2):
            datapath.arp(port, output(3 - port))
        yield datapath


def sockets(stack: ExitStack, port: int) -> tuple[socket.socket, socket.socket]:
    """A UDP socket of the first pod, and one of the second that is bound to a port."""
    made = []
    for name in PODS:
        with entered(name):
            made.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
    made[1].bind((PODS["ovs-b"], port))
    return made[0], made[1]
