# SPDX-License-Identifier: Apache-2.0
"""What a real node had in the kernel, put into this one's: rules of one back end, ipsets, IPVS's virtual servers.

The rules, sets and virtual servers are kube-proxy's and portmap's own, as they were recorded (tests/data/nodes).
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
    """Whether something that `nft -j` listed belongs to a table that is not iptables-nft's."""
    (kind, what), *_ = item.items()
    return kind != "metainfo" and what.get("table", what["name"] if kind == "table" else "") in ("kube-proxy", "cni_hostport")


def put(here: Node, how: str) -> None:
    """The node's IPv4 rules in force, in place of whatever is there. how: one of MODES' values."""
    rules.flush()
    clear_ipvs()
    links.ipset(here.files.get("ipset-save", ""))
    if how == "native":
        _nft(here)
    elif how == "legacy":
        rules.restore_text(here.files["iptables-save"], 4, "legacy")
    else:
        rules.restore_text(here.files["iptables-nft-save"], 4, "nft")
    if how == "ipvs":
        _virtual_servers(here.files["ipvsadm-save"])


def _nft(here: Node) -> None:
    listed = [item for item in json.loads(here.files["nft.json"])["nftables"] if native(item)]
    for item in listed:
        next(iter(item.values())).pop("handle", None)  # to `nft -f` it says behind which rule
    listed.sort(key=lambda item: ("table", "chain", "set", "map", "rule").index(next(iter(item))))
    subprocess.run(["nft", "-j", "-f", "-"], input=json.dumps({"nftables": listed}), text=True, check=True)


def _virtual_servers(text: str) -> None:
    own = {topology.NODE4, topology.GATEWAY4, "10.224.0.1", "127.0.0.1"}
    ipvs.put(text, sorted(set(_VIRTUAL.findall(text)) - own))


def clear_ipvs() -> None:
    """Takes virtual servers, their addresses and all unused sets away."""
    ipvs.remove()
    links.remove_sets()


def plain() -> None:
    """The scene's own rules again."""
    rules.flush()
    clear_ipvs()
    rules.restore("http-proxy", "http-proxy-v6")
