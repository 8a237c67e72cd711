# SPDX-License-Identifier: Apache-2.0
"""An idle node, and the tracer killed at every point of its start, while it traces and at its end: the node must be the same.

    python3 tests/kernel/all_kills.py [--attach kprobe]     (as root, in a machine of the lab; make untouched)

Compared are, byte for byte and with their counters: rules of legacy iptables, iptables-nft and nftables, conntrack's table,
counters of every namespace, sysctls, modules and their users, kprobes, ftrace, BPF objects, namespaces, files, processes
(tests/kernel/idle.py). Before that the same is asked of a node that has no rules and no netfilter modules at all.

The last line is points=… killed=… missed=… differences=…: the exit status is 0 when nothing differs and no point was missed.
A way of attaching that this kernel, or these options, do not take is "not passed", and not missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import nfnetlink, rules, scene, topology, traffic  # noqa: E402
from tests.kernel import idle, modules  # noqa: E402
from tests.kernel.kill_points import EARLY, NOT_REACHED, POINTS  # noqa: E402

BY_NFT = """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:SEEN - [0:0]
-A INPUT -m comment --comment seen -j SEEN
-A FORWARD -m mark --mark 0x4000/0x4000 -j SEEN
-A FORWARD -p tcp -m tcp --dport 8080 -j SEEN
-A SEEN -p tcp
-A SEEN -p udp
COMMIT
"""
NATIVE = """table inet counted {
  counter seen { }
  set ports { type inet_service; counter; elements = { 8080, 5353, 30285 }; }
  map ways { type inet_service : verdict; counter; elements = { 8080 : jump more, 5353 : accept }; }
  chain more { counter; }
  chain forwarded {
    type filter hook forward priority 5; policy accept;
    counter name seen
    tcp dport @ports counter
    tcp dport vmap @ways
    quota over 1000 mbytes counter
  }
  chain came {
    type filter hook input priority 5; policy accept;
    counter name seen
    ct state new counter
  }
}
"""
TRACED = ("--port", str(traffic.NODEPORT_HTTP), "--no-kube", "--duration", "3")
KILLED = -signal.SIGKILL


@contextmanager
def node() -> Iterator[None]:
    """A node with rules of three back ends that have counted, one open connection, and nothing that moves."""
    modules.load("nf_conntrack_netlink nft_quota nft_objref nft_counter nft_ct nft_compat xt_comment")
    with scene.scene():
        rules.restore_text(BY_NFT, 4, "nft")
        rules.restore_text(BY_NFT, 6, "nft")
        subprocess.run(["nft", "-f", "-"], input=NATIVE, text=True, check=True)
        Path("/proc/sys/net/netfilter/nf_conntrack_acct").write_text("1")
        for _ in range(3):
            traffic.http_get()
            traffic.udp_ask()
        traffic.http_get(topology.NODE6)
        nfnetlink.conntrack_flush()
        with traffic.connections(topology.NODE4, traffic.NODEPORT_HTTP, 1):
            yield


class Starts:
    """The tracer's start up to where its text is compiled; at(point) goes on from there, once each."""

    def __init__(self, options: tuple[str, ...], early: str = "-") -> None:
        """early: a point at which it dies before that."""
        command = [sys.executable, "-B", "-W", "ignore", str(ROOT / "tests/kernel/kill_points.py"), early, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def write(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {"status": self.process.wait()}

    def kill(self) -> int:
        self.process.kill()
        return self.process.wait()


class Comparison:
    """What came of each point."""

    def __init__(self) -> None:
        self.hit, self.points, self.missed, self.differences = 0, 0, 0, 0
        self._last = time.monotonic()

    def check(self, name: str, status: int, before: idle.State, now: idle.State, but: tuple[str, ...] = ()) -> None:
        found = idle.differences(before, now, but)
        self.points += 1
        self.hit += status == KILLED
        self.missed += status != KILLED and not (status == NOT_REACHED and name in POINTS and POINTS[name].way)
        self.differences += found.count("\n") + 1 if found else 0
        came = "killed" if status == KILLED else "not passed" if status == NOT_REACHED else f"status {status}"
        took, self._last = time.monotonic() - self._last, time.monotonic()
        print(
            f"{took:5.1f} s  {name}: {came}, {'the same' if not found else 'DIFFERS'}",
            *found.splitlines()[:40],
            sep="\n    ",
            flush=True,
        )


def bare(options: tuple[str, ...], compared: Comparison) -> None:
    """A node without rules: a start must load no module that is not there."""
    before = idle.state(rules=False)
    starts = Starts(options)
    assert "compiled" in starts.read(), "it does not compile"
    starts.write("tracing")
    pid = starts.read()["at"]
    time.sleep(1)
    now = idle.state(rules=False)
    os.kill(pid, signal.SIGKILL)
    starts.read()
    starts.kill()
    ignored = ("files", *idle.PROBES)
    compared.check("no netfilter modules: while tracing", KILLED, before, now, ignored)


def one_by_one(options: tuple[str, ...], compared: Comparison, wanted: list[str]) -> None:
    before = idle.quiet()
    for name in EARLY:
        if not wanted or name in wanted:
            starts = Starts(options, name)
            compared.check(name, int(starts.read()["status"]), before, idle.settled(before))
    starts = Starts(options)
    assert "compiled" in starts.read(), "it does not compile"
    # What the process that has compiled holds stays there while its copies are killed: its maps, and itself.
    compiled = idle.quiet()
    compared.check("compiled, and alive", KILLED, before, compiled, idle.PROBES)
    for name in (name for name in POINTS if not wanted or name in wanted):
        starts.write(name)
        answer = starts.read()
        if "at" in answer:
            time.sleep(2)  # its threads have read all rules by then
            compared.check(f"{name}, not killed yet", KILLED, before, idle.settled(before, idle.PROBES), idle.PROBES)
            os.kill(answer["at"], signal.SIGKILL)
            answer = starts.read()
        compared.check(name, int(answer["status"]), compiled, idle.settled(compiled))
    compared.check("compiled, and all points before", starts.kill(), before, idle.settled(before))


def sees(before: idle.State) -> None:
    """One datagram must show, or nothing here is worth anything."""
    traffic.udp_ask()
    found = idle.differences(before, idle.state())
    shown = {line.partition(":")[2].split(":")[0].strip() for line in found.splitlines()}
    assert {"iptables-legacy", "nft", "iptables-nft", "conntrack", "dev"} <= shown, shown


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", default="auto", choices=("auto", "kprobe"))
    parser.add_argument("--only", default="", metavar="POINT,...", help="these points")
    parser.add_argument("--no-bare", action="store_true", help="not on a node without rules")
    asked = parser.parse_args()
    options, compared = (*TRACED, "--attach", asked.attach, "--ready-file", "/var/lib/untouched.ready"), Comparison()
    if not asked.no_bare:
        bare(TRACED[:-2], compared)
    with node():
        began = time.monotonic()
        one_by_one(options, compared, [name for name in asked.only.split(",") if name])
        print(f"{time.monotonic() - began:.0f} s")
        sees(idle.quiet())
    print(f"points={compared.points} killed={compared.hit} missed={compared.missed} differences={compared.differences}")
    return int(bool(compared.missed or compared.differences))


if __name__ == "__main__":
    sys.exit(main())
