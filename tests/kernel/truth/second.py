# SPDX-License-Identifier: Apache-2.0
"""A second network namespace with its own rules: packets go to it and come from it through the node.

Its interfaces have their own names, so that a line of the kernel's log shows which namespace it is about.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scenes import topology
from scenes.netns import entered

NAME, _HERE, _THERE = "second", "second0", "sec0"
ADDRESS4, ADDRESS6 = "10.99.0.2", "fd00:99::2"
_GATEWAY4, _GATEWAY6 = "10.99.0.1", "fd00:99::1"
ELSEWHERE6 = "fd00:77::"
"""A network behind the client: sources of packets that need their own address."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def namespace() -> Iterator[None]:
    """The namespace exists within the block, and the kernel's log has its packets, too."""
    subprocess.run(["ip", "netns", "del", NAME], check=False, stderr=subprocess.DEVNULL)
    _ip("netns", "add", NAME)
    try:
        _ip("link", "add", _HERE, "type", "veth", "peer", "name", _THERE, "netns", NAME)
        _ip("addr", "add", f"{_GATEWAY4}/24", "dev", _HERE)
        _ip("addr", "add", f"{_GATEWAY6}/64", "dev", _HERE, "nodad")
        _ip("link", "set", _HERE, "up")
        for words in (
            f"addr add {ADDRESS4}/24 dev {_THERE}", f"addr add {ADDRESS6}/64 dev {_THERE} nodad", f"link set {_THERE} up",
            "link set lo up", f"route add default via {_GATEWAY4}", f"-6 route add default via {_GATEWAY6}",
        ):  # fmt: skip
            _ip("-n", NAME, *words.split())
        _ip("-6", "route", "replace", f"{ELSEWHERE6}/64", "via", topology.CLIENT6)
        Path("/proc/sys/net/netfilter/nf_log_all_netns").write_text("1")
        yield
    finally:
        subprocess.run(["ip", "-6", "route", "del", f"{ELSEWHERE6}/64"], check=False)
        _ip("netns", "del", NAME)


def log(loggers: dict[int, str]) -> None:
    """Makes the log have this namespace's packets. loggers: netfilter's, by address family."""
    with entered(NAME):
        for family, logger in loggers.items():
            Path(f"/proc/sys/net/netfilter/nf_log/{family}").write_text(logger)


def is_elsewhere(*addresses: str) -> bool:
    """Whether one of the addresses is one that only one packet has."""
    return any(address.startswith(ELSEWHERE6) for address in addresses)


def netns() -> int:
    """The namespace's inode."""
    return Path(f"/var/run/netns/{NAME}").stat().st_ino
