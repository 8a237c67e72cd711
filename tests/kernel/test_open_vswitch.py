# SPDX-License-Identifier: Apache-2.0
"""Packets between two pods at ports of Open vSwitch, as with Antrea: what its flows drop, and what not."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack, suppress

import pytest

from tests.kernel import modules
from tests.kernel.watching import Watch
from tests.support.open_vswitch import MODULE, PODS, drop, output, sockets, two_pods
from tracer.findings import Findings
from tracer.kube.catalog import ClusterView
from tracer.model.filter import Filter
from tracer.model.packet import Outcome, Packet
from tracer.node.nfnetlink import nft_loaded
from tracer.predict.other_datapaths import OtherDatapaths, with_other_datapaths
from tracer.predict.path import PathPredictor
from tracer.predict.query import PathQuery
from tracer.rules import inventory

FORWARDED, WITHOUT_ACTION, EXPLICIT, WITHOUT_FLOW = 9300, 9301, 9302, 9303
PACKETS = 5


@pytest.fixture(scope="module")
def module() -> None:
    modules.load("openvswitch")
    if not MODULE.exists():
        pytest.skip("this kernel has no Open vSwitch")


def sent(watch: Watch, port: int) -> list[Packet]:
    """The datagrams from one pod to a socket of the other, as they were traced."""
    with ExitStack() as stack:
        out, back = sockets(stack, port)
        back.setblocking(False)
        with watch(Filter(ports=(port,))) as seen:
            for _ in range(PACKETS):
                out.sendto(b"x" * 20, (PODS["ovs-b"], port))
                time.sleep(0.02)
            with suppress(BlockingIOError):  # a packet in the queue of a socket that is closed is freed like a dropped one
                while True:
                    back.recv(64)
    for packet in seen.packets:
        print(port, packet.outcome, packet.verdict, [(h.kind, h.netns, h.in_iface, h.out_iface) for h in packet.hops])
    return seen.packets


def found(packets: list[Packet]) -> list[tuple[str, bool]]:
    made = Findings()
    for packet in packets:
        made.look(packet)
    return [(each.name, each.certain) for each in made.all]


def test_what_flows_drop_and_forward(module: None, watch: Watch) -> None:
    names = watch.kernel.drop_reasons().values()
    with two_pods() as datapath:
        datapath.udp(1, FORWARDED, output(2))
        datapath.udp(1, WITHOUT_ACTION)
        with suppress(OSError):  # before 6.6 there is no such action
            datapath.udp(1, EXPLICIT, drop())
        sent(watch, FORWARDED)  # ARP
        packets = {port: sent(watch, port) for port in (FORWARDED, WITHOUT_ACTION, EXPLICIT, WITHOUT_FLOW)}
    assert {len(each) for each in packets.values()} == {PACKETS}
    verdicts = {port: {each.verdict for each in seen} for port, seen in packets.items()}
    assert {each.outcome for each in packets[FORWARDED]} == {Outcome.DELIVERED} and not found(packets[FORWARDED])
    upcall = "DROPPED in the Open vSwitch datapath: no flow matched it, and ovs-vswitchd could not be asked for one"
    assert verdicts[WITHOUT_FLOW] == {upcall}
    if "OVS_DROP_LAST_ACTION" not in names:
        assert {each.outcome for each in packets[WITHOUT_ACTION]} == {Outcome.SENT}, "consume_skb is no drop"
        return
    assert verdicts[WITHOUT_ACTION] == {
        "DROPPED in the Open vSwitch datapath: OVS_DROP_LAST_ACTION, the flow that it matched does not forward it"
    }
    assert verdicts[EXPLICIT] == {"DROPPED in the Open vSwitch datapath: OVS_DROP_EXPLICIT, the flow that it matched drops it"}
    for port in (WITHOUT_ACTION, EXPLICIT, WITHOUT_FLOW):
        assert {each.hops[-1].in_iface for each in packets[port]} == {"vovs-a"}
        assert found(packets[port]) == [("dropped_by_open_vswitch", True)]


def test_explain_does_not_know_what_flows_decide(module: None, node: None) -> None:
    with two_pods():
        subprocess.run(["ip", "addr", "add", "10.66.0.254/24", "dev", "br-test"], check=True)
        subprocess.run(["ip", "link", "set", "br-test", "up"], check=True)
        predictor = PathPredictor(inventory.read(nft_loaded()))
        others = OtherDatapaths.of_machine(predictor.routes.links())
        source, target = PODS.values()
        paths = predictor.predict(PathQuery(source, 0, target, 80))
        found = [with_other_datapaths(each, others, ClusterView()).packet for each in paths]
    print(*(each.verdict for each in found), sep="\n")
    passed = [each for each, path in zip(found, paths, strict=True) if path.packet.outcome is Outcome.FORWARDED]
    assert passed and {each.outcome for each in passed} == {Outcome.UNKNOWN}
    assert all(each.verdict.startswith("not known: Open vSwitch behind br-test decides, too; ") for each in passed)
