# SPDX-License-Identifier: Apache-2.0
"""Sockets and counters from /proc/net. Nothing is changed, and no kernel module is loaded.

Sockets are read from /proc/net/tcp and not by sock_diag: the first request to sock_diag loads the module tcp_diag or udp_diag,
and the tracer changes nothing. Listening sockets are first in /proc/net/tcp, so the rest of a busy node's table is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from pathlib import Path

LISTEN, UNCONNECTED = "0A", "07"
WILDCARDS = frozenset({"0.0.0.0", "::"})
MOST_CONNECTED = 1024
"""Maximum number of connected sockets with one port that are returned."""


@dataclass(frozen=True)
class BoundSocket:
    """A listening or unconnected socket.

    Attributes:
        address: The address; "0.0.0.0" or "::" = all addresses.
        port: The port.
        inode: Inode of the socket.
    """

    address: str
    port: int
    inode: int

    def takes(self, address: str) -> bool:
        """Whether the socket receives packets to this address; "::" includes IPv4, the default of sockets."""
        return self.address in (address, "::") or (self.address == "0.0.0.0" and ":" not in address)


def receiver(sockets: Iterable[BoundSocket], address: str, port: int) -> BoundSocket | None:
    """The socket that receives packets to an address and port. As in the kernel, the exact address has precedence."""
    found = (b for b in sockets if b.port == port and b.takes(address))
    return min(found, key=lambda b: (b.address in WILDCARDS, b.address), default=None)


def bound(proc: Path, protocol: str) -> tuple[BoundSocket, ...]:
    """Listening TCP or unconnected UDP sockets of a namespace.

    Args:
        proc: /proc/PID/net.
        protocol: "tcp" or "udp"; the result is () for any other.
    """
    if protocol not in ("tcp", "udp"):
        return ()
    return tuple(
        b for name in (protocol, protocol + "6") for b in _table(proc / name, LISTEN if protocol == "tcp" else UNCONNECTED)
    )


def _table(path: Path, state: str) -> Iterator[BoundSocket]:
    try:
        with path.open(encoding="ascii") as lines:
            next(lines, "")
            for line in lines:
                fields = line.split()
                if fields[3] != state:
                    if state == LISTEN:
                        return
                    continue
                address, _, port = fields[1].partition(":")
                yield BoundSocket(_address(address), int(port, 16), int(fields[9]))
    except (OSError, ValueError, IndexError):
        return


@dataclass(frozen=True)
class ConnectedSocket:
    """A socket with a peer, also one of a connection that is still being made.

    Attributes:
        address: Its own address.
        port: Its own port.
        peer: Address of its peer.
        peer_port: Port of its peer.
        inode: Inode of the socket; 0 = no process holds it any more.
    """

    address: str
    port: int
    peer: str
    peer_port: int
    inode: int


def connected(proc: Path, protocol: str, port: int) -> tuple[ConnectedSocket, ...]:
    """The sockets of a namespace that have a peer and a port of their own, at most MOST_CONNECTED.

    Args:
        proc: /proc/PID/net.
        protocol: "tcp" or "udp"; the result is () for any other.
        port: The sockets' own port.
    """
    if protocol not in ("tcp", "udp"):
        return ()
    found = (s for name in (protocol, protocol + "6") for s in _peers(proc / name, f":{port:04X}"))
    return tuple(islice(found, MOST_CONNECTED))


def _peers(path: Path, own: str) -> Iterator[ConnectedSocket]:
    """own: a colon and the port, as the file has it."""
    try:
        with path.open(encoding="ascii") as lines:
            next(lines, "")
            for line in lines:
                fields = line.split(maxsplit=10)
                if not fields[1].endswith(own) or fields[3] in (LISTEN, UNCONNECTED):
                    continue
                (address, _, port), (peer, _, to) = fields[1].partition(":"), fields[2].partition(":")
                yield ConnectedSocket(_address(address), int(port, 16), _address(peer), int(to, 16), int(fields[9]))
    except (OSError, ValueError, IndexError):
        return


def _address(digits: str) -> str:
    """Decodes an address of /proc/net: 32-bit words in host order, which is little endian on all supported machines."""
    packed = b"".join(bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8))
    if len(packed) == 4:
        return str(IPv4Address(packed))
    found = IPv6Address(packed)
    return str(found.ipv4_mapped or found)


def counters(proc: Path) -> dict[str, int]:
    """TcpExt counters of a namespace by the kernel's names: ListenOverflows, ListenDrops ... {} = they cannot be read."""
    try:
        lines = (proc / "netstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    rows = [line.split()[1:] for line in lines if line.startswith("TcpExt:")]
    return {name: int(value) for name, value in zip(*rows, strict=True)} if len(rows) == 2 else {}


def packet_queues(proc: Path) -> tuple[int, ...] | None:
    """Numbers of the queues of NFQUEUE rules to which a process of a namespace is bound; None = they cannot be read.

    Without nfnetlink_queue there is no such file, and no process can be bound.
    """
    try:
        lines = (proc / "netfilter/nfnetlink_queue").read_text(encoding="ascii").splitlines()
        return tuple(int(line.split()[0]) for line in lines if line.strip())
    except FileNotFoundError:
        return () if (proc / "netfilter").is_dir() else None
    except (OSError, ValueError, IndexError):
        return None


def conntrack(proc: Path) -> dict[str, int]:
    """conntrack's counters of a namespace, summed over CPUs; {} = they cannot be read. The file has hexadecimal numbers."""
    try:
        head, *lines = (proc / "stat/nf_conntrack").read_text(encoding="ascii").splitlines()
        rows = [[int(number, 16) for number in line.split()] for line in lines]
    except (OSError, ValueError):
        return {}
    return {name: sum(column) for name, column in zip(head.split(), zip(*rows, strict=False), strict=False)}
