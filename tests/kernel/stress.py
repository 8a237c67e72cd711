# SPDX-License-Identifier: Apache-2.0
"""Makes stress: namespaces that come and go, many connections, hostile rules."""

from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from scenes import topology, traffic
from scenes.netns import CLONE_NEWNET, RUN_DIR, Child, _libc, entered

PASSING, HOSTILE = 9131, 9132
"""UDP ports: of the short-lived namespaces, and of the packets that meet hostile rules."""
SIOCSIFFLAGS, UP = 0x8914, 0x1
NAMED, WITH_NFT, WITH_IPTABLES = 10, 50, 25
"""One namespace in this many has a name, rules of nftables, rules of legacy iptables."""
PARENTS = 2


def passing_namespaces(count: int) -> int:
    """Makes and removes `count` namespaces; sends two datagrams over the loopback of each. Returns the number of datagrams."""
    children = [Child(None, lambda share=share: _make_share(share, count)) for share in range(PARENTS)]  # type: ignore[misc]
    return sum(child.result(600) for child in children)


def _make_share(share: int, count: int) -> int:
    """Makes one parent's share. The process enters each new namespace; the one before then ends."""
    sent = 0
    for number in range(share, count, PARENTS):
        if _libc.unshare(CLONE_NEWNET) != 0:
            raise OSError("unshare")
        with _loopback() as (ours, theirs):
            name = RUN_DIR / f"passing-{number}"
            if number % NAMED == 0:
                name.touch()
                subprocess.run(["mount", "--bind", "/proc/self/ns/net", str(name)], check=True)
            if number % WITH_NFT == 1:
                rules = (
                    f"table inet t {{ chain c {{ type filter hook input priority 0; udp dport {PASSING} counter accept; }}\n}}"
                )
                subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
            if number % WITH_IPTABLES == 2:
                subprocess.run(["iptables-legacy", "-w", "-A", "INPUT", "-p", "udp", "-j", "ACCEPT"], check=True)
            for _ in range(2):
                ours.send(b"x")
                theirs.recv(8)
                sent += 1
            if number % NAMED == 0:
                subprocess.run(["umount", "--lazy", str(name)], check=True)  # as ip netns and CNI plugins do
                name.unlink()
    return sent


@contextmanager
def _loopback() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Sets the loopback of this process's namespace up; gives a socket that sends to the port PASSING, and its receiver."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs,
    ):
        fcntl.ioctl(ours, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP))
        theirs.bind(("127.0.0.1", PASSING))
        ours.connect(("127.0.0.1", PASSING))
        yield ours, theirs


def send_over_loopback() -> int:
    """Sends one datagram to the port PASSING in this process's namespace; returns its source port."""
    with _loopback() as (ours, theirs):
        ours.send(b"x")
        theirs.recv(8)
        port: int = ours.getsockname()[1]
        return port


def tcp_connections(seconds: float) -> tuple[int, float]:
    """Connects from the client to the NodePort and resets, as fast as possible; returns the number and the seconds."""

    def work() -> int:
        made, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.settimeout(5)
                try:
                    sock.connect((topology.NODE4, traffic.NODEPORT_HTTP))
                    made += 1
                except OSError:
                    time.sleep(0.01)
        return made

    return _all([Child(topology.CLIENT, work) for _ in range(PARENTS)])


def udp_flows(seconds: float) -> tuple[int, float]:
    """Sends datagrams to the NodePort, each of a new flow, as fast as possible; returns the number and the seconds."""

    def work() -> int:
        made, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(100):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.sendto(b"x", (topology.NODE4, traffic.NODEPORT_UDP))
                made += 1
        return made

    return _all([Child(topology.CLIENT, work) for _ in range(PARENTS)])


def _all(children: list[Child[int]]) -> tuple[int, float]:
    began = time.monotonic()
    made = sum(child.result(600) for child in children)
    return made, time.monotonic() - began


def fan_out(levels: int) -> None:
    """Writes chains that each jump twice to the next: every packet takes two to the power of `levels` paths."""
    chains = [f"chain l{levels} {{ counter; }}"]
    chains += [f"chain l{n} {{ jump l{n + 1}; jump l{n + 1}; }}" for n in reversed(range(levels))]
    base = f"chain c {{ type filter hook input priority 7; udp dport {HOSTILE} jump l0; }}"
    _nft("\n".join(["table inet fan {", *chains, base, "}\n"]))


def large_map(elements: int) -> None:
    """Writes a verdict map with this many addresses, in which every packet of a port is looked up, and an empty chain."""
    _nft(f"""table inet changing {{
  map m {{ type ipv4_addr : verdict; }}
  chain c {{ type filter hook input priority 9; udp dport {HOSTILE} ip saddr vmap @m; }}
  chain x {{ }}
}}
""")
    for begin in range(0, elements, 50_000):
        addresses = (f"12.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255} : drop" for n in range(begin, min(elements, begin + 50_000)))
        _nft(f"add element inet changing m {{ {', '.join(addresses)} }}\n")


def change_rules() -> None:
    """Makes a new generation of the rules, with the same map."""
    _nft("add rule inet changing x counter\n")


def remove_map() -> None:
    _nft("delete table inet changing\n")


def huge_set(elements: int) -> None:
    """Writes a set and a verdict map with this many addresses; every packet of a port is looked up in both."""
    head = f"""table inet huge {{
  set s {{ type ipv4_addr; }}
  map m {{ type ipv4_addr : verdict; }}
  chain c {{ type filter hook input priority 8; udp dport {HOSTILE} jump more; }}
  chain more {{ ip saddr @s drop; ip saddr vmap @m; counter; }}
}}
"""
    _nft(head)
    for text in _elements(elements):
        _nft(text)


def _elements(count: int) -> Iterator[str]:
    for begin in range(0, count, 50_000):
        addresses = [f"11.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in range(begin, min(count, begin + 50_000))]
        for name, end in (("s", ""), ("m", " : drop")):
            yield f"add element inet huge {name} {{ {', '.join(address + end for address in addresses)} }}\n"


def _nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def ask_hostile() -> None:
    """Sends the node a datagram that meets these rules."""
    with entered(topology.CLIENT), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", (topology.NODE4, HOSTILE))
    time.sleep(0.05)
