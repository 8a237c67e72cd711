# SPDX-License-Identifier: Apache-2.0
"""Tables, processes and namespaces that come and go by the thousand: the tracer's memory stays bounded, and its results right.

One tracer goes through all of it; the tests depend on their order. The long version (THOROUGH=1) prints the figures of
docs/performance.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import rules, topology, traffic
from scenes.netns import RUN_DIR, Child
from tests.kernel import stress
from tests.kernel.tracers import Line, Tracer

LONG = bool(os.environ.get("K8SNET_THOROUGH"))
REPLACEMENTS, PROCESSES, NAMESPACES = (5_000, 100_000, 10_000) if LONG else (200, 1_000, 100)
PORT, ASKED = 30778, 5353
"""UDP ports: the one that the replaced rules translate, and that of the pods' servers."""
AT_ONCE = 25
"""Replacements between two packets."""
SENDERS = 25
"""One process in this many opens a socket and asks a pod."""
GROWTH_MB, MOST_MB = 32, 512
"""Limits of the memory: what the second half of a phase may need more than the first one, and the most of the whole run."""
MOST_NAMED, ENOUGH = 40, 3
"""Most namespaces that are named one after another, and how many of them must have the inode of an earlier one."""
SAMPLE_SECONDS, PATIENCE = 0.5, 300.0
LAST_BYTES = 4 << 20
"""Bytes read from the end of the output: the last packets."""
POD = topology.PODS[0].addr4
BASE = f"""*nat
:CHURN - [0:0]
-A PREROUTING -p udp -m udp --dport {PORT} -j CHURN
-A POSTROUTING -d {POD}/32 -p udp -m comment --comment churn-back -m udp --dport {ASKED} -j MASQUERADE
COMMIT
"""
FORKS = """
n=0
while [ $n -lt {count} ]; do
  (if [ $((n % {every})) -eq 0 ]; then exec 3<>/dev/udp/{pod}/{port}; printf '?' >&3; read -t 5 -N 1 -u 3; fi)
  n=$((n + 1))
done
"""


class MemoryLog:
    """The memory of a process, sampled in a thread, MB."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._samples: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._samples.append(self._read("VmRSS"))

    def _read(self, name: str) -> int:
        return int(re.findall(rf"{name}:\s+(\d+)", self._status.read_text())[0]) >> 10

    def begin(self) -> None:
        """Begins a phase."""
        self._samples.clear()

    def check(self, what: str) -> None:
        """Ends a phase: prints its figures, and checks that the memory no longer grew in its second half."""
        samples = [*self._samples, self._read("VmRSS")]
        first, second = max(samples[: len(samples) // 2 + 1]), max(samples[len(samples) // 2 :])
        most = self._read("VmHWM")
        print(
            f"{what}: {samples[0]} MB at the start, {first} MB in the first half, {second} MB in the second, {most} MB at most"
        )
        assert second - first <= GROWTH_MB and most <= MOST_MB, samples

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class Churned:
    """The tracer that goes through all phases, and its memory."""

    def __init__(self, directory: Path) -> None:
        ports = (traffic.NODEPORT_HTTP, PORT, ASKED, stress.PASSING)
        self.tracer = Tracer(directory, "churned", ports=ports, prefix="")
        assert self.tracer.started(), self.tracer.messages()
        self._out = directory / "churned.out"
        self.memory = MemoryLog(int((directory / "churned.ready").read_text()))

    def last_lines(self) -> list[Line]:
        """The last complete lines of the output."""
        with self._out.open("rb") as out:
            out.seek(max(0, out.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = out.read().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n") and line.startswith(b'{"type"')]

    def settle(self) -> None:
        """Waits until the output no longer grows: all packets are written."""
        until, size = time.monotonic() + PATIENCE, -1
        while size != self._out.stat().st_size and time.monotonic() < until:
            size = self._out.stat().st_size
            time.sleep(3)

    def packet(self, dport: int, sport: int) -> Line:
        """The written packet of a request."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for line in reversed(self.last_lines()):
                if line["type"] == "packet" and (line.get("dport"), line.get("sport")) == (dport, sport):
                    return line
            time.sleep(1)
        raise AssertionError(f"no packet from port {sport} to {dport}: {self.tracer.messages()}")

    def end(self) -> Line:
        """Ends the tracer; returns its last line."""
        self.memory.close()
        if self.tracer.process.poll() is None:
            self.tracer.signal(signal.SIGINT)
        self.tracer.process.wait(PATIENCE)
        print(self.tracer.messages())
        return self.last_lines()[-1]


@pytest.fixture(scope="module")
def churned(node: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Churned]:
    rules.restore_text(BASE, 4, "legacy", flush=False)
    made = Churned(tmp_path_factory.mktemp("churn"))
    yield made
    summary = made.end()
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")
    print({key: summary.get(key) for key in ("packets", "incomplete", "events", "lost", "seconds")})
    assert made.tracer.process.returncode == 0 and summary["type"] == "summary"


