# SPDX-License-Identifier: Apache-2.0
"""Faults that only several nodes together show, on real kernels: each must be found, and its healthy twin must not.

    python -m tests.cluster a=6.12 b=6.1 --findings

Two runs of the plugin: in the first one all is healthy, or differs for a moment only; in the second one each fault is made in
turn. The closing line has `expected=6 found=6 wrong=0`: findings that the faults must give, those of them that were given, and
certain ones in either run that no fault was made for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster_scene import plan as names
from cluster_scene.faults import Fault
from cluster_scene.plan import NodePlan
from lab.wire import Faults
from tests.cluster import failures, finding_truth, loss_truth
from tests.cluster.bed import PluginRun, TestBed, backend_of
from tests.cluster.finding_truth import ExpectedFinding, FindingCount

ROUND_SECONDS = 5.0
"""Pause between two requests of a fault that has to last, s."""
FOUND_SECONDS = 300.0
"""Limit for a finding about rules, s: emulated nodes explain their packets slowly."""
SHORT_SECONDS = 2.0
"""Limit for a request that is not answered, s: its SYN is sent twice."""
LONG_SECONDS = 8.0
"""Limit for a request of which segments have to be sent again, s."""
LONG_BYTES, SHORT_BYTES, UPLOAD_BYTES = 1300, 100, 3000
"""Payload of long and of short datagrams, and of a request of more than one segment."""
LONGEST_FRAME = 1000
"""Longest frame that the wire carries with a fault, bytes."""
MORE_SERVICES = ("--service", "shop/orders")

EXPECTED = (
    ExpectedFinding("service_rules_differ", ("ode node-a sends", "which is no endpoint of it any more")),
    ExpectedFinding("service_rules_differ", ("ode node-a has other rules than node node-b", "does not translate them")),
    ExpectedFinding("local_policy_no_endpoint", ("Service shop/orders ask node node-a", "are on node node-b")),
    ExpectedFinding(
        "asymmetric_return", ("leave node node-b by eth0", "may only be lost on their way to that node"), certain=False
    ),
    ExpectedFinding("overlay_mtu", ("from node node-a to pods of node node-b", "the sender still sends them")),
    ExpectedFinding("overlay_mtu", ("from node node-b to pods of node node-a", "and the longest that came had"), certain=False),
)
BESIDE = (ExpectedFinding("lost_between_nodes", ("from node node-b to node node-a",)),)
"""The wire loses packets for the last one: `loss_truth` compares them."""
Settle = Callable[[PluginRun], None]


class FindingScenes:
    """The scenes on a cluster of two nodes.

    Args:
        bed: The cluster.
        settle: Waits until a run has printed all.
    """

    def __init__(self, bed: TestBed, settle: Settle) -> None:
        self._bed, self._settle = bed, settle
        self._first, self._last = bed.plan.nodes[0], bed.plan.nodes[-1]
        self._cart, _, self._orders = bed.plan.services(self._first)
        self.problems: list[str] = []

    def run(self, output: Path) -> FindingCount:
        """Makes all scenes. output: directory of the plugin's lines."""
        total = self._traced(self._healthy, (), output / "findings-healthy.jsonl")
        total.add(self._traced(self._faulty, EXPECTED, output / "findings-faulty.jsonl"))
        return total

    def _traced(self, work: Callable[[PluginRun], None], expected: Sequence[ExpectedFinding], path: Path) -> FindingCount:
        wire = self._bed.cluster.wire
        for node in (self._first, self._last):
            self._fault(node, "none")
        run = failures.started(self._bed, *MORE_SERVICES)
        wire.clear()
        try:
            work(run)
        finally:
            wire.set_faults(Faults())
            for node in (self._first, self._last):
                self._fault(node, "none")
        self._settle(run)
        log, done, lines = wire.log(), run.stop(), run.objects()
        path.write_bytes(b"".join(run.lines))
        print(done.errors.decode(errors="replace").rstrip())
        found = finding_truth.compare(lines, expected, BESIDE if expected else ())
        found.wrong += loss_truth.compare(lines, log).wrong
        if done.status:
            self.problems.append(f"the plugin's exit status is {done.status}")
        print(f"{path.name}: {found.line}")
        for line in finding_truth.findings(lines):
            print(f"  {'certain' if line['certain'] else 'perhaps'}  {line['name']} ({line['count']}): {line['text']}")
        return found

    # ---- healthy, or different for a moment ----

    def _healthy(self, run: PluginRun) -> None:
        first, last = self._first, self._last
        for node in (first, last):
            self._ask(node, "shop", self._cart.address, names.CART_PORT, 5, answered=5)
        self._ask(first, "client", names.OUTSIDE4, names.CART_NODE_PORT, 5, answered=5)
        self._ask(first, "node", last.address, names.ORDERS_NODE_PORT, 3, answered=3)
        self._upload(first, "shop", answered=1)
        for size in (SHORT_BYTES, LONG_BYTES):
            self._datagrams(last, 4, size, answered=4)
        self._late_rules("stale_endpoint")
        self._late_rules("no_rules")
        # A sender learns the MTU of the tunnel.
        self._fault(first, "short_tunnel")
        self._upload(first, "cart", answered=1)
        self._fault(first, "none")

    def _late_rules(self, fault: Fault) -> None:
        """kube-proxy may be late: one request meets old rules."""
        self._fault(self._first, fault)
        self._ask(self._first, "shop", self._cart.address, names.CART_PORT, 1, answered=0)
        self._fault(self._first, "none")
        for node in (self._first, self._last):
            self._ask(node, "shop", self._cart.address, names.CART_PORT, 3, answered=3)

    # ---- faults ----

    def _faulty(self, run: PluginRun) -> None:
        self._rules_differ(run, "stale_endpoint", EXPECTED[0])
        self._rules_differ(run, "no_rules", EXPECTED[1])
        self._local_policy()
        self._no_masquerade()
        self._silent_tunnel()
        self._short_frames()

    def _rules_differ(self, run: PluginRun, fault: Fault, expected: ExpectedFinding) -> None:
        """One node has old rules, until the finding is printed."""
        self._fault(self._first, fault)
        until = time.monotonic() + FOUND_SECONDS
        while time.monotonic() < until:
            self._ask(self._last, "shop", self._cart.address, names.CART_PORT, 1, answered=1)
            self._ask(self._first, "shop", self._cart.address, names.CART_PORT, 1, answered=0)
            if any(expected.is_shown_by(line) for line in finding_truth.findings(run.objects())):
                break
            time.sleep(ROUND_SECONDS)
        self._fault(self._first, "none")

    def _local_policy(self) -> None:
        """The node of the endpoint answers, and the other one is asked, too."""
        port = names.ORDERS_NODE_PORT
        self._ask(self._first, "node", self._last.address, port, 3, answered=3)
        self._ask(self._last, "node", self._first.address, port, 3, answered=0)

    def _no_masquerade(self) -> None:
        """The client asks the first node; the endpoint on the last node answers the client itself."""
        self._fault(self._first, "no_masquerade")
        self._ask(self._first, "client", names.OUTSIDE4, names.CART_NODE_PORT, 3, answered=0, seconds=LONG_SECONDS)
        self._fault(self._first, "none")

    def _silent_tunnel(self) -> None:
        """The first node drops long segments, and its ICMP messages do not come to the sender."""
        self._fault(self._first, "silent_tunnel")
        self._upload(self._first, "shop", answered=0)
        self._fault(self._first, "none")

    def _short_frames(self) -> None:
        """The wire drops long frames: datagrams of the last node."""
        self._bed.cluster.wire.set_faults(Faults(longest=LONGEST_FRAME))
        for _ in range(2):
            self._datagrams(self._last, 3, SHORT_BYTES, answered=3)
            self._datagrams(self._last, 3, LONG_BYTES, answered=0)
        self._datagrams(self._last, 3, SHORT_BYTES, answered=3)
        self._bed.cluster.wire.set_faults(Faults())

    # ---- on the machines ----

    def _fault(self, node: NodePlan, fault: Fault) -> None:
        self._bed.scene("fault", node, "--fault", fault, "--backend", backend_of(node))

    def _ask(
        self,
        node: NodePlan,
        source: str,
        address: str,
        port: int,
        count: int,
        answered: int,
        seconds: float = SHORT_SECONDS,
    ) -> None:
        limit = LONG_SECONDS * 2 if answered else seconds
        words = ("--source", source, "--address", address, "--port", str(port), "--tcp", str(count), "--seconds", str(limit))
        self._expect(f"{source} of {node.name} to {address}:{port}", self._bed.scene("ask", node, *words), answered)

    def _upload(self, node: NodePlan, source: str, answered: int) -> None:
        to = self._other(node).pod("cart").address
        words = ("--source", source, "--address", to, "--port", str(names.HTTP_PORT), "--size", str(UPLOAD_BYTES))
        done = self._bed.scene("upload", node, *words, "--seconds", str(LONG_SECONDS * (2 if answered else 1)))
        self._expect(f"{source} of {node.name} sends {UPLOAD_BYTES} bytes to {to}", done, answered)

    def _datagrams(self, node: NodePlan, count: int, size: int, answered: int) -> None:
        to = self._other(node).pod("cart").address
        limit = str(LONG_SECONDS if answered else SHORT_SECONDS)
        words = ("--address", to, "--port", str(names.UDP_PORT), "--udp", str(count), "--size", str(size), "--seconds", limit)
        self._expect(f"datagrams of {size} bytes to {to}", self._bed.scene("datagrams", node, *words), answered)

    def _other(self, node: NodePlan) -> NodePlan:
        return self._last if node is self._first else self._first

    def _expect(self, what: str, done: dict[str, int], answered: int) -> None:
        """Notes traffic that was not answered as often as the scene needs: then the scene is not what it should be."""
        if done["answered"] != answered:
            self.problems.append(f"{what}: {done['answered']} of {done['sent']} answered, and {answered} expected")
