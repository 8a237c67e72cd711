# SPDX-License-Identifier: Apache-2.0
"""Forwarding throughput: 64-byte UDP frames from the client through a NodePort's DNAT to a pod that discards them.

There is one connection with a fixed port. It is answered once before the measurement, so that conntrack has it as established
and no nat table runs again. Packets are counted at the pods' interfaces: those that the node has forwarded, even when the
socket is too slow. Client, node and pods are namespaces of one kernel, and the probes see the packet in all of them.

Each blast runs between untraced blasts, and its figure is the ratio to the mean of the nearest one before and the nearest one
after it: slow changes of the host's load then cancel out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench import tools
from bench.tools import OTHER_PORT, Running, Starter, ToolFailed, Tracer
from scenes import load, rules, scene, servers, traffic
from scenes.topology import PODS

SOURCE_PORT = 40001
WARM_SHARE = 0.2
"""Time of sending before the measurement, as a share of the measured time."""
BETWEEN = 2
"""Number of traced blasts between two untraced ones."""
_UDP_TIMEOUTS = ("nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream")
_HOOKED = Path("/sys/kernel/tracing/enabled_functions")


@dataclass(frozen=True)
class Blast:
    """One blast. rate: packets/s arriving at the pod. sent: packets/s leaving the client. cpu: share of one CPU used by the
    tool's own process. overflows: packets dropped at the pod's full socket. seconds: from the first packet to the last."""

    rate: float
    sent: float
    cpu: float
    overflows: int
    seconds: float


@dataclass
class Variant:
    """One thing to measure. Lists have one entry per round.

    slow: takes long to start, and its ratio is far from all others; it takes part in a third of the rounds only.
    reported: the figures that the tool reported after each blast.
    """

    name: str
    start: Starter
    slow: bool = False
    command: str = ""
    ratios: list[float] = field(default_factory=list)
    blasts: list[Blast] = field(default_factory=list)
    reported: list[dict[str, Any]] = field(default_factory=list)
    hooked: int = 0
    error: str = ""

    def result(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("start", "blasts")} | {
            "blasts": [vars(b) for b in self.blasts],
            "ratio": median(self.ratios) if self.ratios else None,
        }


@contextmanager
def flow() -> Iterator[None]:
    """The scene, with its connection established, and pods that discard what they receive."""
    with scene.scene("http-proxy", serve=()):
        for name in _UDP_TIMEOUTS:  # the entry must survive the pauses in which a tool starts
            Path("/proc/sys/net/netfilter", name).write_text("3600")
        with servers.running(servers.pod_servers()):
            reply = traffic.udp_ask(sport=SOURCE_PORT)
        if reply.outcome != "answered":
            raise ToolFailed(f"no pod answered through the NodePort: {reply.outcome}")
        with servers.running(servers.pod_servers(sink=True)):
            yield


def hooked() -> int:
    """The number of functions with an ftrace attachment: proof that a tool is on. Indented lines are details."""
    if not _HOOKED.exists():
        return 0
    return sum(1 for line in _HOOKED.read_text().splitlines() if line.strip() and not line[0].isspace())


def blast(seconds: float, running: Running) -> Blast:
    """Sends a warm-up, and then for `seconds`, which are measured."""

    def overflows() -> int:
        return sum(load.udp_counters(pod.name)["RcvbufErrors"] for pod in PODS)

    lost = overflows()
    sender = load.udp_blast(seconds * (1 + 2 * WARM_SHARE), sport=SOURCE_PORT)
    time.sleep(seconds * WARM_SHARE)
    began, first, cpu = time.monotonic(), load.pods_received(), running.cpu_seconds
    time.sleep(seconds)
    last, passed, cpu = load.pods_received(), time.monotonic() - began, running.cpu_seconds - cpu
    sent = sender.result()
    running.check()
    return Blast((last - first) / passed, sent.rate, cpu / passed, overflows() - lost, sent.seconds)


def measure(variant: Variant, seconds: float) -> float:
    """Runs one blast and returns its rate; 0 when the tool failed."""
    try:
        with variant.start() as running:
            variant.command = running.command
            variant.hooked = hooked()
            found = blast(seconds, running)
    except ToolFailed as e:
        variant.error = str(e)
        return 0.0
    variant.blasts.append(found)
    variant.reported.append(running.report)
    return found.rate


def in_turn(variants: Sequence[Variant], turn: int) -> list[Variant]:
    """The variants that take part in round `turn` (from 0), in another order each round."""
    taking_part = [v for v in variants if not v.error and not (v.slow and turn % 3)]
    if not taking_part:
        raise ToolFailed("no tool could be measured: " + "; ".join(v.error for v in variants))
    first = turn % len(taking_part)
    return taking_part[first:] + taking_part[:first]


def one_round(untraced: Variant, variants: Sequence[Variant], seconds: float) -> None:
    """Runs blasts of all `variants`, in order, with untraced blasts around every BETWEEN of them."""
    before = measure(untraced, seconds)
    for at in range(0, len(variants), BETWEEN):
        rates = [(v, measure(v, seconds)) for v in variants[at : at + BETWEEN]]
        after = measure(untraced, seconds)
        for variant, rate in rates:
            if rate:
                variant.ratios.append(rate / mean((before, after)))
        before = after


def all_variants(tracer: Callable[[str], Tracer]) -> list[Variant]:
    other, ours = f"port {OTHER_PORT}", ("--all-kmods", "--filter-func", tools.our_functions())
    return [
        Variant("k8snet-trace, other port", lambda: tracer("").on(other)),
        Variant("k8snet-trace, every packet", lambda: tracer("").on("everything")),
        Variant("k8snet-trace --no-rules, other port", lambda: tracer("no-rules").on(other)),
        Variant("k8snet-trace --no-rules, every packet", lambda: tracer("no-rules").on("everything")),
        Variant("tcpdump, other port", tools.tcpdump("-w", "/dev/null", *other.split())),
        Variant("tcpdump, every packet", tools.tcpdump("-w", str(tools.SCRATCH / "bench.pcap"))),
        Variant("k8snet-trace kprobes, other port", lambda: tracer("kprobe").on(other)),
        Variant("k8snet-trace kprobes, every packet", lambda: tracer("kprobe").on("everything")),
        Variant("pwru, our functions, other port", tools.pwru(*ours, *other.split()), slow=True),
        Variant("pwru, our functions, every packet", tools.pwru(*ours), slow=True),
        Variant("pwru, all functions, other port", tools.pwru(*other.split()), slow=True),
        Variant("pwru, all functions, every packet", tools.pwru(), slow=True),
    ]


GOALS = ("k8snet-trace, ", "tcpdump, ")
OTHERS = ("k8snet-trace --no-rules, ", "k8snet-trace kprobes, ", "pwru, ")
"""How the names of the variants begin that have a goal, or are compared with one, and those of the others."""


def nftables(rounds: int, seconds: float, report: Callable[[str], None]) -> dict[str, Any]:
    """The tracer's own variants with the same rules in iptables-nft; their hits need the kernel's trace key on. Needs flow()
    around it; its rules stay."""
    rules.flush()
    rules.restore("http-proxy", backend="nft")
    return run(rounds, seconds, report, ("k8snet-trace, ", "k8snet-trace --no-rules, "))


def run(rounds: int, seconds: float, report: Callable[[str], None], names: tuple[str, ...]) -> dict[str, Any]:
    """Measures all variants with a name that begins with one of these, `rounds` times. Needs flow() around it."""
    with ExitStack() as stack:

        @cache
        def tracer(way: str) -> Tracer:
            made = Tracer(way)
            stack.callback(made.close)
            return made

        only = os.environ.get("BENCH_ONLY", "")
        untraced, variants = (
            Variant("untraced", tools.nothing),
            [v for v in all_variants(tracer) if only in v.name and v.name.startswith(names)],
        )
        for turn in range(rounds):
            one_round(untraced, in_turn(variants, turn), seconds)
            report(f"throughput: round {turn + 1} of {rounds}")
    rates = [b.rate for b in untraced.blasts]
    return {
        "untraced": {"median": median(rates), "lowest": min(rates), "highest": max(rates), "blasts": len(rates)},
        "variants": [v.result() for v in variants],
    }