def decisions(packet: Line) -> list[str]:
    """The comments of the rules that decided, in the order of the hops."""
    return [hop["rule"].get("comment", "") for hop in packet["hops"] if "rule" in hop]


def replace_legacy(first: int, count: int) -> None:
    """Replaces the nat table, once for each COMMIT."""
    blocks = "".join(
        f"*nat\n:CHURN - [0:0]\n-A CHURN -p udp -m comment --comment churn-{n} -j DNAT --to-destination {POD}:{ASKED}\nCOMMIT\n"
        for n in range(first, first + count)
    )
    subprocess.run(["iptables-legacy-restore", "--noflush"], input=blocks, text=True, check=True)


def replace_nft(first: int, count: int) -> None:
    """Replaces a chain of nftables, with a transaction for each line."""
    lines = "".join(
        f'flush chain inet churn c; add rule inet churn c udp dport {{ {PORT}, {ASKED} }} accept comment "churn-{n}"\n'
        for n in range(first, first + count)
    )
    subprocess.run(["nft", "-i"], input=lines, text=True, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("backend", ["legacy", "nft"])
def test_tables_that_are_replaced(churned: Churned, backend: str) -> None:
    """The last packet met the last rule. Packets in between have the rule that they met, or none."""
    if backend == "nft":
        table = "table inet churn {\n chain c {\n  type filter hook prerouting priority -50;\n }\n}\n"
        subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
    replace, began, answered = (replace_legacy if backend == "legacy" else replace_nft), time.monotonic(), 0
    churned.memory.begin()
    for first in range(0, REPLACEMENTS, AT_ONCE):
        replace(first, AT_ONCE)
        answered += traffic.udp_ask(port=PORT, timeout=2).outcome == "answered"
    seconds = time.monotonic() - began
    churned.settle()
    churned.memory.check(f"{REPLACEMENTS} replacements of a {backend} table in {seconds:.0f} s, {answered} answers")
    time.sleep(2)
    reply = traffic.udp_ask(port=PORT)
    packet = churned.packet(PORT, reply.sport)
    assert reply.outcome == "answered" and f"churn-{REPLACEMENTS - 1}" in decisions(packet), packet
    assert answered >= REPLACEMENTS // AT_ONCE * 0.9


def test_processes_that_come_and_go(churned: Churned) -> None:
    """The last request has the right process, also after thousands of sockets without one."""
    began = time.monotonic()
    churned.memory.begin()
    script = FORKS.format(count=PROCESSES // 2, every=SENDERS, pod=POD, port=ASKED)
    running = [subprocess.Popen(["bash", "-c", script]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    seconds = time.monotonic() - began
    churned.settle()
    churned.memory.check(f"{PROCESSES} processes, {PROCESSES // SENDERS} of them with a socket, in {seconds:.0f} s")
    assert_http_is_explained(churned)


def test_namespaces_that_come_and_go(churned: Churned) -> None:
    began = time.monotonic()
    churned.memory.begin()
    sent = stress.passing_namespaces(NAMESPACES)
    seconds = time.monotonic() - began
    churned.settle()
    churned.memory.check(f"{NAMESPACES} network namespaces with {sent} packets in {seconds:.0f} s")
    assert_http_is_explained(churned)


def test_a_namespace_with_a_used_inode_has_its_own_name(churned: Churned) -> None:
    """The kernel gives the inode of a removed namespace to a later one (docs/kernel-facts.md)."""
    seen: set[int] = set()
    used_again = 0
    for n in range(MOST_NAMED):
        name = f"named-{n}"
        subprocess.run(["ip", "netns", "add", name], check=True)
        try:
            inode = (RUN_DIR / name).stat().st_ino
            sport = Child(name, stress.send_over_loopback).result(60)
            packet = churned.packet(stress.PASSING, sport)
        finally:
            subprocess.run(["ip", "netns", "del", name], check=True)
        assert packet["netns"] == name, packet
        used_again += inode in seen
        seen.add(inode)
        if used_again == ENOUGH:
            return
    raise AssertionError(f"of {MOST_NAMED} namespaces only {used_again} had a used inode: {seen}")


def assert_http_is_explained(churned: Churned) -> None:
    """A request to the NodePort has the rule of kube-proxy and the process of its server."""
    reply = traffic.http_get()
    packet = churned.packet(traffic.NODEPORT_HTTP, reply.sport)
    assert reply.outcome == "answered" and packet["outcome"] == "delivered", packet
    translations = [hop for hop in packet["hops"] if hop.get("nat", {}).get("kind") == "DNAT"]
    assert translations and translations[0]["rule"]["chain"].startswith("KUBE-SEP-"), packet
    sockets = [hop["socket"] for hop in packet["hops"] if "pid" in hop.get("socket", {})]
    assert sockets and all(Path(f"/proc/{s['pid']}/comm").read_text().strip() == s["command"] for s in sockets), packet
