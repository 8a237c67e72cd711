# SPDX-License-Identifier: Apache-2.0
"""Restores the kernel state of a real node on this node: rules of one back end, ipsets, IPVS's virtual servers.

The rules, sets and virtual servers were written by kube-proxy and portmap, and recorded (tests/data/nodes).
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from incidents import ipvs, links
from scenes import rules, topology
from tests.support.nodes import Node

MODES = {
    "1.20.2-iptables-legacy": "legacy", "1.36.2-iptables-legacy": "legacy", "1.20.2-iptables-nft": "nft",
    "1.36.2-iptables-nft": "nft", "1.30.3-nftables-nft": "native", "1.36.2-nftables-nft": "native", "1.20.2-ipvs-nft": "ipvs",
}  # fmt: skip
_VIRTUAL = re.compile(r"^-A -[tu] ([\d.]+):", re.M)


def native(item: dict[str, Any]) -> bool:
    """Whether an object that `nft -j` listed belongs to a table of kube-proxy or portmap, not of iptables-nft."""
    (kind, what), *_ = item.items()
    return kind != "metainfo" and what.get("table", what["name"] if kind == "table" else "") in ("kube-proxy", "cni_hostport")


def put(node: Node, mode: str) -> None:
    """Replaces all rules by the node's IPv4 rules in force. mode: one of MODES' values."""
    rules.flush()
    clear_ipvs()
    links.ipset(node.files.get("ipset-save", ""))
    if mode == "native":
        _nft(node)
    elif mode == "legacy":
        rules.restore_text(node.files["iptables-save"], 4, "legacy")
    else:
        rules.restore_text(node.files["iptables-nft-save"], 4, "nft")
    if mode == "ipvs":
        _virtual_servers(node.files["ipvsadm-save"])


def _nft(node: Node) -> None:
    listed = [item for item in json.loads(node.files["nft.json"])["nftables"] if native(item)]
    for item in listed:
        next(iter(item.values())).pop("handle", None)  # with it, `nft -f` would add the rule behind the one with this handle
    listed.sort(key=lambda item: ("table", "chain", "set", "map", "rule").index(next(iter(item))))
    subprocess.run(["nft", "-j", "-f", "-"], input=json.dumps({"nftables": listed}), text=True, check=True)


def _virtual_servers(text: str) -> None:
    own = {topology.NODE4, topology.GATEWAY4, "10.224.0.1", "127.0.0.1"}
    ipvs.put(text, sorted(set(_VIRTUAL.findall(text)) - own))


def clear_ipvs() -> None:
    """Removes virtual servers, their addresses and all unused sets."""
    ipvs.remove()
    links.remove_sets()


def plain() -> None:
    """Restores the scene's own rules."""
    rules.flush()
    clear_ipvs()
    rules.restore("http-proxy", "http-proxy-v6")
