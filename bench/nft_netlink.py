# SPDX-License-Identifier: Apache-2.0
"""Reading nftables through netlink alone, beside `nft -j list ruleset`, with kube-proxy's rules for many Services; and whether
both give the same rules, sets and predicted paths.

    sudo python3 -m bench.nft_netlink [SERVICES [PACKETS]]      # natively; in a network namespace of its own

Loading 44,000 Services and nft's list each take minutes: the kernel looks each set up in a list of all. Times are CPU seconds,
user and system, with the start of Python; memory is the peak of a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from bench import nft_services
from bench.nft_services import MadeService
from tests.support import audits
from tests.support.audits import CLIENT, FakeRoutes
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.model.hop import decision_of, nat_of, trace_of
from tracer.model.prediction import PredictedPath
from tracer.node.nfnetlink import Nfnetlink
from tracer.predict.query import PathQuery
from tracer.rules.inventory import RuleInventory
from tracer.rules.nftables import json_parser, netlink_dump, netlink_listing
from tracer.rules.nftables.expressions.registers import has_unknown
from tracer.rules.nftables.json_parser import NftListing
from tracer.rules.nftables.netlink_dump import Dump, SetElements
from tracer.util.json_value import Json

SERVICES, PACKETS, MAPS = 44_000, 200, 200
"""MAPS: number of unnamed maps whose elements are compared one by one."""
LIST = ("nft", "-j", "list", "ruleset")
PARTS = ("dump", "decode", "parse")


def spent() -> float:
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def read() -> tuple[Dump, NftListing]:
    """The rules of this network namespace through netlink alone."""
    with Nfnetlink() as nfnetlink:
        dump = netlink_dump.read(nfnetlink)
    return dump, netlink_listing.listing(dump, SetElements(dump.generation))


def measured(*command: str, output: Path | None = None) -> tuple[float, int]:
    """(CPU seconds, peak of memory in MB) of a command."""
    with open(output or os.devnull, "wb") as out, subprocess.Popen(command, stdout=out) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10


def part(name: str, listed: Path) -> None:
    """What a process of its own does, to measure it."""
    if name == "parse":
        json_parser.parse(listed.read_text())
        return
    _, found = read()
    if name == "decode":
        sum(len(found.ruleset.chains[key]) for key in found.ruleset.chains)


def without_maps(value: Json) -> Json:
    """An expression without the elements of unnamed maps: netlink's has their names where there are many."""
    if isinstance(value, list):
        return [without_maps(each) for each in value]
    if not isinstance(value, dict):
        return value
    is_unnamed = {k: isinstance(v, dict) or str(v).startswith("@__") for k, v in value.items()}
    return {k: "unnamed" if k in ("data", "right") and is_unnamed[k] else without_maps(v) for k, v in value.items()}


def unnamed(ours: Json, of_nft: Json, found: NftListing, table: tuple[str, str]) -> Iterator[bool]:
    """Whether each unnamed map of an expression has the elements that nft lists."""
    if isinstance(ours, str) and ours.startswith("@__") and isinstance(of_nft, dict):
        body = {"family": "", "table": "", "name": "", "elem": of_nft["set"]}
        yield found.maps[(*table, ours[1:])].elements == json_parser.parse_map(body).elements
    elif isinstance(ours, dict) and isinstance(of_nft, dict):
        for key in ours:
            yield from unnamed(ours[key], of_nft[key], found, table)
    elif isinstance(ours, list) and isinstance(of_nft, list):
        for mine, other in zip(ours, of_nft, strict=True):
            yield from unnamed(mine, other, found, table)


def compare(found: NftListing, of_nft: NftListing) -> str:
    """Compares all rules, sets and named maps, and a sample of the unnamed maps."""
    wrong = sum(
        without_maps(list(body)) != without_maps(list(found.expressions[key])) for key, body in of_nft.expressions.items()
    )
    columns = [
        {key: [(r.number, r.comment, r.target, r.handle) for r in each.ruleset.chains[key]] for key in each.ruleset.chains}
        for each in (found, of_nft)
    ]
    wrong += columns[0] != columns[1]
    named = [key for key in found.maps if not key[2].startswith("__")]
    wrong_maps = sum(found.maps[key] != of_nft.maps[key] for key in named) + (set(named) != set(of_nft.maps))
    texts = [{key: sorted(json.dumps(e) for e in each.sets[key]) for key in each.sets} for each in (found, of_nft)]
    wrong_maps += texts[0] != texts[1]
    with_maps = [key for key, body in found.expressions.items() if "@__" in json.dumps(body)]
    sample = random.Random(1).sample(with_maps, min(MAPS, len(with_maps)))
    equal = [e for k in sample for e in unnamed(list(found.expressions[k]), list(of_nft.expressions[k]), found, k[:2])]
    return (
        f"{len(of_nft.expressions):,} rules, {wrong} differ; {len(named)} named maps, and {len(texts[0])} sets with"
        f" {sum(map(len, texts[0].values())):,} elements, {wrong_maps} differ; {len(equal)} unnamed maps, {equal.count(False)}"
        " differ"
    )


