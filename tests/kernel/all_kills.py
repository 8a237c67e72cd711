# SPDX-License-Identifier: Apache-2.0
"""Kills the tracer on an idle node at every point of its start, while it traces, and at its end: the node must not change.

    python3 tests/kernel/all_kills.py [--attach kprobe] [--warm]     (as root, in a machine of the lab; make untouched)

--warm: the killed starts take their programs from the cache; otherwise they compile them.

These are compared, byte for byte and with their counters: rules of legacy iptables, iptables-nft and nftables, conntrack's
table, counters of every namespace, sysctls, modules and their users, kprobes, ftrace, BPF objects, namespaces, files, processes
(tests/kernel/idle.py). Before that a node without any rules and netfilter modules is compared in the same way.

The last line is points=… killed=… missed=… differences=…: the exit status is 0 when nothing differs and no point was missed.
A way of attaching that this kernel or these options do not use is reported as "not passed", and does not count as missed.
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
from tests.kernel.kill_points import EARLY, EARLY_WARM, NOT_REACHED, POINTS  # noqa: E402
from tracer.kernel import cache_directory  # noqa: E402

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
    """An idle node: rules of three back ends with counts above zero, and one open connection."""
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


class PreparedStart:
    """A start of the tracer that waits when it has its programs. Each line written to it is a point to which a copy runs."""

    def __init__(self, options: tuple[str, ...], early: str = "-") -> None:
        """early: a point before that, at which the process dies itself; "-" = none."""
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
    """Compares the node after each point and counts the results."""

    def __init__(self) -> None:
        self.killed, self.points, self.missed, self.differences = 0, 0, 0, 0
        self._last = time.monotonic()

    def check(self, name: str, status: int, before: idle.State, now: idle.State, ignored: tuple[str, ...] = ()) -> None:
        found = idle.differences(before, now, ignored)
        self.points += 1
        self.killed += status == KILLED
        self.missed += status != KILLED and not (status == NOT_REACHED and name in POINTS and POINTS[name].way)
        self.differences += found.count("\n") + 1 if found else 0
        result = "killed" if status == KILLED else "not passed" if status == NOT_REACHED else f"status {status}"
        took, self._last = time.monotonic() - self._last, time.monotonic()
        print(
            f"{took:5.1f} s  {name}: {result}, {'the same' if not found else 'DIFFERS'}",
            *found.splitlines()[:40],
            sep="\n    ",
            flush=True,
        )


def bare(options: tuple[str, ...], compared: Comparison) -> None:
    """On a node without rules a start must not load any further module."""
    before = idle.state(rules=False)
    start = PreparedStart(options)
    assert "compiled" in start.read(), "it does not compile"
    start.write("tracing")
    pid = start.read()["at"]
    time.sleep(1)
    now = idle.state(rules=False)
    os.kill(pid, signal.SIGKILL)
    start.read()
    start.kill()
    ignored = ("files", *idle.PROBES)
    compared.check("no netfilter modules: while tracing", KILLED, before, now, ignored)


def one_by_one(options: tuple[str, ...], compared: Comparison, selected: list[str]) -> None:
    before = idle.quiet()
    for name in EARLY_WARM if cache_directory.directory_of_environment() else EARLY:
        if not selected or name in selected:
            start = PreparedStart(options, name)
            compared.check(name, int(start.read()["status"]), before, idle.settled(before))
    start = PreparedStart(options)
    assert "compiled" in start.read(), "it does not compile"
    # The process that has the programs stays while its copies are killed.
    compiled = idle.quiet()
    compared.check("programs there, and alive", KILLED, before, compiled, idle.PROBES)
    for name in (name for name in POINTS if not selected or name in selected):
        start.write(name)
        answer = start.read()
        if "at" in answer:
            time.sleep(2)  # its threads have read all rules after this time
            compared.check(f"{name}, not killed yet", KILLED, before, idle.settled(before, idle.PROBES), idle.PROBES)
            os.kill(answer["at"], signal.SIGKILL)
            answer = start.read()
        compared.check(name, int(answer["status"]), compiled, idle.settled(compiled))
    compared.check("programs there, and all points before", start.kill(), before, idle.settled(before))


def check_sensitivity(before: idle.State) -> None:
    """One datagram must show as a difference; otherwise the comparison proves nothing."""
    traffic.udp_ask()
    found = idle.differences(before, idle.state())
    shown = {line.partition(":")[2].split(":")[0].strip() for line in found.splitlines()}
    assert {"iptables-legacy", "nft", "iptables-nft", "conntrack", "dev"} <= shown, shown


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", default="auto", choices=("auto", "kprobe"))
    parser.add_argument("--only", default="", metavar="POINT,...", help="these points")
    parser.add_argument("--no-bare", action="store_true", help="not on a node without rules")
    parser.add_argument("--warm", action="store_true", help="starts with programs from the cache")
    arguments = parser.parse_args()
    os.environ[cache_directory.VARIABLE] = cache_directory.OFF
    options, compared = (*TRACED, "--attach", arguments.attach, "--ready-file", "/var/lib/untouched.ready"), Comparison()
    if not arguments.no_bare:
        bare(TRACED[:-2], compared)
    with node():
        began = time.monotonic()
        if arguments.warm:
            os.environ[cache_directory.VARIABLE] = str(cache_directory.DIRECTORY)
            run = [sys.executable, "-B", "-W", "ignore", "-m", "tracer", "--port", "1", *options[2:]]
            subprocess.run(run, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        one_by_one(options, compared, [name for name in arguments.only.split(",") if name])
        print(f"{time.monotonic() - began:.0f} s")
        check_sensitivity(idle.quiet())
    print(f"points={compared.points} killed={compared.killed} missed={compared.missed} differences={compared.differences}")
    return int(bool(compared.missed or compared.differences))


if __name__ == "__main__":
    sys.exit(main())
