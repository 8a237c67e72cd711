# SPDX-License-Identifier: Apache-2.0
"""Recordings of real nodes: rulesets, ipvs, API objects and CNI caches, for each version and mode of kube-proxy.

tests/data/nodes/VERSION-MODE-BACKEND.tar.xz has SCENARIO/FILE. Files are read as text, and kept in memory.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import hop_fields
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.hop import owner_of
from tracer.model.packet import Packet
from tracer.model.rule import Ruleset
from tracer.rules import save_parser
from tracer.rules.nftables import json_parser

DATA = Path(__file__).parents[1] / "data" / "nodes"
MODES = tuple(sorted(p.name.removesuffix(".tar.xz") for p in DATA.glob("*.tar.xz")))


@dataclass
class Node:
    """One scenario of one mode. files: text by path."""

    mode: str
    scenario: str
    files: dict[str, str] = field(default_factory=dict)

    @property
    def objects(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.files["objects.json"])["items"]
        return found

    def rulesets(self) -> Iterator[tuple[str, Ruleset]]:
        """Each file that has its rules: the name of the file, and the rules read from it."""
        for name, family, backend in (
            ("iptables-save", "ip", "legacy"),
            ("ip6tables-save", "ip6", "legacy"),
            ("iptables-nft-save", "ip", "nft"),
        ):
            if name in self.files:
                yield name, save_parser.parse(self.files[name], family, backend)
        text = self.files.get("nft.json", "")
        comments = self.netlink_comments() or self.saved_comments()
        if '"rule"' in text:
            if comments:
                yield "nft.json + comments", json_parser.parse(text, comments).ruleset
            yield "nft.json", json_parser.parse(text).ruleset

    def iptables(self) -> Ruleset:
        """Its iptables rules for IPv4, of the back end that it uses."""
        return next(r for name, r in self.rulesets() if name in ("iptables-save", "iptables-nft-save"))

    def maps(self) -> dict[tuple[str, str, str], json_parser.NftMap]:
        text = self.files.get("nft.json", "")
        return dict(json_parser.parse(text).maps) if '"map"' in text else {}

    def netlink_comments(self) -> dict[json_parser.Handle, str]:
        lines = self.files.get("nft-netlink-rules.jsonl", "").splitlines()
        rows = [json.loads(line) for line in lines]
        return {(f, t, c, h): comment for f, t, c, h, comment, _ in rows if comment}

    def saved_comments(self) -> dict[json_parser.Handle, str]:
        """Comments from iptables-nft-save, by position, for chains that have as many rules there as in nft's output."""
        if "iptables-nft-save" not in self.files:
            return {}
        saved = save_parser.parse(self.files["iptables-nft-save"], "ip", "nft").chains
        found: dict[json_parser.Handle, str] = {}
        for (family, table, chain), rules in json_parser.parse(self.files["nft.json"]).ruleset.chains.items():
            texts = saved.get((family, table, chain), ())
            if len(texts) == len(rules):
                pairs = zip(rules, texts, strict=True)
                found |= {(family, table, chain, rule.handle): text.comment for rule, text in pairs if text.comment}
        return found

    def cluster_view(self, folder: Path, with_api: bool = True) -> ClusterView:
        """The cluster view of a tracer on that node. folder: the CNI cache is written there."""
        for name, text in self.files.items():
            if "cache/results/" in name:
                (folder / Path(name).name).write_text(text)
        store = ObjectStore("node-1" if with_api else "")
        if with_api:
            store.load(self.objects)
        return ClusterView(store, CniCache((folder,)), frozenset({"192.168.56.10", "127.0.0.1"}))

    def containers(self) -> dict[str, str]:
        """Container id -> ns/name of its pod, as the lab recorded it."""
        lines = self.files.get("cni/containers.txt", "").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines if line.strip()}


@cache
def nodes(mode: str) -> tuple[Node, ...]:
    """The scenarios of a mode."""
    found: dict[str, Node] = {}
    with tarfile.open(DATA / f"{mode}.tar.xz") as archive:
        for member in archive:
            _, scenario, path = member.name.split("/", 2)
            reader = archive.extractfile(member)
            if reader:
                found.setdefault(scenario, Node(mode, scenario)).files[path] = reader.read().decode()
    return tuple(found[name] for name in sorted(found))


def node(mode: str, scenario: str) -> Node:
    return next(n for n in nodes(mode) if n.scenario == scenario)


def owners(packet: Packet, labels: set[str]) -> set[str]:
    """The labels of the owners of the rules that decided, or that set the mark by which another rule decided."""
    texts = [hop_fields.owner(h).text for h in packet.hops if owner_of(h)]
    return {label for label in labels if any(label in text for text in texts)}
