# SPDX-License-Identifier: Apache-2.0
"""The demonstration of two nodes: one request of a pod to a Service, traced on both with `kubectl k8snet-trace`.

    python -m tests.cluster.demo [KERNEL]

`make demo CLUSTER=1` runs it. All but the head and the lines with a `$` is real output of the real command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.cluster import Cluster, Member
from tests.cluster.bed import START_SECONDS, PluginRun, TestBed, is_of_services
from tests.cluster.failures import nodes_of

DEFAULT_KERNEL = "6.12"
NODES = ("node-a", "node-b")
SERVICE = "shop/orders"
"""Its only endpoint is on the last node."""
OPTIONS = ("--service", SERVICE, "--from", "pod/shop/shop-a", "--tcp-flags", "SYN")
SHOWN_SECONDS = 240.0
"""Limit for the way of the request and its answer through both nodes, s: emulated processors are slow."""
HEAD = """\
[bold]kubectl k8snet-trace[/] on two machines with Linux {kernel}, rules as kube-proxy writes them

  node-a                                                        node-b
  pod shop/shop-a {shop} ──▶ [bold]Service {service}[/] {address}:{port}
                              └──── VXLAN between the nodes ────▶ pod shop/cart-b {cart}:8080
"""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def has_crossed(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether a packet was seen on its whole way through both nodes in each direction."""
    ways = {tuple(view["node"] for view in line["views"]) for line in lines if line["type"] == "joined"}
    return ways >= {NODES, NODES[::-1]}


def wait_for(run: PluginRun, path: Path, seconds: float, is_crossing: bool = False) -> bool:
    """Waits until all nodes are traced, or until packets have crossed them both ways.

    Returns:
        False = not in time, or the program has ended.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        lines = read_lines(path)
        if has_crossed(lines) if is_crossing else nodes_of(lines, "run") >= set(NODES):
            return True
        if run.process.poll() is not None:
            return False
        time.sleep(0.5)
    return False


def show(console: Console, bed: TestBed) -> int:
    """Traces one request, and prints what the plugin printed; returns the exit status."""
    first, last = bed.plan.nodes
    orders = next(service for service in bed.plan.services(first) if service.name == SERVICE)
    path = bed.directory / "packets.jsonl"
    console.print(f"\n[bold]you $[/] kubectl k8snet-trace {' '.join(OPTIONS)}")
    run = bed.plugin(*OPTIONS, "-o", "text", "-o", f"json:{path}")
    is_traced = wait_for(run, path, START_SECONDS)
    if is_traced:
        words = ("--address", orders.address, "--port", str(orders.port), "--tcp", "1")
        answers = bed.scene("request", first, *words)["by"]
        title = f"[bold]shop-a $[/] curl http://{orders.address}/   [dim]{', '.join(answers) or 'no answer'}[/]"
        console.rule(title, align="left", style="dim")
        wait_for(run, path, SHOWN_SECONDS, is_crossing=True)
    done = run.stop()
    sys.stdout.flush()
    os.write(1, done.output)
    has_way = has_crossed(read_lines(path))
    if not has_way or done.status:
        console.print(f"[red]The request and its answer were not seen on both nodes ({first.name}, {last.name}).[/]")
        os.write(2, done.errors)
        return done.status or 1
    return 0


def main(words: Sequence[str]) -> int:
    """Boots two machines and shows the request. words: the name of a kernel, or nothing."""
    kernel = words[0] if words else DEFAULT_KERNEL
    console = Console(highlight=False)
    if console.is_terminal:
        os.environ.setdefault("FORCE_COLOR", "1")
    console.print("[dim]booting two machines and building a node on each; this is slow on an emulated machine ...[/]")
    with Cluster([Member(name, kernel) for name in NODES], is_of_services) as cluster, TestBed(cluster) as bed:
        bed.build()
        first, last = bed.plan.nodes
        orders = next(service for service in bed.plan.services(first) if service.name == SERVICE)
        places = {"shop": first.pod("shop").address, "cart": last.pod("cart").address}
        head = HEAD.format(kernel=kernel, service=SERVICE, address=orders.address, port=orders.port, **places)
        console.print(head, soft_wrap=True)
        return show(console, bed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
