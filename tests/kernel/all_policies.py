# SPDX-License-Identifier: Apache-2.0
"""Random NetworkPolicies, as Calico, kube-router and kube-network-policies write them, and random packets.

As root, in the lab:

    python3 tests/kernel/all_policies.py [--sets 40] [--seed 1]

For each packet three accounts are compared: whether it arrived, what the policies say (tests/support/policy_semantics.py),
and the tracer's outcome, policy, direction, pod and number of the rule. The last line is
packets=... denied=... wrong=... unknown=....

With --native it runs on this machine's own kernel, in namespaces that end with it, and without probes: the packets are real,
and what the tracer says is its prediction for them (`explain`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import nfqueue  # noqa: E402
from tests.kernel import modules  # noqa: E402
from tests.kernel.cures.box import flush  # noqa: E402
from tests.kernel.policies import random_sets  # noqa: E402
from tests.kernel.policies.pod_links import Key, Receivers, Sent, links, nodes  # noqa: E402
from tests.kernel.policies.policy_check import Counts, check, check_evaluation  # noqa: E402
from tests.kernel.watching import NOTHING, Watch  # noqa: E402
from tests.support.policy_semantics import World  # noqa: E402
from tests.support.policy_writers import (  # noqa: E402
    calico_nftables,
    calico_tables,
    kube_network_policies,
    kube_router_nftables,
    kube_router_tables,
)
from tracer.audit.state import NodeState  # noqa: E402
from tracer.findings import Findings  # noqa: E402
from tracer.findings.context import FindingContext  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402
from tracer.kube.attribution import attribute  # noqa: E402
from tracer.kube.catalog import ClusterView  # noqa: E402
from tracer.kube.cni_cache import CniCache  # noqa: E402
from tracer.kube.store import ObjectStore  # noqa: E402
from tracer.model.filter import Filter  # noqa: E402
from tracer.model.finding import Finding  # noqa: E402
from tracer.model.packet import Packet  # noqa: E402
from tracer.node import addresses  # noqa: E402
from tracer.predict.query import PathQuery  # noqa: E402
from tracer.rules import inventory  # noqa: E402

Step = tuple[str, str]
WRITERS: dict[str, tuple[str, Callable[[World], list[Step]]]] = {
    "Calico 3.28, legacy": ("calico", lambda w: calico_tables.steps(w, "legacy", "3.28")),
    "Calico 3.31, iptables-nft": ("calico", lambda w: calico_tables.steps(w, "nft", "3.31")),
    "Calico 3.32, nftables": ("calico", lambda w: calico_nftables.steps(w, "3.32")),
    "kube-router 2.9, legacy": ("kube-router", lambda w: kube_router_tables.steps(w, "legacy", "old")),
    "Calico 3.32, legacy": ("calico", lambda w: calico_tables.steps(w, "legacy", "3.32")),
    "Calico 3.31, nftables": ("calico", lambda w: calico_nftables.steps(w, "3.31")),
    "kube-router 2.11, nftables": ("kube-router", lambda w: kube_router_nftables.steps(w)),
    "kube-network-policies 1.0, nftables": (kube_network_policies.TABLE, lambda w: kube_network_policies.steps(w)),
    "kube-router 2.11, iptables-nft": ("kube-router", lambda w: kube_router_tables.steps(w, "nft", "new")),
}
COMMANDS = {
    "legacy": ["iptables-legacy-restore", "--noflush"], "nft": ["iptables-nft-restore", "--noflush"],
    "native": ["nft", "-f", "-"], "ipset": ["ipset", "restore", "-exist"],
}  # fmt: skip
MODULES = "veth ip_set_hash_net ip_set_hash_ipport nft_fib_ipv4 nft_reject_ipv4 nf_conntrack_netlink xt_multiport nft_ct"
PACKETS = 60
PORTS = tuple(sorted({port for ports in random_sets.NUMBERS.values() for port in ports}))
INSIDE = "K8SNET_POLICIES"
"""Set in the process that works in namespaces of its own."""
FIRST_PORT = 20000


def put(steps: list[Step]) -> None:
    """Replaces all rules and sets. Raises OSError."""
    flush()
    subprocess.run(["ipset", "destroy"], check=False, capture_output=True)
    for program, text in steps:
        done = subprocess.run(COMMANDS[program], input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            raise OSError(f"{COMMANDS[program]}: {done.stderr}\n{text}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="WORDS", help="writers with these words")
    parser.add_argument("--attach", default=os.environ.get("K8SNET_ATTACH", "auto"), choices=("auto", "kprobe"))
    parser.add_argument("--native", action="store_true", help="on this machine's own kernel, without probes")
    options = parser.parse_args()
    modules.load(f"{modules.RANDOM_RULES} {modules.INCIDENTS} {MODULES}", anywhere=options.native)
    if options.native and INSIDE not in os.environ:
        command = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, "-W", "ignore", *sys.argv]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode
    if options.native:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        Path("/run/netns").mkdir()
        return run(options, None)
    kernel = Kernel.running()
    with Session(kernel, NOTHING, only=options.attach) as session:
        return run(options, Watch(kernel, session))


def run(options: argparse.Namespace, watch: Watch | None) -> int:
    """Compares all sets. watch: the running probes; None = predictions are compared."""
    counts, by_writer = Counts(), Counter[str]()
    # What a process behind a queue decides cannot be predicted.
    unpredictable = () if watch else (kube_network_policies.TABLE,)
    writers = [name for name, (program, _) in WRITERS.items() if options.only in name and program not in unpredictable]
    with links(), Receivers() as receivers:
        for number in range(options.sets):
            began, name = time.monotonic(), writers[number % len(writers)]
            shown = len(counts.examples)
            _one(options.seed * 1000 + number, name, watch, receivers, counts, FIRST_PORT + number * PACKETS % 40000)
            by_writer[name] += 1
            print(f"{time.monotonic() - began:4.1f} s  set {number}: {name}: {counts}", flush=True)
            for example in counts.examples[shown:]:
                print(f"    {example}", flush=True)
        flush()
    print(", ".join(f"{name}: {count} sets" for name, count in by_writer.items()))
    print(f"rules named with their number: {counts.numbered}, events lost: {watch.lost if watch else 0}")
    print(f"rules evaluated from objects: {counts.evaluated}, not known: {counts.undecided}, in {counts.open} findings")
    print(counts)
    return int(bool(counts.wrong) or not counts.denied)


def _one(seed: int, name: str, watch: Watch | None, receivers: Receivers, counts: Counts, first_port: int) -> None:
    dice = Random(seed)
    program, write = WRITERS[name]
    world = random_sets.world(dice, program)
    put(write(world))
    with queue_of(world, program):
        _compare(world, program, dice, watch, receivers, counts, first_port, nft="nft" in name)


@contextlib.contextmanager
def queue_of(world: World, program: str) -> Iterator[None]:
    """The process behind the queue of kube-network-policies, within the block; nothing for other programs."""
    if program != kube_network_policies.TABLE:
        yield
        return
    process = nfqueue.start(kube_network_policies.QUEUE, decide=partial(kube_network_policies.decides, world))
    try:
        yield
    finally:
        process.kill()


def _compare(
    world: World,
    program: str,
    dice: Random,
    watch: Watch | None,
    receivers: Receivers,
    counts: Counts,
    first_port: int,
    nft: bool,
) -> None:
    sent = random_sets.packets(dice, world, program, PACKETS, first_port)
    store = ObjectStore("node-1")
    store.load([*nodes(), *world.objects])
    cluster = ClusterView(store, CniCache(()), addresses.local_addresses())
    if watch:
        with watch(Filter(ports=PORTS), nft=nft) as seen:
            arrived = receivers.send(sent)
        packets = _shown(seen.packets)
    else:
        arrived = receivers.send(sent)
        packets = _predicted(sent, cluster)
    for each in sent:
        found: list[Finding] = []
        packet = packets.get(each.key)
        if packet:
            packet = attribute(packet, cluster)
            findings = Findings(FindingContext(cluster))
            findings.look(packet)
            found = findings.all
        check(world, program, each, each.key in arrived, packet, found, counts)
        check_evaluation(world, each, cluster, counts)


def _shown(packets: list[Packet]) -> dict[Key, Packet]:
    """The first packet of each connection that opens it."""
    found: dict[Key, Packet] = {}
    for packet in packets:
        ends = packet.endpoints
        if packet.protocol != "TCP" or packet.tcp_flags == "SYN":
            found.setdefault((packet.protocol, ends.src, ends.sport, ends.dst, ends.dport), packet)
    return found


def _predicted(sent: list[Sent], cluster: ClusterView) -> dict[Key, Packet]:
    """The prediction for each packet that has exactly one."""
    installed = inventory.read(True)
    assert not installed.unread, installed.unread
    state, found = NodeState(FindingContext(cluster), installed), {}
    for each in sent:
        protocol, source, sport, to, port = each.key
        paths = state.predictor.predict(PathQuery(source, sport, to, port, protocol.lower()))
        if len(paths) == 1:
            found[each.key] = paths[0].packet
    return found


if __name__ == "__main__":
    sys.exit(main())
