# SPDX-License-Identifier: Apache-2.0
"""IPVS of this machine as kube-proxy configures it: virtual servers, and each cluster IP as an address of kube-ipvs0."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from incidents import links

LINK = "kube-ipvs0"
CONNTRACK = Path("/proc/sys/net/ipv4/vs/conntrack")


def put(servers: str, addresses: Iterable[str]) -> None:
    """servers: in the format of `ipvsadm -R`. addresses: cluster IPs for the link. conntrack for IPVS is turned on."""
    subprocess.run(["modprobe", "-q", "ip_vs_rr"], check=False)
    links.ip(f"link add {LINK} type dummy", *(f"addr add {address}/32 dev {LINK}" for address in addresses))
    subprocess.run(["ipvsadm", "-R"], input=servers, text=True, check=True, capture_output=True)
    CONNTRACK.write_text("1")


def remove() -> None:
    """Removes virtual servers and their addresses, if there are any."""
    if Path("/proc/net/ip_vs").exists():
        subprocess.run(["ipvsadm", "-C"], check=False, capture_output=True)
    links.remove_link(LINK)