def brief(paths: list[PredictedPath]) -> tuple[list[str], int]:
    """(what decides: shares, conditions, outcomes, rules that acted, elements, translations; the number of these rules)."""
    out, rules = [], 0
    for path in paths:
        hops = []
        for hop in path.packet.hops:
            trace = trace_of(hop)
            hits = trace.hits if trace else ()
            acted = [(hit.path, hit.rule and hit.rule.handle, str(hit.verdict), hit.element) for hit in hits]
            rules += len(acted)
            decided = decision_of(hop)
            hops.append((acted, decided and decided.path, nat_of(hop)))
        out.append(repr((path.share, path.conditions, path.packet.outcome, hops)))
    return sorted(out), rules


def query(chance: random.Random, services: int) -> PathQuery:
    """A packet to a cluster IP, a NodePort, a closed port of a cluster IP, or an address without a Service."""
    made, kind = MadeService(chance.randrange(services)), chance.random()
    if kind < 0.6:
        return PathQuery(CLIENT, 0, made.address, nft_services.SERVICE_PORT)
    if kind < 0.8:
        made = MadeService(chance.randrange(min(services, len(nft_services.NODEPORTS))))
        return PathQuery(CLIENT, 0, nft_services.NODE, made.nodeport)
    if kind < 0.9:
        return PathQuery(CLIENT, 0, made.address, nft_services.SERVICE_PORT + 1)
    return PathQuery(CLIENT, 0, str(ip_address("172.31.255.254")), 80)


def compare_packets(found: NftListing, of_nft: NftListing, services: int, packets: int) -> str:
    """Predicts the paths of random packets with both listings."""
    predictors = [
        audits.path_predictor(NodeState(FindingContext(), RuleInventory(nft=each), FakeRoutes())) for each in (found, of_nft)
    ]
    chance, wrong, acted = random.Random(2), 0, 0
    for _ in range(packets):
        asked = query(chance, services)
        mine, other = (brief(predictor.predict(asked)) for predictor in predictors)
        wrong += mine != other
        acted += mine[1]
    return f"{packets} packets, {acted:,} rules acted, {wrong} packets differ"


def main(services: int, packets: int) -> None:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "nft.json"
        began = spent()
        for text in nft_services.parts(services):
            subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
        dump, found = read()
        elements = sum(len(known.elements) for known in dump.maps.values())
        print(
            f"{services:,} Services: {len(found.expressions):,} rules in {len(dump.chains):,} chains, {len(dump.sets):,} sets"
            f" and maps, {elements:,} elements of verdict maps; loaded by nft in {spent() - began:.0f} s",
            flush=True,
        )
        of_nft = measured(*LIST, output=listed)
        size = listed.stat().st_size >> 20
        print(f"nft -j list ruleset: {of_nft[0]:.1f} s, {of_nft[1]:,} MB; it printed {size} MB", flush=True)
        costs = {name: measured(sys.executable, "-m", "bench.nft_netlink", name, str(listed)) for name in PARTS}
        ours = costs["dump"]
        with_parsing = of_nft[0] + costs["parse"][0]
        print(f"parsing what nft printed: {costs['parse'][0]:.1f} s, {costs['parse'][1]:,} MB")
        print(f"netlink alone: {ours[0]:.1f} s, {ours[1]:,} MB; ratio of the times {ours[0] / with_parsing:.3f}")
        print(f"netlink alone, every rule decoded: {costs['decode'][0]:.1f} s, {costs['decode'][1]:,} MB", flush=True)
        parsed = json_parser.parse(listed.read_text())
        print(compare(found, parsed), flush=True)
        print(f"{sum(has_unknown(list(body)) for body in found.expressions.values())} rules with something unknown", flush=True)
        print(compare_packets(found, parsed, services, packets))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        part(sys.argv[1], Path(sys.argv[2]))
    elif os.environ.get("IN_OWN_NAMESPACE"):
        main(*(*map(int, sys.argv[1:3]), *(SERVICES, PACKETS)[len(sys.argv) - 1 :]))
    else:
        os.environ["IN_OWN_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "-n", sys.executable, "-m", "bench.nft_netlink", *sys.argv[1:]])
