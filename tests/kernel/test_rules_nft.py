# SPDX-License-Identifier: Apache-2.0
"""Which rules of nftables acted: the rule traces equal the kernel's own trace, and the node is unchanged.

The probes are attached once; each test puts its own rules in force.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from scenes import rules, scene, traffic
from tests.kernel.conftest import ROOT
from tests.kernel.truth import nft, nftables
from tests.kernel.untouched import settled, state
from tests.kernel.watching import NOTHING, SETTLE_SECONDS, Watch
from tests.support import hop_fields
from tracer.model.filter import Filter
from tracer.model.hop import ChainHop, trace_of
from tracer.model.packet import Packet
from tracer.model.rule import RuleTrace
from tracer.node.namespaces import Namespaces
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.rules.nftables import live_watcher as nftables_live
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.nftables.watcher import RulesetWatcher
from tracer.rules.rule_resolver import RuleResolver

PACKETS = 60


@pytest.fixture(scope="module", autouse=True)
def restored_scene(node: None) -> Iterator[None]:
    """Restores the scene that other tests expect, when these tests are done."""
    yield
    scene.up()


@pytest.fixture
def nodeport(watch: Watch) -> Iterator[RulesetWatcher]:
    """kube-proxy's rules by iptables-nft, with the kernel reporting which of them act."""
    with scene.scene(backend="nft"), nftables_live.watching(Namespaces().own) as live:
        yield live


def packets(watch: Watch, live: RulesetWatcher, port: int) -> list[Packet]:
    """The packets of one request, each hop with its rule trace."""
    hops = HopBuilder(Namespaces(), Processes(), watch.kernel.drop_reasons(), watch.kernel.symbols.containing)
    assembler = PacketAssembler(hops, rules=RuleResolver(nft=SnapshotCache(live)))
    watch.session.drain()
    watch.session.set_filter(Filter(ports=(port,)))
    traffic.http_get(port=port)
    time.sleep(SETTLE_SECONDS)
    watch.session.set_filter(NOTHING)
    assembler.feed(watch.session.events())
    losses = watch.session.losses()
    watch.lost += sum(loss.count for loss in losses)
    return assembler.flush()


def path(trace: RuleTrace | None) -> str:
    assert trace and trace.decision, trace
    return " > ".join(f"{place.chain} {place.number}" for place in trace.decision.path)


@pytest.mark.matrix
def test_the_rules_of_a_service(watch: Watch, nodeport: RulesetWatcher) -> None:
    syn = packets(watch, nodeport, traffic.NODEPORT_HTTP)[0]
    nat = {h.chain: h.rule_trace for h in syn.hops if isinstance(h, ChainHop) and h.table == "ip nat" and h.netns == "node"}
    steps = path(nat["PREROUTING"]).split(" > ")
    assert [s.split()[0].split("-")[:2] for s in steps] == [
        ["PREROUTING"], ["KUBE", "SERVICES"], ["KUBE", "NODEPORTS"], ["KUBE", "EXT"], ["KUBE", "SVC"], ["KUBE", "SEP"],
    ]  # fmt: skip
    decision = nat["PREROUTING"].decision if nat["PREROUTING"] else None
    assert decision and decision.rule and decision.verdict == "DNAT"
    assert "-j DNAT --to-destination 10.244.0.1" in decision.rule.text and "default/http-proxy" in decision.rule.comment
    assert path(nat["POSTROUTING"]).startswith("POSTROUTING 1 > KUBE-POSTROUTING ")
    marked = [v for v in (nat["PREROUTING"].hits if nat["PREROUTING"] else ()) if v.verdict == "MARK"]
    assert [v.location.chain for v in marked] == ["KUBE-MARK-MASQ"]


def test_every_run_of_a_chain_has_its_rule_trace(watch: Watch, nodeport: RulesetWatcher) -> None:
    seen = packets(watch, nodeport, traffic.NODEPORT_HTTP)
    runs = [h for p in seen for h in p.hops if isinstance(h, ChainHop)]
    assert len(runs) > 20
    assert not [h for h in runs if not h.rule_trace or h.rule_trace.undecided or not h.rule_trace.hits]


def test_rules_that_change_between_requests(watch: Watch, nodeport: RulesetWatcher) -> None:
    """Handles are new after a change; numbers are those of the new rules."""
    before = packets(watch, nodeport, traffic.NODEPORT_HTTP)[0]
    subprocess.run(["iptables-nft", "-t", "nat", "-I", "PREROUTING", "1", "-p", "tcp", "-m", "comment", "--comment", "new"],
                   check=True)  # fmt: skip
    time.sleep(2)
    after = packets(watch, nodeport, traffic.NODEPORT_HTTP)[0]

    def first(packet: Packet) -> str:
        trace = next(
            trace_of(h) for h in packet.hops if hop_fields.chain(h) == "PREROUTING" and hop_fields.table(h) == "ip nat"
        )
        return path(trace).split(" > ")[0]

    assert (first(before), first(after)) == ("PREROUTING 1", "PREROUTING 2")


@pytest.mark.matrix
@pytest.mark.parametrize("backend", [nft, nftables])
def test_rule_traces_equal_the_kernels_trace(watch: Watch, backend: ModuleType) -> None:
    scene.down()
    count, acted, mismatches = backend.run(PACKETS, seed=7, session=watch.session)
    watch.session.set_filter(NOTHING)
    assert count == PACKETS and acted > PACKETS and mismatches == 0


SWITCH = "import time; from tracer.rules.nftables.live_watcher import watching; from tracer.node.namespaces import Namespaces\n"
HELD = SWITCH + "with watching(Namespaces().own):\n    print('on', flush=True)\n    time.sleep(600)\n"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_node_is_unchanged(node: None, end: signal.Signals) -> None:
    """While the rules are being read and after the reader was killed: nothing is left, not even the namespace."""
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6", backend="nft")
    before = state()
    process = subprocess.Popen([sys.executable, "-c", HELD], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})  # fmt: skip
    assert process.stdout and process.stdout.readline() == "on\n"
    assert Path(f"/proc/{process.pid}").exists()
    assert {k: v for k, v in state().items() if k != "namespaces"} == {k: v for k, v in before.items() if k != "namespaces"}
    process.send_signal(end)
    process.wait(10)
    assert settled(before) == before
    scene.down()
