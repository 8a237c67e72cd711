"""Faults while packets are traced: what was seen is told, what was not is said. docs/faults.md has the words."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scenes import topology, traffic
from scenes.netns import entered
from tests.kernel import tracers
from tests.kernel.tracers import Tracer
from tests.kernel.untouched import settled, state

pytestmark = pytest.mark.thorough

LATER, DOOMED = 9124, 9125
"""Ports: one whose rule asks a match that is loaded while packets are traced; one of a namespace that is soon gone."""
PORTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP, LATER, DOOMED)
HOUR, FLOOD, SLEPT = 3600, 30_000, 30
RULE = f"INPUT -p tcp --dport {LATER} -m string --string nothing --algo bm -j DROP".split()


@contextmanager
def doomed_namespace() -> Iterator[None]:
    """A namespace behind a veth pair, gone when the block ends."""
    for command in (
        "ip netns add doomed",
        "ip link add doomed0 type veth peer name eth0 netns doomed", "ip addr add 10.99.0.1/24 dev doomed0",
        "ip link set doomed0 up", "ip -n doomed addr add 10.99.0.2/24 dev eth0", "ip -n doomed link set eth0 up",
    ):  # fmt: skip
        subprocess.run(command.split(), check=True)
    yield
    subprocess.run(["ip", "netns", "del", "doomed"], check=True)


def step(seconds: int) -> None:
    subprocess.run(["date", "-s", f"@{int(time.time()) + seconds}"], check=True, stdout=subprocess.DEVNULL)


def flood(count: int) -> None:
    """UDP from the client to the NodePort; nobody waits for answers."""
    with entered(topology.CLIENT), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(count):
            sock.sendto(b"x", (topology.NODE4, traffic.NODEPORT_UDP))


def asked(pause: float = 1.5) -> int:
    """The client's port of a request that was answered."""
    reply = traffic.http_get()
    assert reply.outcome == "answered"
    time.sleep(pause)
    return reply.sport


def loaded(module: str) -> bool:
    return any(line.split()[0] == module for line in Path("/proc/modules").read_text().splitlines())


def test_one_run_through_many_faults(node: None, tmp_path: Path) -> None:
    before = state()
    tracer, beside = Tracer(tmp_path, "one", ports=PORTS), Tracer(tmp_path, "beside", ports=PORTS)
    assert tracer.started() and beside.started(), tracer.said() + beside.said()
    ports = {"at first": asked()}
    step(HOUR)
    ports["an hour later"] = asked()
    step(-HOUR)
    ports["an hour earlier"] = asked()

    was_loaded = loaded("xt_string")
    subprocess.run(["iptables-legacy", "-I", *RULE], check=True)
    assert traffic.tcp_connect(topology.NODE4, LATER).outcome == "refused"
    time.sleep(1.5)
    subprocess.run(["iptables-legacy", "-D", *RULE], check=True)
    unloaded = {
        module: subprocess.run(["rmmod", module], capture_output=True, text=True).stderr.strip()
        for module in ("xt_string", "xt_u32")
    }
    ports["modules came and went"] = asked()

    with doomed_namespace():
        assert traffic.tcp_connect("10.99.0.2", DOOMED, ns=None).outcome == "refused"
    ports["a namespace is gone"] = asked()

    beside_lines = beside.end()
    tracer.signal(signal.SIGSTOP)
    for i in range(5):
        ports[f"asleep {i}"] = asked(SLEPT / 5)
    tracer.signal(signal.SIGCONT)
    ports["awake again"] = asked(3)
    calm = tracer.lines()

    tracer.signal(signal.SIGSTOP)
    flood(FLOOD)
    tracer.signal(signal.SIGCONT)
    ports["after the flood"] = asked(10)
    lines = tracer.end()
    print("was loaded", was_loaded, "unloaded", unloaded)
    seen = {name: tracers.of_port(lines, port) for name, port in ports.items()}
    for name, mine in seen.items():
        print(name, len(mine), "packets", [p["complete"] for p in mine].count(False), "incomplete", mine and mine[0]["time"])
    late, gone = tracers.of_port(lines, LATER), tracers.of_port(lines, DOOMED)
    for packet in late:
        tables = [(h.get("undecided"), h.get("rule")) for h in packet["hops"] if h["what"] == "table"]
        print("LATER", packet["tcp_flags"], packet["verdict"], tables)
    print("DOOMED", [(p["netns"], p["verdict"], [h["netns"] for h in p["hops"]]) for p in gone])
    print("FLOOD", len(tracers.of_port(lines, traffic.NODEPORT_UDP)), "of", FLOOD, lines[-1])
    subprocess.run(["modprobe", "xt_u32"], check=False)

    assert all(len(mine) >= 8 for mine in seen.values()), {name: len(mine) for name, mine in seen.items()}
    assert not [line for line in calm if line["type"] == "lost"], "the ring holds what comes in 30 s"
    times = [packet["time"] for packet in tracers.packets(calm)]
    assert times == sorted(times), "the clock's steps are not in the packets' times"
    assert late and late[0]["dport"] == LATER and not any("rule" in h and h["what"] == "table" for h in late[0]["hops"])
    assert {h["netns"] for p in gone for h in p["hops"]} >= {"doomed"}, "named by what it was called while it was there"
    assert lines[-1]["lost"] > 0 and lines[-1]["incomplete"] > 0 and any(line["type"] == "lost" for line in lines)
    same = [{p["time"][:-4] for p in tracers.of_port(some, ports["at first"])} for some in (lines, beside_lines)]
    assert len(same[0]) == len(same[1]), "two tracers see the same"
    for run in (tracer, beside):
        assert run.process.returncode == 0 and "Traceback" not in run.said()
    after = settled(before)
    assert {key: after[key] for key in ("programs", "links", "kprobes")} == {
        key: before[key] for key in ("programs", "links", "kprobes")
    }
