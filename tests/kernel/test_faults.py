# SPDX-License-Identifier: Apache-2.0
"""Faults while packets are traced: what was seen is reported, and so are losses. docs/faults.md describes each fault.

Two tracers, started once, go through all of them; the tests depend on their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from scenes import topology, traffic
from tests.kernel import faults, tracers
from tests.kernel.tracers import Line, Tracer
from tests.kernel.untouched import settled, state
from tracer.pipeline.shutdown import END_SECONDS

pytestmark = pytest.mark.thorough

PORTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP, faults.LATER, faults.DOOMED)
FEWEST, PATIENCE = 8, 60.0
"""Packets of an answered request, and seconds until they are reported: the emulator is slow."""
SAME, HOUR, SLEPT, FLOOD, DETACHING = 0.05, 3600, 30.0, 10_000, 30.0


@pytest.fixture(scope="module")
def both(node: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tracer, Tracer]]:
    """Two tracers of the same ports. After the last test they end, and the node's state is compared with the one before."""
    before, directory = state(), tmp_path_factory.mktemp("faults")
    one, other = Tracer(directory, "one", ports=PORTS), Tracer(directory, "other", ports=PORTS)
    assert one.started() and other.started(), one.messages() + other.messages()
    yield one, other
    for tracer in (one, other):
        tracer.end()
    after = settled(before)
    kept = ("programs", "links", "kprobes", "iptables", "nft")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}


@pytest.fixture
def one(both: tuple[Tracer, Tracer]) -> Tracer:
    return both[0]


def until(done: Callable[[], bool]) -> bool:
    """Whether `done` came true within PATIENCE seconds."""
    end = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < end:
        time.sleep(0.3)
    return done()


def packets_of_port(tracer: Tracer, port: int, fewest: int = FEWEST) -> list[Line]:
    """The packets of a port, once there are at least `fewest`."""
    until(lambda: len(tracers.of_port(tracer.lines(), port)) >= fewest)
    found = tracers.of_port(tracer.lines(), port)
    print(f"{tracer.name} port {port}: {len(found)} packets, {[p['complete'] for p in found].count(False)} incomplete")
    return found


def answered_request() -> int:
    """Makes a request that is answered; returns the client's port."""
    reply = traffic.http_get()
    assert reply.outcome == "answered"
    return reply.sport


def first_seen(packet: Line) -> float:
    """When a packet was first seen, s, by the clock that the run began with."""
    return datetime.fromisoformat(packet["time"][:26] + "+00:00").timestamp()


def are_whole(packets: list[Line]) -> bool:
    return len(packets) >= FEWEST and all(p["complete"] for p in packets)


def test_two_tracers_at_once(both: tuple[Tracer, Tracer]) -> None:
    """Neither disturbs the other: each reports every packet, with the same verdicts."""
    port = answered_request()
    mine, others = (packets_of_port(tracer, port) for tracer in both)
    assert are_whole(mine) and are_whole(others)
    assert [p["verdict"] for p in mine] == [p["verdict"] for p in others]
    assert all(abs(at - other) < SAME for at, other in zip(map(first_seen, mine), map(first_seen, others), strict=True))
    both[1].end()
    assert both[1].process.returncode == 0 and "Traceback" not in both[1].messages()
    assert are_whole(packets_of_port(both[0], answered_request())), "when one tracer ends, the other keeps its probes"


def test_clock_stepped(one: Tracer) -> None:
    """Times continue from the clock at the start."""
    ports = [answered_request()]
    for seconds in (HOUR, -HOUR):
        faults.step_clock(seconds)
        ports.append(answered_request())
    packets = [packets_of_port(one, port) for port in ports]
    print("at", [p[0]["time"] for p in packets])
    assert all(map(are_whole, packets))
    times = [first_seen(packet) for some in packets for packet in some]
    assert times == sorted(times) and times[-1] - times[0] < HOUR / 2


def test_module_loaded_while_tracing(one: Tracer) -> None:
    """With a match that is not watched, the rule that acted is unknown: this is reported, not guessed."""
    assert not faults.loaded("xt_string")
    with faults.rule_of_a_new_module():
        assert traffic.tcp_connect(topology.NODE4, faults.LATER).outcome == "refused"
        first, *_ = packets_of_port(one, faults.LATER, 2)
    hops = [hop for hop in first["hops"] if hop["what"] == "table" and hop["table"] == "filter" and hop["hook"] == "INPUT"]
    print("string:", first["verdict"], hops)
    assert first["dport"] == faults.LATER and first["outcome"] == "refused"
    assert len(hops) == 1 and not ("rule" in hops[0] and "undecided" in hops[0])
    assert faults.unload("xt_string") == "", "the module must not be held"
    assert are_whole(packets_of_port(one, answered_request()))


def test_module_unloaded_while_tracing(one: Tracer) -> None:
    """A watched module: the kernel holds it, or removes the probe with it. In both cases tracing goes on."""
    refusal = faults.unload("xt_u32")
    print("rmmod xt_u32:", refusal or "gone")
    assert are_whole(packets_of_port(one, answered_request()))
    assert faults.loaded("xt_u32") == bool(refusal)


def test_namespace_deleted_while_tracing(one: Tracer) -> None:
    with faults.doomed_namespace():
        assert traffic.tcp_connect(faults.DOOMED_ADDRESS, faults.DOOMED, ns=None).outcome == "refused"
        named = packets_of_port(one, faults.DOOMED, 2)
        assert traffic.tcp_connect(faults.DOOMED_ADDRESS, faults.DOOMED, ns=None).outcome == "refused"
    gone = packets_of_port(one, faults.DOOMED, len(named) + 2)
    names = [[hop["netns"] for hop in packet["hops"]] for packet in gone]
    print("doomed:", names, [p["verdict"] for p in gone])
    assert {name for hops in names[: len(named)] for name in hops} == {"node", "doomed"}
    assert len(gone) >= len(named) + 2 and all(p["complete"] for p in gone)
    assert are_whole(packets_of_port(one, answered_request()))


def test_reader_asleep(one: Tracer) -> None:
    """The ring holds the events of half a minute. They are reported late, with the times at which they happened."""
    ports = []
    with faults.asleep(one):
        for _ in range(3):
            ports.append(answered_request())
            time.sleep(SLEPT / 3)
    packets = [packets_of_port(one, port) for port in ports]
    assert all(map(are_whole, packets))
    assert not [line for line in one.lines() if line["type"] == "lost"]
    assert SLEPT * 2 / 3 <= first_seen(packets[-1][0]) - first_seen(packets[0][0]) < SLEPT


def test_ring_full_and_ctrl_c(one: Tracer) -> None:
    """Packets for which there was no room are counted, the others are whole. A run with a full ring still ends soon, and
    reports what it has not explained."""
    with faults.asleep(one):
        began = time.monotonic()
        faults.flood(FLOOD)
        print(f"flood: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    assert until(lambda: any(line["type"] == "lost" for line in one.lines())), "nothing was lost: FLOOD must be larger"
    print(f"the loss was reported after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    lines = one.end()
    took, summary = time.monotonic() - began, lines[-1]
    flooded = tracers.of_port(lines, traffic.NODEPORT_UDP)
    print(f"ended after {took:.1f} s; of {FLOOD} datagrams {len(flooded)} packets reported;", summary)
    assert took < END_SECONDS + DETACHING
    assert summary["type"] == "summary" and summary["lost_by_probe"]["packet"] > 0
    assert not summary["incomplete"] or summary["lost_by_probe"].keys() != {"packet"}
    assert one.process.returncode == 0 and "Traceback" not in one.messages()
