# SPDX-License-Identifier: Apache-2.0
"""`make owners`: compares the owner that the tracer names for each rule of each node in tests/data/nodes with the API objects.

It compares in four ways: with the API's objects; from rules alone; and both again with rules as `nft -j` shows them, without
comments. The tracer has the comments (by netlink, or iptables-nft-save); a dump made with nft does not. Map elements of the
nftables mode and virtual servers of ipvs count as rules. The last line counts the first way, and the wrong answers of all ways.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.nodes import MODES, Node, nodes
from tests.support.owner_truth import Expected, Truth
from tracer.kube.catalog import ClusterView
from tracer.kube.owners import finders, owner_of
from tracer.kube.owners.kube_proxy_ipvs import owner_of_virtual_server
from tracer.kube.owners.kube_proxy_nftables import owner_of_element
from tracer.model.kube import Owner

COMPARISONS = ("with the API", "from rules alone", "with the API, comments hidden", "from rules alone, comments hidden")


@dataclass
class Count:
    rules: int = 0
    owned: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def take(self, where: str, truth: Truth, owner: Owner | None) -> None:
        """Compares one answer with the truth. An answer without the object counts as unknown."""
        self.rules += 1
        program, expected = truth
        found = f"{owner.kind} {owner.label}" if owner and owner.kind in ("Service", "Pod") else ""
        if owner is None or not owner.known or (expected and not found):
            if owner and owner.program and owner.program != program:
                self.wrong.append(f"{where}: {truth}, not {owner.text}")
            else:
                self.unknown[re.sub(r"[A-Z2-7]{16}|[0-9a-f]{21}\b", "...", where)] += 1
        elif owner.program != program or found != expected:
            self.wrong.append(f"{where}: {truth}, not {owner.text}")
        else:
            self.owned += 1


def check(node: Node, counts: dict[str, Count]) -> None:
    """Checks all rules, map elements and virtual servers of one node."""
    expected = Expected(node)
    for with_api in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            known = node.cluster_view(Path(folder), with_api)
            _rules(node, expected, known, with_api, counts)
            count = counts[COMPARISONS[0] if with_api else COMPARISONS[1]]
            for nft_map in node.maps().values():
                for element in nft_map.elements.values():
                    truth = ("kube-proxy", f"Service {expected.of_element(element.key)}")
                    where = f"{node.mode}/{node.scenario} element of {nft_map.name}"
                    count.take(where, truth, owner_of_element(element.text, known))
            for line in node.files.get("ipvsadm-save", "").splitlines():
                if line.startswith("-A"):
                    address, _, port = line.split()[2].rpartition(":")
                    truth = ("kube-proxy", f"Service {expected.of_element((address, 'tcp', port))}")
                    answer = owner_of_virtual_server(address, int(port), "tcp", known)
                    if not answer.known:
                        answer = Owner("unknown")
                    count.take(f"{node.mode}/{node.scenario} virtual server", truth, answer)


def _rules(node: Node, expected: Expected, cluster: ClusterView, with_api: bool, counts: dict[str, Count]) -> None:
    files = [name for name, _ in node.rulesets()]
    for name, ruleset in node.rulesets():
        hidden = name == "nft.json" and "nft.json + comments" in files
        way = COMPARISONS[2 * hidden + (not with_api)]
        for rules in ruleset.chains.values():
            for rule in rules:
                where = f"{node.mode}/{node.scenario} {name} {rule.table} {rule.chain}"
                counts[way].take(where, expected.of_rule(rule, ruleset), owner_of(rule, ruleset, cluster))
                claims = [writer for writer, find in finders() if find(rule, ruleset, cluster)] if len(rules) < 100 else []
                if len(claims) > 1:
                    counts[way].wrong.append(f"{where}: claimed by {claims}")


def main() -> int:
    totals = {way: Count() for way in COMPARISONS}
    for mode in MODES:
        counts = {way: Count() for way in COMPARISONS}
        for node in nodes(mode):
            check(node, counts)
        for way, count in counts.items():
            total = totals[way]
            total.rules, total.owned = total.rules + count.rules, total.owned + count.owned
            total.unknown += count.unknown
            total.wrong += count.wrong
            if count.rules:
                unknown = count.unknown.total()
                print(f"{mode:24} {way:33} {count.rules:7} rules, {count.owned:7} owned, {unknown:6} unknown")
        nodes.cache_clear()
    for way, count in totals.items():
        print(f"\n{way}: {count.rules} rules, {count.owned} owned, {count.unknown.total()} unknown, {len(count.wrong)} wrong")
        for where, times in count.unknown.most_common(40):
            print(f"  unknown {times:6} x {where}")
        for line in count.wrong[:40]:
            print(f"  WRONG {line}")
    first, wrong = totals[COMPARISONS[0]], sum(len(count.wrong) for count in totals.values())
    print(f"\nrules={first.rules} owned={first.owned} unknown={first.unknown.total()} wrong={wrong}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
